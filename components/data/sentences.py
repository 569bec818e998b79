"""Cutting a text into sentences."""

import regex

_END = regex.compile(r"(?<=[.!?][\"')\]]?)\s+(?=\S)")


def sentences(text: str) -> list[str]:
    """Cut a text after full stops, question and exclamation marks, which may stand before a quote or bracket.

    An abbreviation's full stop cuts too.

    >>> sentences('It rains. "Really?" Yes!')
    ['It rains.', '"Really?"', 'Yes!']
    """
    return [sentence for sentence in _END.split(text.strip()) if sentence]
