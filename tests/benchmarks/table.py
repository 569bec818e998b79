"""One table a benchmark, printed and kept in RESULTS.md under its title."""

import datetime
import os
import re
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from sparring.components.compute.precision import has_bf16

SETTINGS = "SPARRING_BENCH_"
RESULTS = Path(os.environ.get("SPARRING_TEST_RESULTS", Path(__file__).parent / "RESULTS.md"))


def machine(root: Path, *peers: str) -> str:
    """The machine, the versions, also those of the peers' distributions, the commit and the day."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "ray", "transformers", *peers))
    cores = len(os.sched_getaffinity(0))
    return (
        f"{gpu() and f'{gpu()}; '}{cores} cores of {cpu()}; {versions}; "
        f"commit {commit.stdout.strip()}; {datetime.date.today().isoformat()}"
    )


def gpu() -> str:
    """The GPU that models run on here; empty for none."""
    if os.environ.get(f"{SETTINGS}DEVICE") == "cpu" or not torch.cuda.is_available():
        return ""
    return torch.cuda.get_device_name()


def cpu() -> str:
    """What the machine calls its processor, and whether it has no products in bf16, which is as slow as another one."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = model.group(1).replace("(R)", "") if model else "an unknown processor"
    return name if has_bf16("cpu") else f"{name} without bf16"


def write(title: str, command: str, head: list[str], rows: list[list[str]], lines: list[str]) -> None:
    """Print a table and put it in the place of the last one with the same title that the same processor made."""
    title += f" ({gpu() or cpu()})"
    set_for_it = sorted((name, value) for name, value in os.environ.items() if name.startswith(SETTINGS))
    command = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in set_for_it), command])
    table = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    section = "\n".join([f"## {title}", "", f"`{command}`", "", *(f"{line}  " for line in lines), "", *table, ""])
    print("\n" + section)
    text = RESULTS.read_text() if RESULTS.exists() else "# Benchmarks\n"
    top, *sections = re.split(r"\n(?=## )", text.rstrip() + "\n")
    kept = [part.rstrip() + "\n" for part in sections if not part.startswith(f"## {title}\n")]
    RESULTS.write_text("\n".join([top.rstrip() + "\n", *sorted([*kept, section])]))
