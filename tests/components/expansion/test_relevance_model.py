"""Expansions from what a query finds: weights by hand, draws, and what stays the same."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import pytest

from sparring.components.expansion.relevance_model import (
    Document,
    Frequencies,
    RelevanceConfig,
    expansions,
    frequencies,
    sentence_weights,
    term_weights,
    title_weights,
)
from sparring.components.rng import keyed_rng

DOCUMENTS = [
    Document("Oil", "Oil rose. The embargo of October began.", 3.0),
    Document("Embargo", "An embargo is a ban! Nothing more?", 1.0),
]
RARE = Frequencies(100, {"the": 60, "an": 50, "is": 40, "of": 80, "oil": 3})


def drawn(question: str = "oil crisis", documents: list[Document] = DOCUMENTS, **config: Any) -> list[str]:
    rng_of = partial(keyed_rng, 1, "expand", "q")
    return expansions(question, documents, RARE, RelevanceConfig(**config), rng_of)


def test_rm3s_weights_by_hand() -> None:
    """Seven terms and eight, with the title; the first document has three quarters of the scores."""
    weights = term_weights(DOCUMENTS, RARE, RelevanceConfig())
    assert weights["october"] == pytest.approx(0.75 * 1 / 8)
    assert weights["embargo"] == pytest.approx(0.75 * 1 / 8 + 0.25 * 2 / 7)
    assert weights["oil"] == pytest.approx(0.75 * 2 / 8)
    assert not {"the", "of", "is"} & weights.keys()
    assert "oil" not in term_weights(DOCUMENTS, RARE, RelevanceConfig(), without=["oil"])
    everything = term_weights(DOCUMENTS, Frequencies(1, {}), RelevanceConfig(common=1.0))
    assert sum(everything.values()) == pytest.approx(1)  # a distribution


def test_rocchios_weights_by_hand() -> None:
    weights = term_weights(DOCUMENTS, RARE, RelevanceConfig(model="rocchio"))
    idf = {term: math.log(101 / (count + 1)) for term, count in RARE.counts.items()}
    first = {
        "oil": 2 * idf["oil"],
        "rose": math.log(101),
        "the": idf["the"],
        "embargo": math.log(101),
        "of": idf["of"],
        "october": math.log(101),
        "began": math.log(101),
    }
    norm = math.sqrt(sum(value**2 for value in first.values()))
    assert weights["october"] == pytest.approx(math.log(101) / norm / 2)
    assert weights["oil"] == pytest.approx(first["oil"] / norm / 2)


def test_the_first_is_the_likeliest() -> None:
    result = drawn(terms=2, number=5)
    weights = term_weights(DOCUMENTS, RARE, RelevanceConfig(), without=["oil"])
    best = sorted(weights, key=lambda term: (-weights[term], term))
    assert result[0] == " ".join(best[:2])
    assert len(result) == 5
    assert all(len(set(text.split())) == 2 for text in result)
    assert len(set(result)) > 1
    assert not any("oil" in text.split() for text in result)  # it is in the question


def test_draws_are_by_weight() -> None:
    """Of one term at a time: as often as its weight says, or more often the likeliest where it is cold."""
    result = Counter(drawn(terms=1, number=4_001)[1:])
    weights = term_weights(DOCUMENTS, RARE, RelevanceConfig(), without=["oil", "crisis"])
    total = sum(weights.values())
    for term, weight in weights.items():
        share = weight / total
        assert result[term] / 4_000 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 4_000))
    cold = Counter(drawn(terms=1, number=401, temperature=0.2)[1:])
    share = weights["embargo"] ** 5 / sum(weight**5 for weight in weights.values())
    assert cold["embargo"] / 400 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 400))
    assert share > 2 * result["embargo"] / 4_000
    assert set(drawn(terms=1, number=200, pool=2)) == {"embargo", "began"}


def test_draws_depend_on_their_number_alone() -> None:
    assert drawn(number=4) == drawn(number=9)[:4]


def test_sentences_and_titles() -> None:
    terms = {"embargo": 0.4, "october": 0.2}
    sentences = sentence_weights(DOCUMENTS, terms)
    assert set(sentences) == {"The embargo of October began.", "An embargo is a ban!"}
    assert sentences["The embargo of October began."] == pytest.approx(0.75 * 0.6 / 5)
    assert title_weights([*DOCUMENTS, Document("Oil", "", 4.0)]) == pytest.approx({"Oil": 7 / 8, "Embargo": 1 / 8})
    assert drawn(draws="sentence", number=1)[0] in sentences
    assert drawn(draws="title", number=1) == ["Oil"]
    assert set(drawn(draws="title", number=40)) == {"Oil", "Embargo"}


def test_what_finds_nothing_is_not_expanded() -> None:
    assert drawn(documents=[]) == []
    assert drawn("embargo october", [Document("", "Embargo, October.", 1.0)]) == []
    assert drawn(documents=[Document("", "no title here", 1.0)], draws="title") == []


def test_terms_are_counted_once_a_document() -> None:
    counted = frequencies(["sea sea land", "Sea!", "land", "sky"])
    assert counted.documents == 4
    assert counted.counts == {"sea": 2, "land": 2}
    assert counted.rare("sky", 0.01)
    assert not counted.rare("sea", 0.4)
