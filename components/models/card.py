"""Readers of training data, licence and languages in a model's card, the README.md next to its weights.

`huggingface_hub.ModelCard` would only replace the parsing of the YAML block. It raises an error for a damaged card,
logs a warning for a card without metadata, and does not read tables.
"""

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
"""Two-letter codes (ISO 639) of language names that occur in cards."""
_METADATA = re.compile(r"\A---\n(.*?)\n---\n", re.S)
_TABLE = re.compile(r"^\| *Datasets? *\|.*\n((?:\|.*\n?)+)", re.M)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def datasets(model: str) -> list[str]:
    """Read the names of a model's training data from its card. The list is empty if the card names none.

    The model must be a local folder or an installed package. A table of data sets in the text is more complete than the
    ids in the metadata, so the ids are used only if there is no table.
    """
    text = _text(model)
    ids = _metadata(text).get("datasets")
    ids = [ids] if isinstance(ids, str) else ids
    return _in_table(text) or ([name for name in ids if isinstance(name, str)] if isinstance(ids, list) else [])


def licence(model: str) -> str | None:
    """Read the licence of a local model from its card's metadata. Return None if the card names none."""
    name = _metadata(_text(model)).get("license")
    return name if isinstance(name, str) else None


def languages(model: str) -> set[str]:
    """Read the language codes of a local model from its card's metadata.

    The set is empty if the card names no language or calls the model multilingual.
    """
    names = _metadata(_text(model)).get("language")
    names = ["no" if name is False else name for name in (names if isinstance(names, list) else [names])]  # YAML's no
    codes = {name.lower() for name in names if isinstance(name, str)}
    if codes & {"multilingual", "mul"}:
        return set()
    return {LONG_CODES.get(code, re.split("[-_]", code)[0]) for code in codes} - {"code"}


def _text(model: str) -> str:
    """Read the card of a local model. Return "" if there is none, or if it is not UTF-8."""
    try:
        return (Path(locate_model(model)) / CARD).read_text(encoding="utf-8")
    except (UserError, OSError, UnicodeDecodeError):
        return ""


def _in_table(text: str) -> list[str]:
    """List the names in the first column of a table with the heading `Dataset`.

    The names in a cell are its links, or else its text. Rows in bold type are totals and are skipped.
    """
    table = _TABLE.search(text)
    cells = [row.split("|")[1].strip() for row in table[1].splitlines()] if table else []
    cells = [cell for cell in cells if cell.strip("-: ") and not cell.startswith("**")]
    return list(dict.fromkeys(name for cell in cells for name in _LINK.findall(cell) or [cell]))


def _metadata(text: str) -> dict[str, Any]:
    """Parse the YAML between the first two lines of dashes, as model hubs do."""
    block = _METADATA.match(text)
    try:
        metadata = yaml.safe_load(block[1]) if block else None
    except yaml.YAMLError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
