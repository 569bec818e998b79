"""Splitting of texts into sentences."""

import regex

_END = regex.compile(r"(?<=[.!?][\"')\]]?)\s+(?=\S)")


def sentences(text: str) -> list[str]:
    """Split a text after full stops, question marks and exclamation marks. A quote or bracket may follow the mark.

    Full stops of abbreviations split too.

    >>> sentences('It rains. "Really?" Yes!')
    ['It rains.', '"Really?"', 'Yes!']
    """
    return [sentence for sentence in _END.split(text.strip()) if sentence]
