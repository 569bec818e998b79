"""The Python environment: `make setup` fills `.venv` from the lock files, `make lock` writes the lock files and
the hashes of what they name.

Runs on Python 3.11 with the standard library only. pip does the work, with the index, mirror or folder of wheels that
the machine has configured for it; so a machine that is configured for CPU builds of torch gets the CPU build.
"""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
RUNTIME = ROOT / "cluster" / "requirements.lock"
DEVELOPMENT = ROOT / "cluster" / "development.lock"
HASHES = ROOT / "cluster" / "hashes"
"""The lock files once more, each package with the hashes of its files; and beside them what only CUDA needs."""
DISK_SPACE = 4e9
"""Bytes that a setup without CUDA needs at most: for the packages, and for what pip unpacks meanwhile."""

RUNTIME_HEADER = """\
# What Sparring runs on, complete with everything that needs: Python 3.11, resolved on Linux x86-64.
# Written by `make lock` from pyproject.toml. Images and cluster nodes install this file; `make setup` adds
# development.lock.
#
# No hashes, because one file serves several builds: torch comes as a CPU or a CUDA build under the same version, as pip
# is configured, and the CUDA one names further distributions, each at one exact version. pip checks all hashes or none.
"""
DEVELOPMENT_HEADER = """\
# What checks and tests need beyond requirements.lock. Written by `make lock` from pyproject.toml.
"""
CUDA_HEADER = """\
# What torch's CUDA build needs beyond requirements.lock. Written by `make lock`.
"""
HASHES_HEADER = """\
# Here with the hashes of all files that the Python Package Index has of each version:
#     pip install --no-deps --require-hashes -r cluster/hashes/requirements.lock -r cluster/hashes/cuda.lock
# A CPU build of torch is in another index. Install it first, and leave out cuda.lock; its hash is not checked then.
"""


class Failure(Exception):
    """What went wrong and what to do about it, for people."""


def setup() -> None:
    """Make `.venv` exactly what the lock files say, unless it is already."""
    with _alone():
        # The path is part of the stamp because a virtual environment does not work after it was moved.
        wanted = f"{ENVIRONMENT}\n{RUNTIME.read_text()}{DEVELOPMENT.read_text()}"
        stamp = ENVIRONMENT / "complete"
        if stamp.is_file() and stamp.read_text() == wanted and _works(ENVIRONMENT):
            write_command(ENVIRONMENT / "bin")
            return
        began = time.monotonic()
        distributions = sum("==" in line for line in wanted.splitlines())
        print(f"Setting up .venv: {distributions} packages, about 1 GB to download and 3 GB on disk, 2 to 6 minutes;")
        print("several GB more where pip finds the CUDA build of torch. pip's cache makes the next time faster.")
        if shutil.disk_usage(ROOT).free < DISK_SPACE:
            print(f"Warning: less than {DISK_SPACE / 1e9:.0f} GB free under {ROOT}.", file=sys.stderr)
        # Always from scratch: a killed pip leaves half-copied packages, which the next pip takes for installed, and
        # packages that are no longer in the lock would stay.
        _remove(ENVIRONMENT)
        python = _create(ENVIRONMENT)
        _install(python, ["-r", str(RUNTIME), "-r", str(DEVELOPMENT)])
        write_command(ENVIRONMENT / "bin")
        stamp.write_text(wanted)
        print(f"Set up .venv in {time.monotonic() - began:.0f} s.")


def write_command(folder: Path) -> Path:
    """Write `sparring` to a folder: it runs this checkout with this environment, in any working directory."""
    file, python, root = folder / "sparring", ENVIRONMENT / "bin" / "python", str(ROOT)
    # To sh its second line calls Python with this very file, and to Python it is a text: a `#!` line cannot name an
    # interpreter whose path is long or has spaces. Ray gives its workers the folder of the script that was called where
    # that is in the path, so it is made the checkout.
    text = f"""#!/bin/sh
'''exec' {shlex.quote(str(python))} "$0" "$@"
' '''
import os
import sys

ROOT = {root!r}
sys.argv[0] = os.path.join(ROOT, "sparring")
sys.path[:1] = [ROOT, os.getcwd()]

# A process that this one starts anew (multiprocessing) runs this file too, under another name.
if __name__ == "__main__":
    from sparring.workflows.command_line import command

    sys.exit(command())
"""
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)
        file.chmod(0o755)
    return file


