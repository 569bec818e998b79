"""`completion` prints scripts that shells read: bash is asked, zsh and fish too where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sparring.workflows.command_line import COMMANDS, main
from sparring.workflows.commands.completion import SHELLS
from tests.support.tiny import Said

ASK = """
compopt() { :; }  # which works only while a key is pressed
source "$1"; shift
COMP_WORDS=(sparring "$@"); COMP_CWORD=$#
_sparring
printf '%s\\n' "${COMPREPLY[@]}"
"""
NAMES = [module.__name__.rpartition(".")[2] for module in COMMANDS]


@pytest.fixture
def script(tmp_path: Path, said: Said) -> dict[str, Path]:
    """The scripts as files."""
    made = {}
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        made[shell] = tmp_path / f"sparring.{shell}"
        made[shell].write_text(said()[0])
    return made


def asked(script: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word, in a folder."""
    command = ["bash", "--norc", "-c", ASK, "bash", str(script), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return sorted(line for line in done.stdout.splitlines() if line)


def test_bash_completes_commands_options_and_configs(script: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    (folder / "data set").mkdir(parents=True)
    for name in ("mine.yaml", "my own.yaml", "other.txt"):
        (folder / name).touch()
    for words, offered in {
        ("",): sorted(["-h", "--help", "--store", "--runs", *NAMES]),
        ("se",): ["search", "serve"],
        ("--store", "o"): ["other.txt"],
        ("--store", "x", "pl"): ["plan"],
        ("run", "m"): ["mine.yaml", "my own.yaml"],
        ("run", "my\\ "): ["my own.yaml"],
        ("run", "--cluster", "o"): ["other.txt"],
        ("run", "--cluster", "other.txt", "mi"): ["mine.yaml"],
        ("run", "--un"): ["--until"],
        ("run", "mine.yaml", "--until", ""): [],
        ("run", "d"): ["data set"],
        ("plan", "configs/demo"): ["configs/demo.yaml"],
        ("plan", "configs/sam"): ["configs/samtone/"],
        ("--runs", "x", "init", ""): ["data set", "mine.yaml", "my own.yaml", "other.txt"],
        ("export", "mine.yaml", "da"): ["data set"],
        ("completion", "z"): ["zsh"],
        ("evaluate", "--me"): ["--measures"],
    }.items():
        assert asked(script["bash"], folder, *words) == offered, words


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
    for line, offered in {"sparring pla": "plan", "sparring run mi": "mine.yaml"}.items():
        ask = f"source '{script['fish']}'; complete -C '{line}'"
        done = subprocess.run(["fish", "-N", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(offered)
