"""Unicode forms of ids: `é` is one character in NFC and two in NFD, and ids are compared character by character."""

import unicodedata
from collections.abc import Callable
from typing import Literal

Form = Literal["NFC"]
HOW = "Write `ids: NFC` under `data` to read all ids in one form."


def in_form(form: Form | None, name: str) -> str:
    """Return an id in a form; as it is if that is None."""
    return name if form is None or name.isascii() else unicodedata.normalize(form, name)


def other_form(name: str, exists: Callable[[str], bool]) -> str:
    """Say what to do about a missing id that exists in another form; else return an empty text."""
    for form in ("NFC", "NFD"):
        variant = unicodedata.normalize(form, name)
        if variant != name and exists(variant):
            return f"it is there in another Unicode form, {form}. {HOW}"
    return ""