def lock(upgrade: bool) -> None:
    """Write both lock files; present pins stay as they are, unless `upgrade`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as folder:
        python = _create(Path(folder) / "venv")
        kept = {} if upgrade else _pins(RUNTIME)
        extras = project["optional-dependencies"]
        # Nor may a package of an extra change the version of a package that runs.
        wide = _resolve(python, project["dependencies"] + extras["s3"] + extras["onnx"], kept)
        runtime = _resolve(python, project["dependencies"], wide)
        # The development tools must agree with the packages that run, and never change their versions.
        kept = runtime if upgrade else _pins(DEVELOPMENT) | runtime
        both = _resolve(python, project["dependencies"] + extras["dev"], kept)
    _write(RUNTIME, RUNTIME_HEADER, _lines(runtime))
    added = {name: version for name, version in both.items() if name not in runtime}
    _write(DEVELOPMENT, DEVELOPMENT_HEADER, _lines(added))
    hashes(upgrade)


def hashes(upgrade: bool) -> None:
    """Write the hashes of all that the lock files name, as uv finds them in the Python Package Index; what torch's CUDA
    build adds stays at its present pins where it can, unless `upgrade`."""
    runtime, development = _pins(RUNTIME), _pins(DEVELOPMENT)
    with tempfile.TemporaryDirectory() as folder:
        python, wanted, found = _create(Path(folder) / "venv"), Path(folder) / "wanted.txt", Path(folder) / "found.txt"
        wanted.write_text("".join(_lines(runtime | development).values()))
        found.write_text("" if upgrade else "".join(_lines(_pins(HASHES / "cuda.lock")).values()))  # uv keeps to it
        print("Looking for the hashes ...", flush=True)
        result = _pip(python, ["install", "--quiet", "uv"])
        if not result.returncode:
            result = _call([
                str(python.with_name("uv")), "pip", "compile", "--quiet", "--generate-hashes", "--no-header",
                "--no-annotate", "--python", str(python), "--python-platform", "x86_64-manylinux_2_28",
                str(wanted), "--output-file", str(found),
            ])  # fmt: skip
        if result.returncode:
            raise Failure(f"{result.stdout}uv cannot find the hashes; cluster/hashes is as it was")
        blocks = {block.partition("==")[0]: f"{block}\n" for block in re.split(r"\n(?! )", found.read_text()) if block}
    HASHES.mkdir(exist_ok=True)
    cuda = blocks.keys() - runtime.keys() - development.keys()
    for name, header, names in (
        (RUNTIME.name, RUNTIME_HEADER.partition("#\n")[0], runtime.keys()),
        (DEVELOPMENT.name, DEVELOPMENT_HEADER, development.keys()),
        ("cuda.lock", CUDA_HEADER, cuda),
    ):
        _write(HASHES / name, header + HASHES_HEADER, {name: blocks[name] for name in names})


def canonical(name: str) -> str:
    """A distribution's name as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _resolve(python: Path, requirements: list[str], kept: dict[str, str]) -> dict[str, str]:
    """Name to version of all packages that the requirements need, by pip's resolver; installs nothing."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, constraints, report = (Path(folder) / name for name in ("wanted.txt", "kept.txt", "report.json"))
        wanted.write_text("\n".join(requirements) + "\n")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()))
        print(f"Resolving {len(requirements)} requirements ...", flush=True)
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        result = _pip(python, [*command, "-r", str(wanted), "-c", str(constraints)])
        if result.returncode:
            raise Failure(f"{result.stdout}pip cannot resolve this; `make lock UPGRADE=1` lets go of the present pins")
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    # A local version, such as torch's +cpu, names a build, which the machine's configuration decides.
    return {canonical(one["name"]): one["version"].partition("+")[0] for one in packages}


def _pins(file: Path) -> dict[str, str]:
    """Name to version of a lock file; empty where there is no file yet."""
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = (line.removesuffix(" \\").partition("==") for line in lines)
    return {name: version for name, equals, version in pairs if equals}


def _lines(pins: dict[str, str]) -> dict[str, str]:
    return {name: f"{name}=={version}\n" for name, version in pins.items()}


def _write(file: Path, header: str, lines: dict[str, str]) -> None:
    file.write_text(header + "".join(text for _, text in sorted(lines.items())))
    print(f"Wrote {file.relative_to(ROOT)}: {len(lines)} distributions")


def _create(folder: Path) -> Path:
    """A new virtual environment with pip; its Python."""
    python = folder / "bin" / "python"
    made = _call([sys.executable, "-m", "venv", str(folder)])
    if made.returncode:
        # Debian ships `venv` without `ensurepip`; the machine's own pip can install pip there.
        _remove(folder)
        _call([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        if _call([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "pip"]).returncode:
            raise Failure(
                f"{made.stdout}{sys.executable} cannot make virtual environments. On Debian and Ubuntu, "
                f"`apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv` adds what it lacks."
            )
    return python


def _install(python: Path, arguments: list[str]) -> None:
    """Run pip install; print a few lines about its progress, and write its hundreds to a log."""
    log = ENVIRONMENT / "setup.log"
    command = [str(python), "-m", "pip", "install", "--no-input", "--progress-bar", "off", *arguments]
    collected, ended = 0, threading.Event()
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            close_fds=False,
            env=_clean(),
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            file.write(line)
            collected += line.startswith(("Collecting ", "Processing "))
            if line.startswith(("Collecting ", "Processing ")) and collected % 25 == 0:
                print(f"  {collected} packages collected", flush=True)
            elif line.startswith("Installing collected packages"):
                number = line.count(",") + 1
                print(f"  copying {number} into .venv", flush=True)
                threading.Thread(target=_tell_copied, args=(number, ended), daemon=True).start()
    ended.set()
    if pip.returncode:
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-25:])
        raise Failure(f"{tail}pip failed (its whole output is in {log}). Repeat the command to start over.")


def _tell_copied(number: int, ended: threading.Event) -> None:
    """Print now and then how many packages are in `.venv`, until all are."""
    while not ended.wait(15):
        there = len(list(ENVIRONMENT.glob("lib/python*/site-packages/*.dist-info")))
        print(f"  {min(there, number)} of {number} copied", flush=True)  # pip itself is there too


def _pip(python: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return _call([str(python), "-m", "pip", "--disable-pip-version-check", *arguments])


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
    with (ROOT / "pyproject.toml").open() as file:
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
    try:
        match arguments:
            case ["setup"]:
                setup()
            case ["lock"] | ["lock", "--upgrade"]:
                lock(upgrade="--upgrade" in arguments)
            case ["hashes"]:
                hashes(upgrade=False)
            case _:
                raise Failure("usage: environment.py setup | lock [--upgrade] | hashes")
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
