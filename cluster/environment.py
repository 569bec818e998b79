"""Fill `.venv` from the lock files, and write the lock files.

    environment.py setup [development] [documentation]    # make setup, make test, make docs
    environment.py setup gpu                              # cluster/Dockerfile
    environment.py lock [--upgrade]                       # make lock

Runs on every supported Python, with the standard library only. pip installs, with the index, mirror or folder of wheels
that the machine has configured for it: a machine that is configured for CPU builds of torch gets the CPU build.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = Path(os.environ.get("SPARRING_ENVIRONMENT") or ROOT / ".venv")
FOLDER = ROOT / "cluster"
RUNTIME = "requirements"
"""The lock of what Sparring runs on."""
GROUPS = ("development", "documentation")
"""The locks of what its checks and its documentation need beyond that, by the names of their dependency groups."""
TORCH, CUDA = "torch", "cuda"
"""The lock of torch alone, and the lock of what only torch's CUDA build needs."""
GPU, FAISS = "gpu", "faiss-cpu"
"""The lock of FAISS for GPUs, and the package that it replaces. It has a CUDA of its own and comes for x86 alone."""
OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")
"""Names of packages that belong to CUDA."""
OF_PYSERINI = ("cython", "fastmcp", "flask", "matplotlib", "onnxruntime", "openai", "pytest", "tiktoken")
"""What Pyserini's own commands need. The runtime takes nothing but Lucene from Pyserini."""
DISK_SPACE = 3e9
"""Bytes that set-up needs without CUDA: for the packages, and for what pip unpacks meanwhile."""

HEADERS = {
    RUNTIME: """\
# What Sparring runs on, but for torch: everything that pyproject.toml asks for, complete with what that needs. For
# CPython 3.11, 3.12 and 3.13 from their first patch releases on. `make lock` writes it. `make setup`, images and
# clusters install it, with torch.lock:
#     python3 cluster/environment.py setup
""",
    TORCH: """\
# torch comes as a CPU or a CUDA build under one version, as pip is configured, so it has no hashes here.
# `make lock` writes this file.
""",
    CUDA: """\
# What torch's CUDA build needs beyond requirements.lock. `make lock` writes it.
""",
    GPU: """\
# FAISS for GPUs, in place of faiss-cpu, with the CUDA 12 that it was built with. `make lock` writes it. Images install
# it, if torch is the CUDA build:
#     python3 cluster/environment.py setup gpu
""",
    "development": """\
# What checks, tests and benchmarks need beyond requirements.lock. `make lock` writes it.
""",
    "documentation": """\
# What the documentation needs beyond requirements.lock. `make lock` writes it.
""",
}

NO_ANSWER = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeoutError|ReadTimeoutError"
    r"|Network is unreachable|Connection refused|ProxyError"
)
"""What pip prints where no index answers."""


class Failure(Exception):
    """What went wrong and what to do about it, for people."""


