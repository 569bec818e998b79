"""What a generator is trained to write: an answer, a sentence with an answer, or a title (GAR, Mao et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from components.config import Config
from components.data.answers import Mode, matcher, normalize
from components.data.sentences import sentences

Kind = Literal["answer", "sentence", "title"]


class TargetConfig(Config):
    """How a generator's targets are taken from a collection."""

    kind: Kind = "sentence"
    """`answer`: the query's first answer. `sentence`: the first sentence with an answer, in the target's document.
    `title`: the title of that document."""
    documents: Literal["answering", "judged"] = "answering"
    """The document of a sentence or title. `answering`: the first of the ranking with an answer, as for GAR's authors.
    `judged`: the first relevant document, for collections without answers; without an answer in it, its first sentence
    is taken."""


def sentence(text: str, answers: Sequence[str], mode: Mode = "tokens") -> str:
    """The first sentence that contains an answer; if none does, the first sentence."""
    parts, contains_answer = sentences(text), matcher(answers, mode)
    return next((part for part in parts if contains_answer(normalize(part, mode))), parts[0] if parts else "")
