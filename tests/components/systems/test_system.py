"""Searching with a system, against naive loops over given lists and scores."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparring.components.data.tables import DOCUMENTS
from sparring.components.retrieval import quantised
from sparring.components.systems.config import VERSION, SystemConfig
from sparring.components.systems.documents import Documents, InMemory
from sparring.components.systems.loaded import LoadedRetriever
from sparring.components.systems.searching import Search
from sparring.components.systems.stages.neighbours import NeighboursStage
from sparring.components.systems.system import LoadedSystem
from tests.support.errors import refused

COUNT = 30


class Given(Documents):
    """Documents that say their ids."""

    def __init__(self) -> None:
        super().__init__(pa.array([f"d{number:02d}" for number in range(COUNT)], pa.large_string()))

    def texts(self, ids: Any) -> dict[str, tuple[str, str]]:
        return {item: (f"title of {item}", item) for item in ids}


class Lists:
    """A first stage with a list of documents for each query."""

    def __init__(self, seed: str, k: int) -> None:
        self._seed, self._k, self.requests = seed, k, []

    def own(self, text: str) -> list[tuple[str, float]]:
        draw = random.Random(f"{self._seed} {text}")
        result = draw.sample(range(COUNT), self._k if text != "nothing" else 0)
        scores = sorted((float(np.float32(draw.random())) for _ in result), reverse=True)
        return [(f"d{number:02d}", score) for number, score in zip(result, scores, strict=True)]

    def begin(self, name: str, search: Search, k: int) -> Callable[[], None]:
        self.requests.append(k)
        pairs = zip(search.texts, search.without, strict=True)
        lists = [[hit for hit in self.own(text) if hit[0] != excluded][:k] for text, excluded in pairs]
        return lambda: search.add(name, lists)


def judge(query: str, document: str) -> float:
    """A ranker's score, with ties."""
    return float(random.Random(f"{query} {document.split()[-1]}").randrange(4))


def scorer(queries: list[str], documents: list[list[str]]) -> list[np.ndarray]:
    return [np.array([judge(q, d) for d in itself], np.float32) for q, itself in zip(queries, documents, strict=True)]


def system(**stages: Any) -> tuple[LoadedSystem, Lists, Lists]:
    """A system of lists of 8 and of 12 documents."""
    lexical, dense = Lists("words", 8), Lists("near", 12)
    config = SystemConfig.model_validate({"version": VERSION, "name": "x", "documents": COUNT, "stages": stages})
    loaded = LoadedSystem(
        config,
        Given(),
        {"lexical": lexical, "dense": dense, "ranker": scorer},
    )
    return loaded, lexical, dense


LEXICAL, DENSE = {"kind": "lexical", "analysis": {}, "k": 8}, {"kind": "dense", "k": 12, "query_tokens": 8}
BOTH = {"lexical": LEXICAL, "dense": DENSE}
RRF = {"kind": "fused", "of": ["lexical", "dense"], "how": "reciprocal", "depth": 10, "c": 3.0}
QUERIES = ["one", "two", "nothing", "three"]


def naive_fusion(words: list[tuple[str, float]], near: list[tuple[str, float]]) -> list[str]:
    scores: dict[str, float] = {}
    for itself in (words, near):
        for rank, (first, _) in enumerate(itself, 1):
            scores[first] = scores.get(first, 0) + 1 / (3 + rank)
    return sorted(scores, key=lambda single: (-scores[single], single))[:10]


@pytest.mark.parametrize("weights", [{}, {"weight": 0.5, "priors": {"dense": 2.0, "lexical": 1.0}}])
def test_fusion_ranker_and_weights_are_a_naive_loop_s(weights: dict[str, Any]) -> None:
    ranker = {"kind": "ranker", "of": "fusion", "depth": 6, **weights}
    searching, lexical, dense = system(**BOTH, fusion=RRF, ranker=ranker)
    for query, hits in zip(QUERIES, searching.search(QUERIES, 10), strict=True):
        words, near = lexical.own(query), dense.own(query)
        order = naive_fusion(words, near)
        total = {}
        for item in order[:6]:
            total[item] = judge(query, item)
            if weights:
                lowest = words[-1][1] if len(words) >= LEXICAL["k"] else 0.0
                s, b = dict(near).get(item, near[-1][1]), dict(words).get(item, lowest)
                total[item] = 0.5 * total[item] + 2.0 * s + 1.0 * b
        wanted = sorted(total, key=lambda single: -total[single]) + order[6:]
        assert [hit.doc_id for hit in hits] == wanted
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert scores[: len(total)] == pytest.approx(sorted(total.values(), reverse=True))
        for hit in hits:
            assert hit.text == hit.doc_id
            assert hit.scores.get("lexical") == dict(words).get(hit.doc_id)
            assert hit.scores.get("dense") == dict(near).get(hit.doc_id)
            assert hit.scores.get("ranker") == (judge(query, hit.doc_id) if hit.doc_id in total else None)


