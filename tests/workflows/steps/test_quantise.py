"""Smaller vectors as steps: derived, searched and rescored, as loops do, on any number of workers."""

import itertools
import json

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError, parse
from sparring.components.data.tables import DOCUMENTS, QUERIES
from sparring.components.data.vectors import document_shards
from sparring.components.retrieval import quantised
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps import search as searching
from sparring.workflows.steps.quantise import rescore, smaller_vectors
from sparring.workflows.steps.search import SearchConfig, build_index, candidates, search
from tests.support import toy
from tests.support.errors import refused
from tests.support.machines import changed

INLINE = resolve_machine(Cluster(mode="inline", device="cpu"))
DOCS, ASKED, WIDTH, K = 400, 30, 32, 12


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A collection whose documents are in another order than that of their ids, a retriever's config, and vectors."""
    folder = tmp_path_factory.mktemp("smaller")
    rng = np.random.default_rng(0)
    ids = [f"d{number}" for number in rng.permutation(DOCS)]
    queries = [f"q{i}" for i in range(ASKED)]
    for name in ("data", "retriever/model", "vectors"):
        (folder / name).mkdir(parents=True)
    documents = {"doc_id": ids, "title": [""] * DOCS, "text": ["text"] * DOCS}
    columns = {"query_id": queries, "text": ["text"] * ASKED, "answers": [[]] * ASKED, "split": ["test"] * ASKED}
    pq.write_table(pa.table(documents, schema=DOCUMENTS), folder / "data/documents.parquet")
    pq.write_table(pa.table(columns, schema=QUERIES), folder / "data/queries.parquet")
    (folder / "retriever/model/sparring.json").write_text(json.dumps({"similarity": "cosine"}))
    vectors = rng.normal(size=(DOCS + ASKED, WIDTH)) * np.geomspace(2, 0.1, WIDTH)
    vectors[1::50] = vectors[0]  # documents that are alike, so that ties are there
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    toy.write_document_vectors(folder / "vectors", np.split(vectors[:DOCS], [90, 180, 270, 360]))
    np.save(folder / "vectors/queries.npy", vectors[DOCS:])
    (folder / "vectors/queries.json").write_text(json.dumps(queries))
    return folder


def shrunk(places, out, dimensions, kind, machine=INLINE):
    out.mkdir()
    summary = smaller_vectors(
        out, machine, vectors=places / "vectors", retriever=places / "retriever", dimensions=dimensions, kind=kind
    )
    return out, summary


def found(places, out, vectors, *, k=K, machine=INLINE, index=None, config=None):
    out.mkdir()
    search(
        out,
        machine,
        data=places / "data",
        vectors=vectors,
        queries=places / "vectors",
        k=k,
        index=index,
        config=config or SearchConfig(),
    )
    return out


def rescored(places, out, vectors, ranking, *, machine=INLINE):
    out.mkdir()
    rescore(out, machine, data=places / "data", vectors=vectors, queries=places / "vectors", ranking=ranking, k=K)
    return out


def table(folder):
    return pq.read_table(folder / "ranking.parquet").to_pylist()


def ids(places):
    return pq.read_table(places / "data/documents.parquet")["doc_id"].to_pylist()


