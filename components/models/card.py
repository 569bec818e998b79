"""What a model's card, the README.md beside its weights, says of its training data."""

import re
from pathlib import Path

import yaml

from components.config import UserError
from components.models.configs import locate_model

CARD = "README.md"
_METADATA = re.compile(r"\A---\n(.*?)\n---\n", re.S)
_TABLE = re.compile(r"^\| *Datasets? *\|.*\n((?:\|.*\n?)+)", re.M)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def datasets(model: str) -> list[str]:
    """The names of the data sets that a model was trained on, as its card has them; none where nothing says so.

    Only a model that lies here, in a directory or an installed package, is looked at. A table of data sets in the
    card's text is more complete, and easier to read, than the ids in the card's metadata, which serve where there is
    none.
    """
    try:
        text = (Path(locate_model(model)) / CARD).read_text(encoding="utf-8")
    except (UserError, OSError, UnicodeDecodeError):
        return []
    return _in_table(text) or _in_metadata(text)


def _in_table(text: str) -> list[str]:
    """The linked names in the first column of a table with the heading `Dataset`."""
    table = _TABLE.search(text)
    cells = [row.split("|")[1] for row in table[1].splitlines()] if table else []
    return list(dict.fromkeys(name for cell in cells for name in _LINK.findall(cell)))


def _in_metadata(text: str) -> list[str]:
    """The key `datasets` of the YAML between the first two lines of dashes, as model hubs read it."""
    block = _METADATA.match(text)
    try:
        metadata = yaml.safe_load(block[1]) if block else None
    except yaml.YAMLError:
        return []
    named = metadata.get("datasets") if isinstance(metadata, dict) else None
    named = [named] if isinstance(named, str) else named
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
