"""Targets that a generator is trained to write: an answer, a sentence with an answer, or a title (GAR, Mao et al.,
2021)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from sparring.components.config import Config
from sparring.components.data.answers import Mode, matcher, normalize
from sparring.components.data.sentences import sentences

Kind = Literal["answer", "sentence", "title"]

BETWEEN = " *** "
"""Separator of several answers or titles in one target."""
MOST_TITLES = 10
"""Maximum number of titles in one target."""


class TargetConfig(Config):
    """Settings of taking a generator's targets from a collection."""

    kind: Kind = "sentence"
    """Kind of target. `answer`: the query's answers. `sentence`: the first sentence with an answer, in the first
    document that is searched for one. `title`: the titles of such documents."""
    several: Literal["joined", "first"] = "joined"
    """Treatment of several answers or different titles. `joined`: write all answers, or the first 10 titles, as one
    text, with ` *** ` between them. `first`: write the first alone, as the authors of GAR do with titles. Released
    texts are joined: of Castorini's GAR-T5 for NQ 79 % of the titles and 11 % of the answers hold several, 11 at most.
    GAR's public code leaves 40 tokens for NQ's answers (10 if it writes the first alone) and 64 for titles. A sentence
    is always a single one."""
    documents: Literal["answering", "judged"] = "answering"
    """Documents of sentences and titles. `answering`: the documents of the ranking that contain an answer, best first,
    as GAR's authors do. `judged`: the relevant documents in the order of the judgements, for collections without
    answers. If such a document contains no answer, its first sentence is taken."""


def joined(texts: Iterable[str], selection: Literal["joined", "first"], most: int | None = None) -> str:
    """Return the first text, or join the first `most` distinct texts. Empty texts are left out.

    >>> joined(["Oslo", "", "Norway", "Oslo"], "joined")
    'Oslo *** Norway'
    """
    different = list(dict.fromkeys(words for text in texts if (words := " ".join(text.split()))))
    return BETWEEN.join(different[: 1 if selection == "first" else most])


def sentence(text: str, answers: Sequence[str], mode: Mode = "tokens") -> str:
    """Return the first sentence that contains an answer, or the first sentence if none does."""
    parts, contains_answer = sentences(text), matcher(answers, mode)
    return next((part for part in parts if contains_answer(normalize(part, mode))), parts[0] if parts else "")