def numbers(places):
    documents = np.concatenate([np.asarray(shard, np.float32) for shard in document_shards(places / "vectors")])
    return documents, np.load(places / "vectors/queries.npy").astype(np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(("dimensions", "kind"), [(8, "encoded"), (None, "int8"), (8, "int8"), (None, "binary")])
def test_what_is_searched_is_what_a_loop_finds(places, tmp_path, dimensions, kind):
    vectors, summary = shrunk(places, tmp_path / "small", dimensions, kind)
    width = dimensions or WIDTH
    per = {"encoded": 2 * width, "int8": width, "binary": width // 8}[kind]
    assert summary["documents"] == DOCS
    assert DOCS * per <= summary["bytes"] < DOCS * per + 5 * 200  # each file says what it holds
    documents, queries = numbers(places)
    if dimensions:
        documents, queries = unit(documents[:, :width]), unit(queries[:, :width])
    if kind == "int8":
        scale = np.abs(documents).max(0) / 127
        documents = np.rint(documents / scale) * scale
    elif kind == "binary":
        documents, queries = np.where(documents > 0, 1, -1), np.where(queries > 0, 1, -1)
    else:
        documents = documents.astype(np.float16).astype(np.float32)
    scores, doc_ids = queries @ documents.T, ids(places)
    rows = table(found(places, tmp_path / "found", vectors))
    for i in range(ASKED):
        mine = [row for row in rows if row["query_id"] == f"q{i}"]
        wanted = sorted(zip(-scores[i].round(5), doc_ids, strict=True))[:K]
        np.testing.assert_allclose([row["score"] for row in mine], [-s for s, _ in wanted], atol=1e-5)
        if kind == "binary":
            assert [row["doc_id"] for row in mine] == [doc_id for _, doc_id in wanted]
    # Alike documents have the same score, and are in order of id.
    assert all(
        a["doc_id"] < b["doc_id"]
        for a, b in itertools.pairwise(rows)
        if (a["query_id"], a["score"]) == (b["query_id"], b["score"])
    )


@pytest.mark.parametrize("by", ["encoded", "int8", "binary"])
def test_candidates_are_rescored_as_a_loop_does(places, tmp_path, by):
    bits, _ = shrunk(places, tmp_path / "bits", None, "binary")
    first = found(places, tmp_path / "candidates", bits, k=4 * K)
    kept = {"encoded": lambda: places / "vectors", "binary": lambda: bits}.get(
        by, lambda: shrunk(places, tmp_path / "int8", None, "int8")[0]
    )()
    rows = table(rescored(places, tmp_path / "out", kept, first))
    documents, queries = numbers(places)
    if by != "encoded":
        scale = np.abs(documents).max(0) / 127
        documents = np.where(documents > 0, 1, -1) if by == "binary" else np.rint(documents / scale) * scale
    row_of = {doc_id: row for row, doc_id in enumerate(ids(places))}
    for i in range(ASKED):
        among = [row["doc_id"] for row in table(first) if row["query_id"] == f"q{i}"]
        scores = sorted((-float(queries[i] @ documents[row_of[doc_id]]), doc_id) for doc_id in among)[:K]
        mine = [row for row in rows if row["query_id"] == f"q{i}"]
        assert [row["rank"] for row in mine] == list(range(1, K + 1))
        np.testing.assert_allclose([row["score"] for row in mine], [-score for score, _ in scores], atol=1e-5)


def test_all_documents_are_candidates_where_more_are_asked_for(places, tmp_path):
    for name, times in (("some", 2), ("all", 1_000)):
        (tmp_path / name).mkdir()
        candidates(
            tmp_path / name,
            INLINE,
            data=places / "data",
            vectors=places / "vectors",
            queries=places / "vectors",
            k=K,
            times=times,
            config=SearchConfig(),
        )
    assert len(table(tmp_path / "some")) == ASKED * 2 * K
    assert len(table(tmp_path / "all")) == ASKED * DOCS
    with refused("k", "out-of-range"):
        candidates(
            tmp_path / "all",
            INLINE,
            data=places / "data",
            vectors=places / "vectors",
            queries=places / "vectors",
            k=DOCS + 1,
            times=2,
            config=SearchConfig(),
        )


def test_two_workers_are_one(monkeypatch, ray, places, tmp_path):
    """Whatever is cut how: vectors bit by bit, rankings document by document."""
    two = changed(ray, {"map": Pool(workers=2)})
    one_rows = []
    for name, machine in (("one", INLINE), ("two", two)):
        if name == "two":
            monkeypatch.setattr(searching, "ON_CPU", searching.ON_CPU._replace(queries=7, scores=7 * 100))
        bits, _ = shrunk(places, tmp_path / f"{name} bits", None, "binary", machine)
        small, _ = shrunk(places, tmp_path / f"{name} int8", 16, "int8", machine)
        first = found(places, tmp_path / f"{name} candidates", bits, k=4 * K, machine=machine)
        out = rescored(places, tmp_path / f"{name} out", small, first, machine=machine)
        files = [np.load(path) for folder in (bits, small) for path in sorted(folder.glob("documents-*.npy"))]
        one_rows.append((np.concatenate([file.ravel().view(np.uint8) for file in files]), table(first), table(out)))
    np.testing.assert_array_equal(one_rows[0][0], one_rows[1][0])
    assert one_rows[0][1:] == one_rows[1][1:]


def test_an_index_of_shorter_vectors(places, tmp_path):
    """A flat index finds what exact search finds, and is as wide as the vectors that were cut."""
    vectors, _ = shrunk(places, tmp_path / "small", 8, "encoded")
    (tmp_path / "index").mkdir()
    build_index(tmp_path / "index", INLINE, vectors=vectors, factory="Flat")
    assert faiss.read_index(str(tmp_path / "index/index.faiss")).d == 8
    config = SearchConfig(index="Flat")
    by_index = table(found(places, tmp_path / "by", vectors, index=tmp_path / "index", config=config))
    exact = table(found(places, tmp_path / "exact", vectors))
    np.testing.assert_allclose([row["score"] for row in by_index], [row["score"] for row in exact], atol=1e-5)


def test_more_dimensions_than_there_are(places, tmp_path):
    with refused("search.dimensions", "too-large"):
        shrunk(places, tmp_path / "small", 33, "encoded")
    assert quantised.read(tmp_path / "small") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"index": "Flat", "vectors": "int8"}, "vectors: int8: an index has its own form of vectors"),
        ({"rescore_by": "int8"}, "rescore_by: nothing is rescored without `rescore`"),
        ({"rescore": 4}, "rescore_by: encoded: the candidates are found by these vectors"),
        ({"rescore": 4, "vectors": "int8", "rescore_by": "int8"}, "rescore_by: int8: the candidates are found by"),
    ],
)
def test_mistakes_are_named(options, says):
    with pytest.raises(UserError, match=says):
        parse(SearchConfig, options, where="test")


def test_a_wrong_value_is_refused():
    with refused("vectors", "unknown-value"):
        parse(SearchConfig, {"vectors": "int4"}, where="test")
    with refused("dimensions", "too-small"):
        parse(SearchConfig, {"dimensions": 0}, where="test")


def test_what_is_possible_and_what_stays_as_it_was():
    for options in (
        {"dimensions": 96, "rescore": 2},
        {"vectors": "binary", "rescore": 4, "rescore_by": "binary"},
        {"index": "PQ48", "rescore": 4},
        {"vectors": "int8", "rescore": 2},
        {"index": "PQ48", "rescore": 2, "rescore_by": "int8"},
    ):
        parse(SearchConfig, options, where="test")
    added = {"dimensions", "vectors", "rescore", "rescore_by"}
    assert not added & SearchConfig().model_dump().keys()
    assert not added & SearchConfig(dimensions=8, vectors="int8").of_candidates().model_dump().keys()
