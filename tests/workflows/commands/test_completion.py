"""`completion` prints scripts that shells read. Bash completes words; zsh and fish do where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sparring.workflows.command_line import COMMANDS, main
from tests.support.tiny import Said

COMPLETE = """
compopt() { :; }  # which works only while a key is pressed
source "$1"; shift
COMP_WORDS=(sparring "$@"); COMP_CWORD=$#
_shtab_sparring
printf '%s\\n' "${COMPREPLY[@]}"
"""
NAMES = [module.__name__.rpartition(".")[2] for module in COMMANDS]


@pytest.fixture
def script(tmp_path: Path, said: Said) -> dict[str, Path]:
    """The scripts as files, by shell."""
    scripts = {}
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        scripts[shell] = tmp_path / f"sparring.{shell}"
        scripts[shell].write_text(said()[0])
    return scripts


def completions(script: Path, folder: Path, *words: str) -> list[str]:
    """Complete the last word in a folder, as bash does."""
    command = ["bash", "--norc", "-c", COMPLETE, "bash", str(script), *words]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return sorted(line for line in result.stdout.splitlines() if line)


def test_bash_completes_commands_options_and_configs(script: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    (folder / "data set").mkdir(parents=True)
    for name in ("mine.yaml", "my own.yaml", "other.txt"):
        (folder / name).touch()
    for words, expected in {
        ("",): sorted(NAMES),
        ("--st",): ["--store"],
        ("se",): ["search", "serve"],
        ("--store", "o"): ["other.txt"],
        ("--store", "x", "pl"): ["plan"],
        ("run", "m"): ["mine.yaml", "my own.yaml"],
        ("run", "--cluster", "o"): ["other.txt"],
        ("run", "--cluster", "other.txt", "mi"): ["mine.yaml"],
        ("run", "--un"): ["--until"],
        ("run", "mine.yaml", "--until", ""): [],
        ("run", "d"): ["data set"],
        ("--runs", "x", "init", ""): ["data set", "mine.yaml", "my own.yaml", "other.txt"],
        ("export", "mine.yaml", "da"): ["data set"],
        ("completion", "z"): ["zsh"],
        ("evaluate", "--me"): ["--measures"],
    }.items():
        assert completions(script["bash"], folder, *words) == expected, words


def test_every_command_and_option_is_in_every_script(script: dict[str, Path]) -> None:
    for shell, file in script.items():
        text = file.read_text()
        for word in (*NAMES, "set", "measures", "overwrite"):
            assert word in text, (shell, word)
        assert "known-as" not in text


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(script: dict[str, Path]) -> None:
    subprocess.run(["zsh", "-n", str(script["zsh"])], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_a_command_and_a_config(script: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").touch()
    for line, expected in {"sparring pla": "plan", "sparring run mi": "mine.yaml"}.items():
        command = ["fish", "-N", "-c", f"source '{script['fish']}'; complete -C '{line}'"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert result.stdout.startswith(expected)
