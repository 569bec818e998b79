"""How the program is called, where it finds configs (in the repository's folder, and as `sparring` in any), and what
it never says."""

import os
import re
import sys
from pathlib import Path

from sparring.workflows import ROOT

NAME = "sparring"
"""The command that set-up installs (`cluster/environment.py`)."""
CALLED_AS = "SPARRING_CALLED_AS"
"""What a job has of the command that sent it."""

EXPERIMENT_KEYS = ("experiment", "models_from", "start_from")
"""Keys of configs that name another experiment's file."""
SENT = "sent"
"""In a job's folder, the experiments' files that are not of the repository."""


def program() -> str:
    """What the user has called, for messages; in a job, what has sent it."""
    if sent := os.environ.get(CALLED_AS):
        return sent
    called = Path(sys.argv[0])
    if called.name == NAME:
        return NAME
    return f"python -m {NAME if called.parent.name == NAME else 'workflows'}"


def located(path: Path, referrer: Path | None = None) -> Path:
    """Find a config file where the user is, next to the config that names it (`referrer`), or in the repository.

    Folders of the repository's configs count too: `configs/demo.yaml` and `configs/papers` work in any folder.
    """
    if path.exists():
        return path
    if path.parts[:1] == ("configs",) and (ROOT / path).is_dir():  # a folder of them
        return ROOT / path
    folders = [ROOT] if referrer is None else [referrer.parent, ROOT]
    return next((folder / path for folder in folders if (folder / path).is_file()), path)


def without_passwords(text: str) -> str:
    """A message without the user and password of any URL in it: other packages put the URL that they asked, which may
    come from an environment variable, into their errors.

    >>> without_passwords("no answer from https://me:swordfish@example.org:9/a")
    'no answer from https://***@example.org:9/a'
    """
    return re.sub(r"(?<=://)[^/?#\s\"'<>]*@", "***@", text)
