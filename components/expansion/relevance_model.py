"""Expansions without a language model, sampled from the documents that the query retrieves.

A relevance model is a distribution over the terms of documents that are assumed to be relevant, here the first of the
query's ranking: RM3's (Abdul-Jaleel et al., 2004) or Rocchio's. RM3 adds the best terms to the query; here several
expansions are sampled from the model, so that a query reranker can choose. The other part of RM3's mixture, the query
itself, comes before each expansion.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import regex
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data.sentences import sentences

_WORD = regex.compile(r"[\p{L}\p{N}\p{M}]{2,20}")


class RelevanceConfig(Config):
    """Settings of sampling expansions from the documents that a query retrieves (feedback documents)."""

    draws: Literal["terms", "sentence", "title"] = "terms"
    """Content of an expansion: terms of the relevance model, a sentence of a feedback document, or its title."""
    model: Literal["rm3", "rocchio"] = "rm3"
    """Weights of terms. `rm3`: a term's share of a document's terms, averaged over the documents by their scores.
    `rocchio`: the mean of the documents' tf·idf vectors of length 1."""
    number: int = Field(20, ge=1)
    """Number of expansions for each query, before duplicates are removed. The first is the most likely one, the others
    are sampled."""
    documents: int = Field(10, ge=1)
    """Number of feedback documents, which are the first of the query's ranking."""
    pool: int = Field(50, ge=1)
    """Number of terms with the highest weights that terms are sampled from."""
    terms: int = Field(5, ge=1)
    """Number of terms in an expansion. They are sampled without replacement."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of sampling. Probabilities are proportional to weights to the power of 1 / temperature, so a low
    temperature prefers the likeliest."""
    common: float = Field(0.1, gt=0, le=1)
    """Terms that occur in more than this share of the collection's documents are left out."""


class Document(NamedTuple):
    """A feedback document."""

    title: str
    text: str
    score: float
    """Its score in the ranking, above 0."""


class Frequencies(NamedTuple):
    """Document frequencies of terms."""

    documents: int
    counts: Mapping[str, int]

    def rare(self, term: str, common: float) -> bool:
        """Check whether a term occurs in at most the share `common` of the documents."""
        return self.counts.get(term, 0) <= common * self.documents

    def idf(self, term: str) -> float:
        """ln((N + 1) / (df + 1)): 0 for a term that all documents have. One that a single document has is counted as
        one that none has: `frequencies` leaves these out, which are most."""
        return float(np.log((self.documents + 1) / (self.counts.get(term, 0) + 1)))


def words(text: str) -> list[str]:
    """Split a text into terms: runs of 2 to 20 letters, digits and marks in lower case. A longer run is cut. Without
    white space between words, as in Chinese, a run is no word. Use `draws: sentence` or `title` there.
    """
    return _WORD.findall(text.lower())


def frequencies(texts: Iterable[str]) -> Frequencies:
    """Count the documents that have each term, without terms that occur in a single text."""
    counts: Counter[str] = Counter()
    number = 0
    for text in texts:
        counts.update(set(words(text)))
        number += 1
    return Frequencies(number, {term: count for term, count in counts.items() if count > 1})


def term_weights(
    documents: Sequence[Document], frequencies: Frequencies, config: RelevanceConfig, *, without: Iterable[str] = ()
) -> dict[str, float]:
    """Weigh each term of the feedback documents, except the terms in `without` and those that are too common.

    RM3: `sum_d P(w | d) s_d / sum_d s_d`, where P(w | d) is the share of w among the document's terms and s_d its
    score. Rocchio: `1/|D| sum_d v_d`, where v_d is the document's tf·idf vector of length 1.
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
    rng: Callable[[int], np.random.Generator],
) -> list[str]:
    """Sample a query's expansions, the most likely first. The list is empty if its documents have nothing to add.

    `rng` maps the number of an expansion to its random generator.
    """
    if not documents:
        return []
    weights = term_weights(documents, frequencies, config, without=words(question))
    if config.draws == "terms":
        ranked = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[: config.pool]
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
    sampled = [" ".join(texts[:count])]
    for number in range(2, config.number + 1):
        # The largest logits after adding Gumbel noise are a sample without replacement.
        noisy = logits + rng(number).gumbel(size=len(logits))
        sampled.append(" ".join(texts[i] for i in np.argsort(-noisy, kind="stable")[:count]))
    return sampled


def sentence_weights(documents: Sequence[Document], terms: Mapping[str, float]) -> dict[str, float]:
    """Weigh each sentence by the mean weight of its terms times its document's share of the scores. Sentences of
    weight 0 are left out.
    """
    weights: dict[str, float] = {}
    for document, share in zip(documents, _shares(documents), strict=True):
        for sentence in sentences(document.text):
            inside = words(sentence)
            weight = share * sum(terms.get(term, 0.0) for term in inside) / max(1, len(inside))
            if weight > 0:
                weights[sentence] = max(weight, weights.get(sentence, 0.0))
    return weights


def title_weights(documents: Sequence[Document]) -> dict[str, float]:
    """Weigh each title by its documents' share of the scores."""
    weights: defaultdict[str, float] = defaultdict(float)
    for document, share in zip(documents, _shares(documents), strict=True):
        if document.title:
            weights[document.title] += share
    return dict(weights)
