"""Reranking by neighbours as a step: each query as if it were alone, whoever does the work and however it is cut."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.data.tables import DOCUMENTS, QUERIES, RANKING, check
from sparring.components.neighbours import reranking
from sparring.components.neighbours.reciprocal import inner_products, scores
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps import neighbours as step
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from tests.support import plain_neighbours as plain
from tests.support import tiny, toy
from tests.support.errors import refused
from tests.support.power_cut import PowerCut, cut_power

DOCS, ASKED, WIDTH = 90, 25, 4
CONFIG = {"k": 4, "k_exp": 2, "tau": 0.5, "mix": 0.1, "context": 9}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in another order than that of their ids, and queries of three splits."""
    folder = tmp_path_factory.mktemp("data")
    ids = [f"d{number}" for number in np.random.default_rng(0).permutation(DOCS)]
    documents = {"doc_id": ids, "title": [""] * DOCS, "text": ["text"] * DOCS}
    queries = {
        "query_id": [f"q{i}" for i in range(ASKED)],
        "text": ["text"] * ASKED,
        "answers": [[]] * ASKED,
        "split": [["dev", "test", "train"][i % 3] for i in range(ASKED)],
    }
    pq.write_table(pa.table(documents, schema=DOCUMENTS), folder / "documents.parquet", row_group_size=40)
    pq.write_table(pa.table(queries, schema=QUERIES), folder / "queries.parquet")
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole numbers, some documents twice; only dev and test are encoded, in an order of their own."""
    folder, draw = tmp_path_factory.mktemp("vectors"), np.random.default_rng(1)
    documents = draw.integers(-2, 4, (DOCS, WIDTH)).astype(np.float16)
    documents[50:60] = documents[:10]
    toy.write_document_vectors(folder, [documents[start : start + 17] for start in range(0, DOCS, 17)])
    ids = [f"q{i}" for i in draw.permutation(ASKED).tolist() if i % 3 != 2]
    np.save(folder / "queries.npy", draw.integers(-2, 4, (len(ids), WIDTH)).astype(np.float16))
    (folder / "queries.json").write_text(json.dumps(ids))
    return folder


@pytest.fixture(scope="module")
def found(data: Path) -> dict[str, list[str]]:
    """What queries find: from one document to twenty; some find one and the same text twice."""
    ids, draw = pq.read_table(data / "documents.parquet")["doc_id"].to_pylist(), np.random.default_rng(2)
    return {f"q{i}": [ids[row] for row in draw.permutation(DOCS)[: 1 + (7 * i) % 20]] for i in range(ASKED)}


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory, found: dict[str, list[str]]) -> Path:
    encoded = {query: documents for query, documents in found.items() if int(query[1:]) % 3 != 2}
    return toy.write_ranking(tmp_path_factory.mktemp("ranking"), encoded)


@pytest.fixture
def reranked(tmp_path: Path, data: Path, vectors: Path, ranking: Path) -> Any:
    def run(
        name: str = "out", *, machine: Machine = toy.INLINE, over: Path = ranking, **config: Any
    ) -> list[dict[str, Any]]:
        (out := tmp_path / name).mkdir(exist_ok=True)
        run.summary = rerank_by_neighbours(  # type: ignore[attr-defined]
            out,
            machine,
            data=data,
            vectors=vectors,
            queries=vectors,
            ranking=over,
            config=NeighboursRerankConfig(**{**CONFIG, **config}),
        )
        assert tiny.kept(out).keys() == {"ranking.parquet"}
        return check(pq.read_table(out / "ranking.parquet"), RANKING, source="ranking").to_pylist()

    return run


def by_query(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    lists: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lists.setdefault(row["query_id"], []).append(row)
    return lists


class Read:
    """The vectors by id."""

    def __init__(self, data: Path, vectors: Path) -> None:
        documents = np.concatenate([np.load(path) for path in sorted(vectors.glob("documents-*.npy"))])
        ids = pq.read_table(data / "documents.parquet")["doc_id"].to_pylist()
        self.documents = dict(zip(ids, documents.astype(np.float64), strict=True))
        ids = json.loads((vectors / "queries.json").read_text())
        self.queries = dict(zip(ids, np.load(vectors / "queries.npy").astype(np.float64), strict=True))

    def context(self, query: str, documents: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = np.stack([self.documents[document] for document in documents])
        return torch.from_numpy(self.queries[query])[None], torch.from_numpy(rows)[None]


def test_each_list_is_that_of_a_plain_loop(
    reranked: Any, data: Path, vectors: Path, found: dict[str, list[str]]
) -> None:
    read, lists = Read(data, vectors), by_query(reranked())
    assert list(lists) == [f"q{i}" for i in range(ASKED) if i % 3 != 2]
    changed = 0
    for query, rows in lists.items():
        first, rest = found[query][:9], found[query][9:]
        products = inner_products(*read.context(query, first))[0].tolist()
        similar = dict(zip(first, plain.similarities(products, 0, NeighboursRerankConfig(**CONFIG)), strict=True))
        assert sorted(row["doc_id"] for row in rows[:9]) == sorted(first)
        assert [row["doc_id"] for row in rows[9:]] == rest
        wanted = [similar[row["doc_id"]] for row in rows[:9]]
        assert [row["score"] for row in rows[:9]] == pytest.approx(wanted, abs=1e-5)
        assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
        assert rows == sorted(rows, key=lambda row: (-row["score"], row["doc_id"]))
        changed += rows[0]["doc_id"] != first[0]
    documents = sum(min(9, len(found[query])) for query in lists)
    assert reranked.summary == {"queries": len(lists), "documents": documents, "first_changed": changed}
    assert 0 < changed < len(lists)


@pytest.mark.parametrize("rows", [1, 25, 1_000])
def test_a_ranking_in_pieces_is_reranked_as_a_whole_one(
    reranked: Any, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    whole, summary = reranked("whole"), reranked.summary
    monkeypatch.setattr("sparring.components.data.tables.by_query.__kwdefaults__", {"rows": rows})
    assert reranked("pieces") == whole
    assert reranked.summary == summary


def test_equal_scores_stand_in_order_of_their_ids(tmp_path: Path, reranked: Any) -> None:
    """Of texts that are found twice, both copies have the same score."""
    rows = reranked(context=20)
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if a["query_id"] == b["query_id"]]
    equal = [(a["doc_id"], b["doc_id"]) for a, b in pairs if a["score"] == b["score"]]
    assert equal
    assert all(a < b for a, b in equal)


def test_a_ranking_of_no_query(tmp_path: Path, reranked: Any) -> None:
    assert reranked(over=toy.write_ranking(tmp_path / "none", {})) == []
    assert reranked.summary == {"queries": 0, "documents": 0, "first_changed": 0}


@pytest.mark.parametrize(("queries", "context"), [(1, 9), (4, 20), (1000, 3)])
def test_how_the_work_is_cut_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, reranked: Any, queries: int, context: int
) -> None:
    wanted = reranked(context=context)
    monkeypatch.setattr(step, "QUERIES", queries)
    monkeypatch.setattr(reranking, "contexts_per_batch", lambda candidates, device: 2)
    assert same(reranked(name="cut", context=context), wanted)


def same(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """The same lists with about the same scores."""
    scores = [[row.pop("score") for row in some] for some in (rows, expected)]
    return rows == expected and scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_through_ray_the_same(monkeypatch: pytest.MonkeyPatch, ray: Machine, reranked: Any) -> None:
    wanted = reranked()
    monkeypatch.setattr(step, "QUERIES", 5)
    assert same(reranked(name="ray", machine=ray), wanted)


def test_an_interrupted_reranking_does_only_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reranked: Any
) -> None:
    wanted = reranked(name="wanted")
    monkeypatch.setattr(step, "QUERIES", 4)
    with monkeypatch.context() as power:
        cut_power(power, step, "list_scores", after=2)
        with pytest.raises(PowerCut):
            reranked()
    scored = cut_power(
        monkeypatch, step, "list_scores", after=None, note=lambda _, __, lists, *options: list(lists.queries)
    )
    assert same(reranked(), wanted)
    assert len(list(itertools.chain(*scored))) == 17 - 2 * 4


def test_a_service_gets_the_same_scores(reranked: Any, data: Path, vectors: Path, found: dict[str, list[str]]) -> None:
    """One query with what it found, as vectors."""
    read, config = Read(data, vectors), NeighboursRerankConfig(**CONFIG)
    for query, rows in by_query(reranked()).items():
        queries, documents = (vectors.float() for vectors in read.context(query, found[query][:9]))
        similar = dict(zip(found[query], scores(queries, documents, config)[0].tolist(), strict=False))
        wanted = [similar[row["doc_id"]] for row in rows[:9]]
        assert [row["score"] for row in rows[:9]] == pytest.approx(wanted, abs=1e-5)


def test_queries_that_were_not_encoded_are_a_mistake_that_says_so(tmp_path: Path, reranked: Any) -> None:
    with refused("q2", "not-encoded"):
        reranked(over=toy.write_ranking(tmp_path / "other", {"q2": ["d1"]}))
