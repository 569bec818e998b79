"""Does a text bear an answer? As DPR decides it (Karpukhin et al. 2020), whose measure AR2 reports on NQ and TriviaQA.

`tokens`: the answer's tokens stand one after another among the text's, both in Unicode's decomposed form (NFD) and
lower case; a token is a run of letters, digits and marks, or any other character that is no space. `regex`: each
answer is a pattern, as CuratedTREC has them, searched in the decomposed text without regard to case.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

import regex

from components.config import UserError

Mode = Literal["tokens", "regex"]

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_BETWEEN = "\x1f"  # a control character, and so never part of a token


def prepared(text: str, mode: Mode = "tokens") -> str:
    """A text in the form that a matcher looks at; worth keeping where many questions ask about it."""
    text = unicodedata.normalize("NFD", text)
    return text if mode == "regex" else _joined(text)


def matcher(answers: Sequence[str], mode: Mode = "tokens") -> Callable[[str], bool]:
    """Whether a prepared text bears any of some answers. An answer without a token is in no text.

    UserError where a pattern is none.
    """
    if mode == "regex":
        patterns = [_pattern(answer) for answer in answers if answer]
        return lambda text: any(pattern.search(text) for pattern in patterns)
    wanted = [_joined(unicodedata.normalize("NFD", answer)) for answer in answers]
    wanted = [answer for answer in dict.fromkeys(wanted) if answer != _BETWEEN]
    return lambda text: any(answer in text for answer in wanted)


def _joined(text: str) -> str:
    """The tokens with a separator before, between and after them: a run of tokens is then a substring."""
    return _BETWEEN + "".join(token.lower() + _BETWEEN for token in _TOKEN.findall(text))


def _pattern(answer: str) -> regex.Pattern[str]:
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), regex.IGNORECASE | regex.MULTILINE)
    except regex.error as error:
        raise UserError(f"answer {answer!r}: no regular expression: {error}") from None
