"""What a model's card, the README.md beside its weights, says of its training data and its licence."""

import re
from pathlib import Path
from typing import Any

import yaml

from sparring.components.config import UserError
from sparring.components.models.configs import locate_model

CARD = "README.md"
LONG_CODES = {
    "eng": "en",
    "english": "en",
    "deu": "de",
    "german": "de",
    "fra": "fr",
    "french": "fr",
    "zho": "zh",
    "chinese": "zh",
    "jpn": "ja",
    "japanese": "ja",
    "spa": "es",
    "spanish": "es",
}
"""Other ways in which cards name languages than ISO 639's codes of two letters."""
_METADATA = re.compile(r"\A---\n(.*?)\n---\n", re.S)
_TABLE = re.compile(r"^\| *Datasets? *\|.*\n((?:\|.*\n?)+)", re.M)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def datasets(model: str) -> list[str]:
    """The names of the data sets that a model was trained on, as its card has them; none where nothing says so.

    Only a model that lies here, in a directory or an installed package, is looked at. A table of data sets in the
    card's text is more complete, and easier to read, than the ids in the card's metadata, which serve where there is
    none.
    """
    text = _text(model)
    named = _metadata(text).get("datasets")
    named = [named] if isinstance(named, str) else named
    listed = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return _in_table(text) or listed


def licence(model: str) -> str | None:
    """The licence of a model that lies here, as its card's metadata has it; None where nothing says so."""
    named = _metadata(_text(model)).get("license")
    return named if isinstance(named, str) else None


def languages(model: str) -> set[str]:
    """The languages of a model that lies here, by the codes in its card's metadata; none if nothing says so, or if it
    says that there are many."""
    named = _metadata(_text(model)).get("language")
    named = ["no" if code is False else code for code in (named if isinstance(named, list) else [named])]  # YAML's no
    codes = {code.lower() for code in named if isinstance(code, str)}
    if codes & {"multilingual", "mul"}:
        return set()
    return {LONG_CODES.get(code, re.split("[-_]", code)[0]) for code in codes} - {"code"}


def _text(model: str) -> str:
    """The card of a model that lies here; empty where it has none that can be read."""
    try:
        return (Path(locate_model(model)) / CARD).read_text(encoding="utf-8")
    except (UserError, OSError, UnicodeDecodeError):
        return ""


def _in_table(text: str) -> list[str]:
    """The names in the first column of a table with the heading `Dataset`: those of links, or else a cell's text. A
    line in bold type is a sum."""
    table = _TABLE.search(text)
    cells = [row.split("|")[1].strip() for row in table[1].splitlines()] if table else []
    cells = [cell for cell in cells if cell.strip("-: ") and not cell.startswith("**")]
    return list(dict.fromkeys(name for cell in cells for name in _LINK.findall(cell) or [cell]))


def _metadata(text: str) -> dict[str, Any]:
    """The YAML between the first two lines of dashes, as model hubs read it."""
    block = _METADATA.match(text)
    try:
        metadata = yaml.safe_load(block[1]) if block else None
    except yaml.YAMLError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
