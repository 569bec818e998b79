"""Expansion stages against naive loops over known expansions, rankings and predicted ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sparring.components.expansion import relevance_model
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.rng import keyed_rng
from sparring.components.systems.expanding import Expander
from sparring.components.systems.rankings import Ranking
from sparring.components.systems.stages.expansion import ExpansionStage
from tests.support.asgi import documents

QUERIES = ["who won?", "nothing", "where is it"]
GENERATED = {"who won?": ["Oslo", "", "oslo ", "Bergen"], "nothing": [], "where is it": ["in the north", "there"]}
FUSION = {"how": "interleave", "depth": 6}


def ranking(text: str) -> Ranking:
    """BM25's ranking of a text."""
    draw = random.Random(text)
    ids = draw.sample(range(30), 5)
    scores = sorted((float(np.float32(draw.random())) for _ in ids), reverse=True)
    return [(f"d{number:02d}", score) for number, score in zip(ids, scores, strict=True)]


class Searches:
    """A search that keeps what it is asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str], queries: Sequence[int]) -> list[Ranking]:
        self.texts += texts
        for text, query in zip(texts, queries, strict=True):
            assert text.startswith(QUERIES[query].rstrip(" ?"))
        return [ranking(text) for text in texts]


def predicted(candidates: Any, count: int) -> np.ndarray:
    """Predicted ranks: of longer texts lower ones."""
    assert candidates.parts is None
    texts = candidates.documents["text"].to_pylist()
    if candidates.top is not None:
        first = [ranking(text)[0][0] for text in texts[:count]]
        assert [texts[row] for row in candidates.top[:count]] == first  # the documents say their ids
    return np.array([-len(text) for text in texts[:count]], np.float32)


def expanded(**options: Any) -> tuple[list[Ranking], list[str]]:
    """Rankings, and the texts that were searched for."""
    stage = ExpansionStage.model_validate(
        {"of": "lexical", "generate": {}, "generator": "generator", "seed": [7, "terms"], **options}
    )

    def writer(texts: Sequence[str], _: Any, keys: list[tuple[Any, ...]]) -> list[list[str]]:
        assert keys == [(7, "terms", "expand", f"id of {text}") for text in texts]
        return [GENERATED[text] for text in texts]

    search: Any = Searches()
    parts: dict[str, Any] = {"writer": writer, "predictor": predicted if stage.reranker else None}
    expander = Expander(stage, **parts, ids=lambda texts: [f"id of {text}" for text in texts])
    lists = expander(QUERIES, [ranking(text) for text in QUERIES], documents(), search)
    return lists, search.texts


def test_the_first_expansion_is_searched_for() -> None:
    lists, searched = expanded()
    assert searched == ["who won ? Oslo", "where is it ? in the north"]
    assert lists == [ranking("who won ? Oslo"), ranking("nothing"), ranking("where is it ? in the north")]


def test_the_question_is_a_candidate_that_the_generator_did_not_write() -> None:
    lists, searched = expanded(question=True)
    assert searched == ["who won ? Oslo", "nothing ?", "where is it ? in the north"]
    assert lists[1] == ranking("nothing ?")


def test_all_expansions_are_one_query() -> None:
    lists, searched = expanded(choice="concat")
    assert searched == ["who won ? Oslo Bergen", "where is it ? in the north there"]
    assert lists == [ranking(searched[0]), ranking("nothing"), ranking(searched[1])]


@pytest.mark.parametrize("passage", [False, True])
def test_a_query_reranker_chooses(passage: bool) -> None:
    lists, searched = expanded(choice="lowest", reranker={"passage": passage})
    chosen = ["who won ? Bergen", "where is it ? in the north"]
    assert lists == [ranking(chosen[0]), ranking("nothing"), ranking(chosen[1])]
    every = ["who won ? Oslo", "who won ? Bergen", "where is it ? in the north", "where is it ? there"]
    assert searched == (every if passage else chosen)


def test_it_chooses_among_the_first_expansions_alone() -> None:
    lists, _ = expanded(choice="lowest", reranker={}, number=3)  # the fourth is the second that differs
    assert lists[0] == ranking("who won ? Oslo")


@pytest.mark.parametrize("options", [{"choice": "all"}, {"choice": "lowest", "reranker": {}, "most": 2}])
def test_rankings_of_several_expansions_are_fused(options: dict[str, Any]) -> None:
    lists, _ = expanded(**options, fusion=FUSION)
    order = ["Oslo", "Bergen"] if options["choice"] == "all" else ["Bergen", "Oslo"]
    turns = [
        doc_id for pair in zip(*(ranking(f"who won ? {text}") for text in order), strict=True) for doc_id, _ in pair
    ]
    assert [doc_id for doc_id, _ in lists[0]] == list(dict.fromkeys(turns))[:6]
    assert lists[1] == ranking("nothing")


def test_feedback_documents_are_those_of_the_query() -> None:
    """By default its text keys the samples."""
    config = RelevanceConfig(number=3, documents=2, terms=1, common=1.0)
    stage = ExpansionStage(
        of="lexical", relevance=config, frequencies="frequencies.json", seed=[1, "x"], choice="concat"
    )
    counted = relevance_model.frequencies(["title of d01", "d01"])
    search: Any = Searches()
    Expander(stage, frequencies=counted)(QUERIES, [ranking(text) for text in QUERIES], documents(), search)
    for query, text in zip(QUERIES, search.texts, strict=True):
        feedback = [
            relevance_model.Document(f"title of {doc_id}", doc_id, score) for doc_id, score in ranking(query)[:2]
        ]

        def rng(number: int, query: str = query) -> np.random.Generator:
            return keyed_rng(1, "x", "expand", query, number)

        samples = relevance_model.expansions(query, feedback, counted, config, rng)
        assert text == f"{query.rstrip(' ?')} ? {' '.join(dict.fromkeys(samples))}"


def test_a_query_without_expansions_keeps_its_ranking() -> None:
    stage = ExpansionStage.model_validate({"of": "lexical", "generate": {}, "generator": "generator"})
    writer: Any = lambda texts, *_: [[] for _ in texts]  # noqa: E731
    search: Any = Searches()
    for lists in ([ranking("nothing")], [[]]):
        assert Expander(stage, writer=writer)(["nothing"], lists, documents(), search) == lists
    assert search.texts == []
