"""Does a text bear an answer? As DPR decides it (Karpukhin et al. 2020), whose measure AR2 reports on NQ and TriviaQA.

`tokens`: the answer's tokens stand one after another among the text's, both in Unicode's decomposed form (NFD) and
lower case; a token is a run of letters, digits and marks, or any other character that is no space. `regex`: each
answer is a pattern, as CuratedTREC has them, searched in the decomposed text without regard to case.

A text is never cut into all its tokens: where the longest token of an answer does not occur in it, as is so for most
documents, nothing else is looked at.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

import regex

from components.config import UserError

Mode = Literal["tokens", "regex"]

# Begun inside a word, a search goes on to the next token.
_TOKEN = regex.compile(r"(?<![\p{L}\p{N}\p{M}])[\p{L}\p{N}\p{M}]+|[^\p{L}\p{N}\p{M}\p{Z}\p{C}]")


def prepared(text: str, mode: Mode = "tokens") -> str:
    """A text in the form that a matcher looks at; worth keeping where many questions ask about it."""
    text = text if text.isascii() else unicodedata.normalize("NFD", text)
    return text if mode == "regex" else _lowered(text)


def matcher(answers: Sequence[str], mode: Mode = "tokens") -> Callable[[str], bool]:
    """Whether a prepared text bears any of some answers. An answer without a token is in no text.

    UserError where a pattern is none.
    """
    if mode == "regex":
        patterns = [_pattern(answer) for answer in answers if answer]
        return lambda text: any(pattern.search(text) for pattern in patterns)
    wanted: dict[str, list[list[str]]] = {}
    for answer in dict.fromkeys(answers):
        if tokens := _TOKEN.findall(prepared(answer)):
            wanted.setdefault(max(tokens, key=len), []).append(tokens)
    by_longest = list(wanted.items())

    def found(text: str) -> bool:
        for longest, some in by_longest:  # noqa: SIM110  (a generator costs half as much as all else here)
            if longest in text and any(_stands(answer, text) for answer in some):
                return True
        return False

    return found


def _stands(answer: list[str], text: str) -> bool:
    """Whether tokens stand one after another in a prepared text."""
    if not all(token in text for token in answer):
        return False
    at = -1
    while (at := text.find(answer[0], at + 1)) >= 0:
        end = at
        for wanted in answer:
            token = _TOKEN.search(text, end)
            if token is None or token.group() != wanted:
                break
            end = token.end()
        else:
            return True
    return False


def _lowered(text: str) -> str:
    """Lower case as each token has it by itself: Greek's sigma alone is lowered by what stands beside it."""
    return _TOKEN.sub(lambda token: token.group().lower(), text) if "\u03a3" in text else text.lower()


def _pattern(answer: str) -> regex.Pattern[str]:
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), regex.IGNORECASE | regex.MULTILINE)
    except regex.error as error:
        raise UserError(f"answer {answer!r}: no regular expression: {error}") from None
