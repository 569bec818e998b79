"""How right a written answer is: exact match and F1 as SQuAD's official script has them (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and more than one space in a row, in that order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(written: str, answer: str) -> float:
    """1 where both are normalised to the same text."""
    return float(normalised(written) == normalised(answer))


def f1(written: str, answer: str) -> float:
    """The harmonic mean of precision and recall of the normalised texts' words, as bags; 0 where they share none."""
    ours, theirs = normalised(written).split(), normalised(answer).split()
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


MEASURES: dict[str, Callable[[str, str], float]] = {"EM": exact_match, "F1": f1}


def best(measure: Callable[[str, str], float], written: str, answers: Sequence[str]) -> float:
    """The highest over the right answers; 0 without any."""
    return max((measure(written, answer) for answer in answers), default=0.0)
