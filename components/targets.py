"""What a generator of expansions should write: an answer, a sentence that bears it, a title (GAR, Mao et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import regex

from components.answers import Mode, matcher, prepared
from components.config import Config

_END = regex.compile(r"(?<=[.!?][\"')\]]?)\s+(?=\S)")

Kind = Literal["answer", "sentence", "title"]


class TargetConfig(Config):
    """How targets are made of a collection."""

    kind: Kind = "sentence"
    """`answer`: the query's first answer. `sentence`: the first sentence that bears an answer, of the document that the
    target comes from. `title`: that document's title."""
    documents: Literal["answering", "judged"] = "answering"
    """Where a sentence or title comes from. `answering`: the first document of the ranking that bears an answer, as
    GAR's authors have it. `judged`: the first relevant document, for collections without answers; its sentence is the
    first that bears an answer or, where none does, its first."""


def sentences(text: str) -> list[str]:
    """A text cut after full stops, question and exclamation marks."""
    return [sentence for sentence in _END.split(text.strip()) if sentence]


def sentence(text: str, answers: Sequence[str], mode: Mode = "tokens") -> str:
    """The first sentence that bears an answer; the first of all where an answer stands across two or nowhere."""
    parts, bears = sentences(text), matcher(answers, mode)
    return next((part for part in parts if bears(prepared(part, mode))), parts[0] if parts else "")
