"""Expansions without a language model: sampled from what the query itself finds.

A relevance model is a distribution over the terms of documents that are taken to be relevant, here the first of the
query's own ranking: of RM3 (Abdul-Jaleel et al. 2004) or of Rocchio. Where RM3 adds the best terms once and for all,
here expansions are drawn from it, so that a query reranker has something to choose from. The other part of RM3's
mixture, the query itself, stands before each expansion.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import regex
from pydantic import Field

from components.config import Config
from components.targets import sentences

_WORD = regex.compile(r"[\p{L}\p{N}\p{M}]{2,20}")


class RelevanceConfig(Config):
    """How expansions are drawn from what a query finds."""

    draws: Literal["terms", "sentence", "title"] = "terms"
    """What an expansion is: terms of the relevance model, a sentence of a feedback document, or its title."""
    model: Literal["rm3", "rocchio"] = "rm3"
    """Weights of terms. `rm3`: the share of a document's terms, documents counting by their scores. `rocchio`: the mean
    over the documents of tf·idf vectors of length 1."""
    number: int = Field(20, ge=1)
    """Expansions a query, before those that say the same are dropped. The first is the most likely one, as greedy
    decoding's; the others are drawn."""
    documents: int = Field(10, ge=1)
    """Feedback documents: the first so many that the query finds."""
    pool: int = Field(50, ge=1)
    """The terms of highest weight that are drawn from."""
    terms: int = Field(5, ge=1)
    """Terms of one expansion, drawn without replacement."""
    temperature: float = Field(1.0, gt=0)
    """Probabilities are weights to the power of 1 / temperature: less keeps to the most likely."""
    common: float = Field(0.1, gt=0, le=1)
    """Terms of more than this share of the collection's documents are left out."""


class Document(NamedTuple):
    """A feedback document."""

    title: str
    text: str
    score: float
    """That of the ranking, above 0."""


class Frequencies(NamedTuple):
    """In how many documents terms occur."""

    documents: int
    counts: Mapping[str, int]

    def rare(self, term: str, common: float) -> bool:
        """Whether no more than a share of the documents have a term."""
        return self.counts.get(term, 0) <= common * self.documents

    def idf(self, term: str) -> float:
        """ln((N + 1) / (df + 1)), 0 for a term of all documents."""
        return float(np.log((self.documents + 1) / (self.counts.get(term, 0) + 1)))


def words(text: str) -> list[str]:
    """The terms of a text: runs of 2 to 20 letters, digits and marks in lower case."""
    return _WORD.findall(text.lower())


def frequencies(texts: Iterable[str]) -> Frequencies:
    """In how many of some texts each term occurs; terms of one text alone are left out."""
    counts: Counter[str] = Counter()
    number = 0
    for text in texts:
        counts.update(set(words(text)))
        number += 1
    return Frequencies(number, {term: count for term, count in counts.items() if count > 1})


def term_weights(
    documents: Sequence[Document], frequencies: Frequencies, config: RelevanceConfig, *, without: Iterable[str] = ()
) -> dict[str, float]:
    """The weight of each term of the feedback documents that is not `without` and not too common.

    RM3's first part: `sum_d P(w | d) s_d / sum_d s_d`, P(w | d) being the share of w among all the document's terms
    and s_d its score. Rocchio's: `1/|D| sum_d v_d`, v_d being the document's tf·idf vector of length 1.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    scores = _shares(documents)
    for document, share in zip(documents, scores, strict=True):
        counts = Counter(words(f"{document.title} {document.text}"))
        if config.model == "rm3":
            total = sum(counts.values())
            parts = {term: share * count / total for term, count in counts.items()}
        else:
            vector = {term: count * frequencies.idf(term) for term, count in counts.items()}
            norm = float(np.sqrt(sum(value**2 for value in vector.values()))) or 1.0
            parts = {term: value / norm / len(documents) for term, value in vector.items()}
        for term, part in parts.items():
            weights[term] += part
    left_out = set(without)
    return {
        term: weight
        for term, weight in weights.items()
        if weight > 0 and term not in left_out and frequencies.rare(term, config.common)
    }


def _shares(documents: Sequence[Document]) -> np.ndarray:
    scores = np.asarray([document.score for document in documents], np.float64)
    return scores / scores.sum()


def expansions(
    question: str,
    documents: Sequence[Document],
    frequencies: Frequencies,
    config: RelevanceConfig,
    generator: Callable[[int], np.random.Generator],
) -> list[str]:
    """A query's expansions, the most likely first; none where its documents have nothing to add.

    `generator` gives the random numbers of each, by its number.
    """
    if not documents:
        return []
    weights = term_weights(documents, frequencies, config, without=words(question))
    if config.draws == "terms":
        ranked = sorted(weights.items(), key=lambda one: (-one[1], one[0]))[: config.pool]
        choices = dict(ranked)
    elif config.draws == "sentence":
        choices = sentence_weights(documents, weights)
    else:
        choices = title_weights(documents)
    if not choices:
        return []
    count = config.terms if config.draws == "terms" else 1
    texts = sorted(choices, key=lambda text: (-choices[text], text))
    logits = np.log([choices[text] for text in texts]) / config.temperature
    found = [" ".join(texts[:count])]
    for number in range(2, config.number + 1):
        # The largest of logits with Gumbel noise are draws without replacement, in their order.
        noisy = logits + generator(number).gumbel(size=len(logits))
        found.append(" ".join(texts[at] for at in np.argsort(-noisy, kind="stable")[:count]))
    return found


def sentence_weights(documents: Sequence[Document], terms: Mapping[str, float]) -> dict[str, float]:
    """For each sentence the mean weight of its terms times its document's share of the scores; those of 0 left out."""
    found: dict[str, float] = {}
    for document, share in zip(documents, _shares(documents), strict=True):
        for sentence in sentences(document.text):
            inside = words(sentence)
            weight = share * sum(terms.get(term, 0.0) for term in inside) / max(1, len(inside))
            if weight > 0:
                found[sentence] = max(weight, found.get(sentence, 0.0))
    return found


def title_weights(documents: Sequence[Document]) -> dict[str, float]:
    """For each title the share of the scores that its documents have."""
    found: defaultdict[str, float] = defaultdict(float)
    for document, share in zip(documents, _shares(documents), strict=True):
        if document.title:
            found[document.title] += share
    return dict(found)