def setup(groups: Sequence[str]) -> None:
    """Make `.venv` what the lock files say, with the given groups beside the runtime, unless it is already."""
    with _alone():
        stamp, wanted = ENVIRONMENT / "complete", {name: _digest(name) for name in (RUNTIME, TORCH, CUDA, *groups)}
        there = _installed(stamp)
        if wanted.items() <= there.items():
            return
        began = time.monotonic()
        if any(wanted.get(name, digest) != digest for name, digest in there.items()):
            there = {}  # another version of a lock
        # Always without the stamp meanwhile: a killed pip leaves half-copied packages, which the next pip would take
        # for installed.
        stamp.unlink(missing_ok=True)
        if not there:
            _warn_of_disk()
            _remove(ENVIRONMENT)
            _create(ENVIRONMENT)
        locks = [name for name in wanted if name not in there and name != CUDA]
        progress = Progress("Setting up .venv", sum(len(_pins(name)) for name in locks))
        with progress:
            if TORCH in locks:
                _install(progress, ["--no-deps", "-r", str(_file(TORCH))])
                if _has_cuda_build():
                    progress.total += len(_pins(CUDA))
                    locks.append(CUDA)
            others = [argument for name in locks if name not in (TORCH, GPU) for argument in ("-r", str(_file(name)))]
            if others:
                _install(progress, ["--no-deps", "--require-hashes", *others])
            if GPU in locks and _has_cuda_build() and platform.machine() == "x86_64":
                if _pip(ENVIRONMENT, ["uninstall", "--yes", FAISS]).returncode:  # both fill the folder faiss
                    raise Failure(f"pip cannot remove {FAISS}, which FAISS for GPUs replaces")
                _install(progress, ["--no-deps", "--require-hashes", "-r", str(_file(GPU))])
            if (ROOT / "sparring").is_dir():  # a node of a cluster gets the code with each job
                _install(progress, ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
        # The path is in the stamp because a virtual environment does not work after it was moved.
        stamp.write_text(json.dumps({"path": str(ENVIRONMENT), "locks": there | wanted}, indent=1))
        print(f"Set up .venv in {time.monotonic() - began:.0f} s.")
        if not there:
            print(f'To call sparring from any folder: export PATH="{ENVIRONMENT / "bin"}:$PATH"')


def lock(upgrade: bool) -> None:
    """Write the lock files. Present pins stay where they fit, unless `upgrade`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _create(folder / "venv")
        if (done := _pip(folder / "venv", ["install", "--quiet", "uv"])).returncode:
            raise Failure(f"{done.stdout}pip cannot install uv, which resolves the locks")
        lean = folder / "excludes.txt"
        lean.write_text("\n".join(OF_PYSERINI))
        names = [RUNTIME, TORCH, CUDA, GPU, *GROUPS]
        kept = "" if upgrade else "".join(f"{line}\n" for name in names for line in _pins(name).values())
        wanted = project["project"]["dependencies"]
        # Extras have no lock, but must agree with the versions that run.
        wide = _resolve(folder, wanted + optional["s3"] + optional["onnx"], kept)
        options = ["--excludes", str(lean)]
        runtime = _resolve(folder, wanted, _joined(wide), options)
        found = {
            name: _resolve(folder, wanted + groups[name], _joined(runtime) + kept, of)
            for name, of in zip(GROUPS, ([], options), strict=True)  # tests import Pyserini
        }
        faiss = _first(runtime[FAISS]).replace(FAISS, "faiss-gpu")
        found[GPU] = _resolve(folder, [*wanted, *optional["gpu"], faiss], _joined(runtime) + kept, options)
    for name, blocks in found.items():
        if changed := [package for package, block in runtime.items() if blocks.get(package) != block]:
            raise Failure(f"the group {name} needs other versions of {', '.join(changed)}; `make lock UPGRADE=1`")
        _write(name, {package: block for package, block in blocks.items() if package not in runtime})
    _write(TORCH, {TORCH: runtime.pop(TORCH).splitlines()[0].removesuffix(" \\") + "\n"})
    _write(CUDA, {package: runtime.pop(package) for package in list(runtime) if OF_CUDA.match(package)})
    _write(RUNTIME, runtime)


def canonical(name: str) -> str:
    """A distribution's name as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(name: str) -> dict[str, str]:
    """Name to version of what a lock file pins, on whatever platform."""
    return {package: re.split(r"==|[ ;]", line)[1] for package, line in _pins(name).items()}


def _resolve(folder: Path, requirements: list[str], kept: str, options: Sequence[str] = ()) -> dict[str, str]:
    """The lines of a lock, by package, that uv finds for requirements on all supported Pythons and platforms."""
    wanted, found = folder / "wanted.in", folder / "found.txt"
    wanted.write_text("\n".join(requirements) + "\n")
    found.write_text(kept)  # uv keeps to the versions of the file that it writes
    print(f"Resolving {len(requirements)} requirements ...", flush=True)
    done = _call(
        [
            str(folder / "venv" / "bin" / "uv"),
            "pip",
            "compile",
            "--quiet",
            "--no-config",
            "--universal",
            "--generate-hashes",
            "--python-version",
            "3.11",
            "--fork-strategy",
            "fewest",
            "--no-header",
            "--no-annotate",
            *options,
            str(wanted),
            "--output-file",
            str(found),
        ]
    )
    if done.returncode:
        raise Failure(f"{done.stdout}uv cannot resolve this; `make lock UPGRADE=1` lets go of the present pins")
    blocks = [block for block in re.split(r"\n(?! )", found.read_text()) if block]
    names = [block.partition("==")[0] for block in blocks]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Failure(f"no one version for all Pythons and platforms: {', '.join(sorted(twice))}; results would differ")
    # Windows and browsers are no platforms of ours.
    ours = {name: f"{block}\n" for name, block in zip(names, blocks, strict=True)}
    return {name: block for name, block in ours.items() if not re.search(r"== '(?:win32|emscripten)'", _first(block))}


def _joined(blocks: dict[str, str]) -> str:
    return "".join(f"{_first(block)}\n" for block in blocks.values())


def _first(block: str) -> str:
    return block.splitlines()[0].removesuffix(" \\")


def _file(name: str) -> Path:
    return FOLDER / f"{name}.lock"


def _pins(name: str) -> dict[str, str]:
    """The line that pins each package of a lock, by name; empty if there is no such lock yet."""
    lines = _file(name).read_text().splitlines() if _file(name).exists() else []
    pins = [line.removesuffix(" \\") for line in lines if re.match(r"[a-z0-9][\w.-]*==", line)]
    return {line.partition("==")[0]: line for line in pins}


def _write(name: str, blocks: dict[str, str]) -> None:
    _file(name).write_text(HEADERS[name] + "".join(text for _, text in sorted(blocks.items())))
    print(f"Wrote {_file(name).relative_to(ROOT)}: {len(blocks)} distributions")


def _digest(name: str) -> str:
    return hashlib.sha256(_file(name).read_bytes()).hexdigest()


def _installed(stamp: Path) -> dict[str, str]:
    """Digests of the locks that `.venv` was filled from, by name; empty if it must be made anew."""
    try:
        said = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    works = said["path"] == str(ENVIRONMENT) and _works(ENVIRONMENT)
    return dict(said["locks"]) if works else {}


def _warn_of_disk() -> None:
    if shutil.disk_usage(ROOT).free < DISK_SPACE:
        print(f"Warning: less than {DISK_SPACE / 1e9:.0f} GB free under {ROOT}.", file=sys.stderr)


def _has_cuda_build() -> bool:
    """Whether the torch that was installed asks for CUDA's libraries."""
    (metadata,) = ENVIRONMENT.glob("lib/python*/site-packages/torch-*.dist-info/METADATA")
    names = re.findall(r"^Requires-Dist: ([\w.-]+)", metadata.read_text(), re.M)
    return any(OF_CUDA.match(canonical(name)) for name in names)


def _create(folder: Path) -> None:
    """Make a new virtual environment with pip."""
    made = _call([sys.executable, "-m", "venv", str(folder)])
    if made.returncode:
        # Debian ships `venv` without `ensurepip`; the machine's own pip can install pip there.
        _remove(folder)
        _call([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        python = str(folder / "bin" / "python")
        if _call([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip"]).returncode:
            raise Failure(
                f"{made.stdout}{sys.executable} cannot make virtual environments. On Debian and Ubuntu, "
                f"`sudo apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv` adds what it lacks."
            )


class Progress:
    """One line that says how far set-up is: on a terminal it moves, elsewhere it is printed now and then."""

    def __init__(self, title: str, total: int) -> None:
        self.total, self.done = total, 0
        self._title, self._began, self._width, self._said = title, time.monotonic(), 0, 0.0
        self._ended = threading.Event()

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", flush=True)

    def _show(self) -> None:
        moves = sys.stdout.isatty()
        while not self._ended.wait(0.5 if moves else 15.0):
            copied = len(list(ENVIRONMENT.glob("lib/python*/site-packages/*.dist-info")))
            line = f"{self._title}: {self.done} of {self.total} packages fetched, {min(copied, self.total)} installed"
            line += f", {time.monotonic() - self._began:.0f} s"
            if moves:
                self._width = max(self._width, len(line))
                line = f"\r{line.ljust(self._width)}"
            print(line, end="" if moves else "\n", flush=True)


def _install(progress: Progress, arguments: list[str]) -> None:
    """Run pip install. Its output goes to a log."""
    log = ENVIRONMENT / "setup.log"
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    command += ["--progress-bar", "off", "--no-compile"]  # Python compiles what is used when it is used
    with (
        log.open("a") as file,
        subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            close_fds=False,
            env=_clean(),
        ) as pip,
    ):
        assert pip.stdout is not None
        lines = []
        for line in pip.stdout:
            file.write(line)
            lines.append(line)
            progress.done += line.startswith(("Collecting ", "Processing "))
    if pip.returncode:
        raise Failure(f"{_why(lines)} The whole output is in {log}. Repeat the command to start over.")


def _why(lines: list[str]) -> str:
    """What pip's output says went wrong, and what to do."""
    text, machine = "".join(lines), f"Python {sys.version.split()[0]} on {sys.platform} {os.uname().machine}"
    package = re.findall(r"^(?:Collecting|ERROR: No matching distribution found for) (\S+)", text, re.M)
    of = f" (asked for {package[-1]})" if package else ""
    if "No space left on device" in text:
        return (
            f"The disk is full: {ROOT} needs {DISK_SPACE / 1e9:.0f} GB, several times that with CUDA. Free some space."
        )
    if NO_ANSWER.search(text):
        return f"The package index does not answer{of}. Check the network, or name another index in PIP_INDEX_URL."
    if "No matching distribution found" in text:
        return (
            f"The package index has no {package[-1]} for {machine}. If it is a mirror, it may lag behind: wait for it, "
            "or name another index in PIP_INDEX_URL."
        )
    if "DO NOT MATCH THE HASHES" in text:
        wrong = re.findall(r"^    (\S+==\S+) from ", text, re.M)
        return (
            f"The package index sent another file of {wrong[0] if wrong else 'a package'} than the lock names. If it "
            "is a mirror with its own builds, name another index in PIP_INDEX_URL."
        )
    return f"{''.join(lines[-25:])}pip failed."


def _pip(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return _call([str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments])


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_clean())


def _clean() -> dict[str, str]:
    """The environment variables without those that change where pip puts packages or Python looks for them."""
    elsewhere = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONHOME", "PYTHONPATH"}
    return {name: value for name, value in os.environ.items() if name not in elsewhere}


def _works(folder: Path) -> bool:
    """Whether the environment's Python still starts; the Python that it was made from may have been removed."""
    try:
        return _call([str(folder / "bin" / "python"), "-c", ""]).returncode == 0
    except OSError:
        return False


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keep other setups of this checkout waiting: two at once would delete each other's files."""
    with Path(__file__).open() as file:
        os.set_inheritable(file.fileno(), True)  # if this process is killed, its pip keeps the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another setup of this checkout ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # some network filesystems have no locks
        yield


def main(arguments: list[str]) -> int:
    """Run the command that the arguments name; its exit status."""
    try:
        match arguments:
            case ["setup", *groups] if set(groups) <= {GPU, *GROUPS}:
                setup(groups)
            case ["lock"] | ["lock", "--upgrade"]:
                lock(upgrade="--upgrade" in arguments)
            case _:
                raise Failure(f"usage: environment.py setup [{'] ['.join((GPU, *GROUPS))}] | lock [--upgrade]")
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
