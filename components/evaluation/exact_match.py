"""Exact match and F1 of a generated answer, as in SQuAD's official script (Rajpurkar et al., 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Convert a text to lower case, then drop ASCII punctuation, then articles, then surplus spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(written: str, answer: str) -> float:
    """Return 1 if both texts are equal after normalisation, else 0."""
    return float(normalised(written) == normalised(answer))


def f1(written: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall over the words (as bags) of the normalised texts.

    The value is 0 if no word is shared.
    """
    written_words, answer_words = normalised(written).split(), normalised(answer).split()
    common = (Counter(written_words) & Counter(answer_words)).total()
    return 2 * common / (len(written_words) + len(answer_words)) if common else 0.0


MEASURES: dict[str, Callable[[str, str], float]] = {"EM": exact_match, "F1": f1}


def best_over_answers(measure: Callable[[str, str], float], written: str, answers: Sequence[str]) -> float:
    """Return the highest value of the measure over the right answers, or 0 without answers."""
    return max((measure(written, answer) for answer in answers), default=0.0)
