"""Names of the program, places of configs, and messages without passwords."""

import os
import re
import sys
from pathlib import Path

from sparring.workflows import ROOT

NAME = "sparring"
"""Command that the installation provides (`cluster/environment.py`)."""
CALLED_AS = "SPARRING_CALLED_AS"
"""Environment variable of a job with the command that sent it."""

EXPERIMENT_KEYS = ("experiment", "models_from", "start_from")
"""Keys of configs that name another experiment's file."""
SENT = "sent"
"""Folder of a job with the experiments' files that are not in the repository."""


def program() -> str:
    """Return the command that the user has called, for messages. In a job it is the command that sent the job."""
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
    if path.parts[:1] == ("configs",) and (ROOT / path).is_dir():  # a folder of configs
        return ROOT / path
    folders = [ROOT] if referrer is None else [referrer.parent, ROOT]
    return next((folder / path for folder in folders if (folder / path).is_file()), path)


def without_passwords(text: str) -> str:
    """Remove the user and password of any URL in a message. Other packages quote the URL that they requested, which may
    come from an environment variable.

    >>> without_passwords("no answer from https://me:swordfish@example.org:9/a")
    'no answer from https://***@example.org:9/a'
    """
    return re.sub(r"(?<=://)[^/?#\s\"'<>]*@", "***@", text)
