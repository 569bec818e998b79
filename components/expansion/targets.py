"""What a generator is trained to write: an answer, a sentence with an answer, or a title (GAR, Mao et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from sparring.components.config import Config
from sparring.components.data.answers import Mode, matcher, normalize
from sparring.components.data.sentences import sentences

Kind = Literal["answer", "sentence", "title"]

BETWEEN = " *** "
"""What stands between several answers or titles in one target."""
MOST_TITLES = 10
"""In one target."""


class TargetConfig(Config):
    """How a generator's targets are taken from a collection."""

    kind: Kind = "sentence"
    """`answer`: the query's answers. `sentence`: the first sentence with an answer, in the first document that it is
    taken from. `title`: the titles of such documents."""
    several: Literal["joined", "first"] = "joined"
    """Of several answers, or different titles: `joined` writes all of them as one text, ` *** ` between them, of titles
    the first 10. `first` writes the first alone, as the authors of GAR say of titles. Released texts are joined: of
    Castorini's GAR-T5 for NQ 79 % of the titles and 11 % of the answers hold several, 11 at most; and GAR's public code
    leaves 40 tokens for NQ's answers (10 where it writes the first alone) and 64 for titles. A sentence is always one.
    """
    documents: Literal["answering", "judged"] = "answering"
    """The documents of sentences and titles. `answering`: those of the ranking with an answer, best first, as for GAR's
    authors. `judged`: the relevant ones in the order of the judgements, for collections without answers; without an
    answer in it, a document's first sentence is taken."""


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
