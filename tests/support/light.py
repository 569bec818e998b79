"""A command in a process of its own, which may load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

from tests.support.tiny import ROOT, Place

LIGHT = """
import sys
from sparring.workflows.command_line import main
status = main(sys.argv[1:])
heavy = {"torch", "transformers", "ray", "faiss", "jnius", "matplotlib"}
print("heavy:", sorted(heavy & sys.modules.keys()))
sys.exit(status)
"""


def light(place: Place, *words: str) -> str:
    """The output of a command in a process of its own, which loads nothing heavy and says nothing else."""
    command = [sys.executable, "-W", "error", "-c", LIGHT, *place.words(*words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("heavy: []\n")
    return done.stdout
