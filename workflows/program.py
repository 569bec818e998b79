"""How the program is called, and where it finds configs: in the repository's folder, and as `sparring` in any."""

import sys
from pathlib import Path

from workflows import ROOT

NAME = "sparring"
"""The command that set-up installs (`cluster/environment.py`)."""


def program() -> str:
    """What the user has called, for messages."""
    return NAME if Path(sys.argv[0]).name == NAME else "python -m workflows"


def located(path: Path) -> Path:
    """A config file where the user is, or one of the repository's: `configs/demo.yaml` is found from any folder."""
    return ROOT / path if not path.exists() and (ROOT / path).is_file() else path
