"""Matching of answers in texts by DPR's rules (Karpukhin et al., 2020). AR2 evaluates NQ and TriviaQA with them.

In mode `tokens`, an answer matches if its tokens occur consecutively among the text's tokens. Both are in Unicode's
decomposed form (NFD) and in lower case. A token is a run of letters, digits and marks, or any other single character
that is not white space. In mode `regex`, each answer is a regular expression, as in CuratedTREC. It is searched in the
decomposed text, ignoring case.

For speed, a text is never split into all its tokens. Most documents do not contain the longest token of an answer, and
then nothing else is compared.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal

import regex

from sparring.components.config import UserError

Mode = Literal["tokens", "regex"]

SECONDS = 60
"""Maximum time for the search of a pattern in a text."""

# A search that starts inside a word skips the rest of the word.
_TOKEN = regex.compile(r"(?<![\p{L}\p{N}\p{M}])[\p{L}\p{N}\p{M}]+|[^\p{L}\p{N}\p{M}\p{Z}\p{C}]")


def normalize(text: str, mode: Mode = "tokens") -> str:
    """Convert a text to the form that a matcher expects. Keep the result if more than one question needs it."""
    text = text if text.isascii() else unicodedata.normalize("NFD", text)
    return text if mode == "regex" else _lower(text)


def matcher(answers: Sequence[str], mode: Mode = "tokens") -> Callable[[str], bool]:
    """Return a function that checks whether a normalized text contains any of the answers.

    An answer without tokens matches no text. In mode `regex`, raise UserError if an answer is not a valid expression.

    >>> contains = matcher(["New York"])
    >>> contains(normalize("Born in new york.")), contains(normalize("New Yorkers"))
    (True, False)
    """
    if mode == "regex":
        patterns = [_pattern(answer) for answer in answers if answer]
        return lambda text: any(_searched(pattern, text) for pattern in patterns)
    grouped: dict[str, list[list[str]]] = {}
    for answer in dict.fromkeys(answers):
        if tokens := _TOKEN.findall(normalize(answer)):
            grouped.setdefault(max(tokens, key=len), []).append(tokens)
    by_longest = list(grouped.items())

    def contains_any(text: str) -> bool:
        for longest, group in by_longest:  # a loop: `any` over a generator takes half as much time again
            if longest in text and any(_contains(answer, text) for answer in group):
                return True
        return False

    return contains_any


def _contains(answer: list[str], text: str) -> bool:
    """Check whether an answer's tokens occur one after another in a normalized text."""
    if not all(token in text for token in answer):
        return False
    start = -1
    while (start := text.find(answer[0], start + 1)) >= 0:
        end = start
        for expected in answer:
            token = _TOKEN.search(text, end)
            if token is None or token.group() != expected:
                break
            end = token.end()
        else:
            return True
    return False


def _lower(text: str) -> str:
    """Convert each token to lower case separately, because a Greek sigma's lower case depends on its neighbours."""
    return _TOKEN.sub(lambda token: token.group().lower(), text) if "\u03a3" in text else text.lower()


def _searched(pattern: regex.Pattern[str], text: str) -> bool:
    try:
        return pattern.search(text, timeout=SECONDS) is not None
    except TimeoutError:
        raise UserError(
            f"the answer {pattern.pattern!r} takes more than {SECONDS} s to search in a single text. Nested "
            "repetitions such as (a+)+ are slow. Write it without them."
        ) from None


def _pattern(answer: str) -> regex.Pattern[str]:
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), regex.IGNORECASE | regex.MULTILINE)
    except regex.error as error:
        raise UserError(f"the answer {answer!r} is not a regular expression: {error}.") from None
