"""Unicode forms of ids. Ids are compared character by character, but `é` is one character in NFC and two in NFD."""

import unicodedata
from collections.abc import Callable
from typing import Literal

Form = Literal["NFC"]
HOW = "Write `ids: NFC` under `data` to read all ids in one form."


def in_form(form: Form | None, name: str) -> str:
    """Convert an id to a Unicode form. If the form is None, return it unchanged."""
    return name if form is None or name.isascii() else unicodedata.normalize(form, name)


def other_form(name: str, exists: Callable[[str], bool]) -> str:
    """Advise on a missing id that exists in a different Unicode form. Return "" if it does not."""
    for form in ("NFC", "NFD"):
        variant = unicodedata.normalize(form, name)
        if variant != name and exists(variant):
            return f"it exists in a different Unicode form, {form}. {HOW}"
    return ""