def test_weights_without_a_fusion_rank_the_retriever_s_list() -> None:
    ranker = {"kind": "ranker", "of": "dense", "depth": 12, "weight": 0.0, "priors": {"dense": 0.0, "lexical": 1.0}}
    searching, lexical, dense = system(**BOTH, ranker=ranker)
    (hits,) = searching.search(["one"], 12)
    near, words = [item for item, _ in dense.own("one")], dict(lexical.own("one"))
    assert [hit.doc_id for hit in hits] == sorted(near, key=lambda single: -words.get(single, min(words.values())))


def test_two_lists_have_their_own_lengths_and_one_as_many_as_are_needed() -> None:
    searching, lexical, dense = system(**BOTH, fusion=RRF)
    searching.search(["one"], 3)
    assert (lexical.requests, dense.requests) == ([8], [12])
    searching, _, dense = system(dense=DENSE, ranker={"kind": "ranker", "of": "dense", "depth": 7})
    searching.search(["one"], 3)
    searching.search(["one"], 9)
    assert dense.requests == [7, 9]


def test_no_queries_find_nothing() -> None:
    assert system(dense=DENSE)[0].search([], 5) == []


@pytest.mark.parametrize("texts", [3, ["cats", None], [b"cats"], [["cats"]]])
def test_what_is_no_list_of_strings_is_refused(texts: Any) -> None:
    with refused("search: queries", "not-text"):
        system(dense=DENSE)[0].search(texts, 5)


def test_any_sequence_of_strings_is_searched() -> None:
    searching = system(dense=DENSE)[0]
    wanted = searching.search(["one", "two"], 5)
    assert searching.search(np.array(["one", "two"]), 5) == wanted  # type: ignore[arg-type]
    assert searching.search((text for text in ("one", "two")), 5) == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("neighbours", [None, {"context": 8, "k": 3}])
def test_a_document_that_is_left_out_leaves_its_place_to_the_next(neighbours: Any) -> None:
    """As if the collection were without it, whoever stands in the list and is a neighbour of the others."""
    draw = np.random.default_rng(0)
    vectors, queries = draw.normal(size=(COUNT, 8)).astype(np.float32), draw.normal(size=(3, 8)).astype(np.float32)
    names = [f"d{number:02d}" for number in range(COUNT)]
    config = None if neighbours is None else NeighboursStage(of="dense", **neighbours)

    def retriever(rows: list[int]) -> LoadedRetriever:
        itself = vectors[rows]
        table = pa.table({"doc_id": [names[row] for row in rows], "title": [""] * len(rows), "text": ["x"] * len(rows)})

        def nearest(requests: np.ndarray, order: np.ndarray, k: int) -> Any:
            return quantised.top_k(requests, [itself], None, order, k, device="cpu", threads=1)

        documents = InMemory(table.cast(DOCUMENTS))
        return LoadedRetriever(None, documents, nearest, lambda position: itself[position])  # type: ignore[arg-type]

    def search(rows: list[int], k: int, without: list[str | None]) -> list[Any]:
        requests = retriever(rows)
        results = requests.search(queries, k, without)
        pairs = zip(queries, results, strict=True)
        return results if config is None else [requests.by_neighbours(query, item, config) for query, item in pairs]

    every = list(range(COUNT))
    first = [result[0][0] for result in search(every, 1, [None] * 3)]
    without: list[str | None] = [first[0], None, "none of these"]
    for k in (1, 5, COUNT - 1):
        results = search(every, k, without)
        rest = [row for row in range(COUNT) if names[row] != first[0]]
        assert results[0] == search(rest, k, [None] * 3)[0]
        assert results[1:] == search(every, k, [None] * 3)[1:]
    everything = search(every, COUNT, without)
    assert [len(item) for item in everything] == [COUNT - 1, COUNT, COUNT]


@pytest.mark.parametrize("stages", [{"lexical": LEXICAL}, {"dense": DENSE}, {**BOTH, "fusion": RRF}])
def test_what_is_left_out_is_in_no_list(stages: Any) -> None:
    result = system(**stages)[0].search(["one"], 5)[0]
    rest = system(**stages)[0].search(["one"], 5, without=[result[0].doc_id])[0]
    assert result[0].doc_id not in [hit.doc_id for hit in rest]
    assert len(rest) == 5


def test_a_document_is_a_query_by_its_id() -> None:
    loaded = system(dense=DENSE)[0]
    assert loaded.text_of("d03") == "title of d03 d03"
    with refused("id", "unknown-document", "'d99'"):
        loaded.text_of("d99")
