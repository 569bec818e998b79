"""Dense retrieval as a step: the same as sorting everything, whoever does the work and however it is cut."""

import json
import weakref

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import DOCUMENTS, QUERIES, RANKED, RANKING
from sparring.components.data.vectors import document_shards
from sparring.components.retrieval import topk
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps import search as step
from sparring.workflows.steps.search import SearchConfig, build_index, search
from tests.support import tiny, toy
from tests.support.errors import refused
from tests.support.machines import changed

INLINE = resolve_machine(Cluster(mode="inline", device="cpu"))
DOCS, ASKED, WIDTH, K = 500, 41, 8, 25


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents in another order than that of their ids, and queries of three splits."""
    folder = tmp_path_factory.mktemp("data")
    ids = [f"d{number}" for number in np.random.default_rng(0).permutation(DOCS)]  # d10 comes before d2
    documents = {"doc_id": ids, "title": [""] * DOCS, "text": ["text"] * DOCS}
    splits = [["dev", "test", "train"][i % 3] for i in range(ASKED)]
    queries = {
        "query_id": [f"q{i}" for i in range(ASKED)],
        "text": ["text"] * ASKED,
        "answers": [[]] * ASKED,
        "split": splits,
    }
    pq.write_table(pa.table(documents, schema=DOCUMENTS), folder / "documents.parquet", row_group_size=99)
    pq.write_table(pa.table(queries, schema=QUERIES), folder / "queries.parquet")
    return folder


def write_vectors(folder, data, dtype, shard, low=-2, high=3):
    """Whole numbers, so that sums are exact and many are equal; only dev and test are encoded."""
    rng = np.random.default_rng(1)
    documents = rng.integers(low, high, (DOCS, WIDTH)).astype(dtype)
    table = pq.read_table(data / "queries.parquet")
    query_ids = [query["query_id"] for query in table.to_pylist() if query["split"] != "train"]
    toy.write_document_vectors(folder, [documents[start : start + shard] for start in range(0, DOCS, shard)])
    np.save(folder / "queries.npy", rng.integers(low, high, (len(query_ids), WIDTH)).astype(dtype))
    (folder / "queries.json").write_text(json.dumps(query_ids))
    return folder


@pytest.fixture(scope="module")
def vectors(data, tmp_path_factory):
    return write_vectors(tmp_path_factory.mktemp("vectors"), data, np.float16, 70)


def sorted_whole(data, vectors):
    """The oracle: for each query all documents, sorted by score and then by id."""
    doc_ids = pq.read_table(data / "documents.parquet")["doc_id"].to_pylist()
    documents = np.concatenate([np.load(path) for path in sorted(vectors.glob("documents-*.npy"))]).astype(np.float32)
    encoded = dict(
        zip(json.loads((vectors / "queries.json").read_text()), np.load(vectors / "queries.npy"), strict=True)
    )
    rows = []
    for query in pq.read_table(data / "queries.parquet").to_pylist():
        if query["query_id"] in encoded:
            scores = documents @ encoded[query["query_id"]].astype(np.float32)
            best = sorted(zip(-scores, doc_ids, strict=True))[:K]
            rows += [(query["query_id"], doc_id, rank, -score) for rank, (score, doc_id) in enumerate(best, start=1)]
    return rows


def ranked(out, machine, data, vectors, *, config=None, index=None):
    summary = search(
        out, machine, data=data, vectors=vectors, queries=vectors, k=K, config=config or SearchConfig(), index=index
    )
    table = pq.read_table(out / "ranking.parquet")
    assert table.schema.equals(RANKED)
    doc_ids = pq.read_table(data / "documents.parquet")["doc_id"]
    assert table["doc_id"].equals(doc_ids.take(table["doc_row"]))
    return summary, [tuple(row.values()) for row in table.select(RANKING.names).to_pylist()]


def test_equals_sorting_everything(data, vectors, tmp_path):
    summary, rows = ranked(tmp_path, INLINE, data, vectors)
    assert rows == sorted_whole(data, vectors)
    queries = len(rows) // K
    assert {key: summary[key] for key in ("queries", "answered", "rows")} == {
        "queries": queries,
        "answered": queries,
        "rows": queries * K,
    }
    assert tiny.kept(tmp_path).keys() == {"ranking.parquet/00000000.parquet"}


def cut(monkeypatch, **most):
    monkeypatch.setattr(step, "ON_CPU", step.ON_CPU._replace(**most))


@pytest.mark.parametrize(("queries", "workers", "pieces"), [(41, 1, 1), (41, 4, 4), (9, 4, 5), (9, 12, 15)])
def test_each_worker_has_work(vectors, queries, workers, pieces):
    """Blocks of queries, and parts of the documents where these are not enough; all shards of a block, each once."""
    slices = step._pieces(vectors, DOCS, ASKED, cuts=step.ON_GPU._replace(queries=queries), workers=workers)
    assert len({piece.file for piece in slices}) == len(slices) == pieces
    for start in range(0, ASKED, queries):
        tasks = [piece.task for piece in slices if piece.task["start"] == start]
        assert [end for task in tasks for end in (task["first"], task["last"])][1:-1:2] == [
            task["first"] for task in tasks[1:]
        ]
        assert [tasks[0]["order"][0], tasks[-1]["order"][1]] == [0, DOCS]


@pytest.mark.parametrize(
    ("queries", "scores", "merged", "shard"), [(5, 5 * 150, 2, 70), (100, 1, 3, 500), (1, 10**9, 1, 7)]
)
def test_how_the_work_is_cut_does_not_matter(monkeypatch, data, tmp_path, queries, scores, merged, shard):
    cut(monkeypatch, queries=queries, scores=scores)
    monkeypatch.setattr(step, "QUERIES_MERGED", merged)
    (tmp_path / "vectors").mkdir()
    (tmp_path / "out").mkdir()
    vectors = write_vectors(tmp_path / "vectors", data, np.float32, shard)
    _, rows = ranked(tmp_path / "out", INLINE, data, vectors)
    assert rows == sorted_whole(data, vectors)


def test_through_ray_the_same(monkeypatch, ray, data, vectors, tmp_path):
    cut(monkeypatch, queries=10, scores=10 * 200)
    machine = changed(ray, {"map": Pool(workers=2)})
    _, rows = ranked(tmp_path, machine, data, vectors)
    assert rows == sorted_whole(data, vectors)


def test_a_killed_search_continues_with_its_finished_files(monkeypatch, data, vectors, tmp_path):
    """A finished run of documents is taken as it is, here one that says that the best is better. A half-written one is
    swept away. A finished part is not merged again."""
    cut(monkeypatch, queries=10, scores=10 * 200)
    marked = np.full((10, 1), topk.keys(np.float32([999]), np.array([0]))[0])
    pieces = step._pieces(vectors, DOCS, 20, cuts=step.ON_CPU)
    second = next(piece for piece in pieces if piece.task["start"] == 10 and piece.task["first"] == 0)
    with (tmp_path / second.file).open("wb") as file:
        np.save(file, marked)
    (tmp_path / f".{pieces[0].file}.0123abcd").write_text("half")
    _, rows = ranked(tmp_path, INLINE, data, vectors)
    expected = sorted_whole(data, vectors)
    query_ids = {row[0] for row in expected[10 * K : 20 * K]}
    assert [row for row in rows if row[0] not in query_ids] == [row for row in expected if row[0] not in query_ids]
    assert [row[1:] for row in rows if row[0] in query_ids and row[2] == 1] == [("d0", 1, 999.0)] * 10
    # Killed while it merged: the part that is missing is merged again, and no other.
    part = tmp_path / "ranking.parquet" / "00000000.parquet"
    digests = tiny.kept(tmp_path)
    part.unlink()
    _, again = ranked(tmp_path, INLINE, data, vectors)
    assert again == rows
    assert tiny.kept(tmp_path) == digests
    # Killed after the table and before the record: nothing is searched again.
    monkeypatch.setattr(step, "map_shards", None)
    assert ranked(tmp_path, INLINE, data, vectors)[1] == rows


def test_a_ranking_has_the_same_files_whatever_the_workers_and_runs(monkeypatch, ray, data, vectors, tmp_path):
    """One run of documents, which the searching workers write themselves, and several, which are merged."""
    digests = []
    for number, (workers, scores) in enumerate([(1, 2**30), (2, 2**30), (1, 10 * 150), (2, 10 * 80)]):
        cut(monkeypatch, queries=10, scores=scores)
        out = tmp_path / str(number)
        out.mkdir()
        ranked(out, changed(ray, {"map": Pool(workers=workers)}), data, vectors)
        digests.append(tiny.kept(out))
    assert digests[0].keys() == {f"ranking.parquet/{start:08d}.parquet" for start in (0, 10, 20)}
    assert digests[1:] == digests[:1] * 3


def test_a_split_without_queries_has_an_empty_ranking(data, vectors, tmp_path):
    queries = tmp_path / "queries"
    queries.mkdir()
    np.save(queries / "queries.npy", np.empty((0, 0), np.float16))
    (queries / "queries.json").write_text("[]")
    for index, config in ((None, SearchConfig()), (tmp_path / "index", SearchConfig(index="Flat"))):
        if index is not None:
            index.mkdir()
            build_index(index, INLINE, vectors=vectors, factory="Flat")
        out = tmp_path / str(config.index)
        out.mkdir()
        summary = search(out, INLINE, data=data, vectors=vectors, queries=queries, k=K, config=config, index=index)
        assert (summary["queries"], summary["answered"], summary["rows"]) == (0, 0, 0)
        assert len(pq.read_table(out / "ranking.parquet")) == 0


@pytest.mark.parametrize("factory", ["Flat", "IVF4,Flat", "HNSW16"])
@pytest.mark.filterwarnings("default")
def test_with_an_index(data, vectors, tmp_path, factory):
    (tmp_path / "index").mkdir()
    (tmp_path / "out").mkdir()
    built = build_index(tmp_path / "index", INLINE, vectors=vectors, factory=factory)
    assert built["documents"] == DOCS
    assert faiss.read_index(str(tmp_path / "index" / "index.faiss")).ntotal == DOCS
    config = SearchConfig(index=factory, probes=4, sample=9)
    summary, rows = ranked(tmp_path / "out", INLINE, data, vectors, config=config, index=tmp_path / "index")
    expected = sorted_whole(data, vectors)
    assert [row[0] for row in rows] == [row[0] for row in expected]
    if factory != "HNSW16":  # the same scores; FAISS knows no order among equal ones at the end of the list
        assert [row[3] for row in rows] == [row[3] for row in expected]
    assert summary["recall queries"] == 9
    assert 0 < summary["index_seconds"] < summary["search_seconds"]  # and the exact answers
    assert 0.8 < summary[f"recall@{K} of exact"] <= 1.0
    assert tiny.kept(tmp_path / "out").keys() == {"ranking.parquet/00000000.parquet", "times.json"}


def test_an_index_that_finds_less_gives_fewer_rows(data, vectors, tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "out").mkdir()
    build_index(tmp_path / "index", INLINE, vectors=vectors, factory="IVF100,Flat")
    config = SearchConfig(index="IVF100,Flat", probes=1, sample=1000)
    summary, rows = ranked(tmp_path / "out", INLINE, data, vectors, config=config, index=tmp_path / "index")
    queries = summary["queries"]
    assert summary["recall queries"] == queries
    assert queries <= summary["rows"] == len(rows) < queries * K
    assert all(doc_id is not None for _, doc_id, _, _ in rows)
    ranks = {}
    for query_id, _, rank, _ in rows:
        assert rank == ranks.get(query_id, 0) + 1
        ranks[query_id] = rank


def test_recall_is_of_the_sampled_queries(data, vectors, tmp_path):
    """With large numbers hardly any scores are equal, and a flat index finds everything."""
    for name in ("vectors", "index", "out"):
        (tmp_path / name).mkdir()
    folder = write_vectors(tmp_path / "vectors", data, np.float32, 200, low=-(2**20), high=2**20)
    build_index(tmp_path / "index", INLINE, vectors=folder, factory="Flat")
    config = SearchConfig(index="Flat", sample=5)
    summary, _ = ranked(tmp_path / "out", INLINE, data, folder, config=config, index=tmp_path / "index")
    assert summary[f"recall@{K} of exact"] == 1.0


def test_vectors_are_mapped_while_they_are_looked_at(vectors):
    """So that memory does not grow with the collection."""
    shards = document_shards(vectors)
    assert [len(shard) for shard in shards[6:]] == [70, 10]
    looked_at = [weakref.ref(shard) for shard in shards]
    assert len(looked_at) == 8
    assert [array for array in looked_at if array() is not None] == []


@pytest.mark.parametrize("k", [501, 0])
def test_mistakes_change_nothing(data, vectors, tmp_path, k):
    with refused("k", "out-of-range"):
        search(tmp_path, INLINE, data=data, vectors=vectors, queries=vectors, config=SearchConfig(), k=k)
    assert list(tmp_path.iterdir()) == []


def test_a_factory_that_faiss_does_not_know_changes_nothing(vectors, tmp_path):
    with refused("search.index", "unknown-index"):
        build_index(tmp_path, INLINE, vectors=vectors, factory="Flt")
    assert list(tmp_path.iterdir()) == []


def test_vectors_of_another_collection_are_refused(data, vectors, tmp_path):
    (tmp_path / "vectors").mkdir()
    (tmp_path / "out").mkdir()
    folder = write_vectors(tmp_path / "vectors", data, np.float32, 100)
    lengths = json.loads((folder / "documents.json").read_text())
    lengths.popitem()
    (folder / "documents.json").write_text(json.dumps(lengths))
    with pytest.raises(ValueError, match="vectors of 400 documents, and the collection has 500"):
        search(tmp_path / "out", INLINE, data=data, vectors=folder, queries=folder, k=5, config=SearchConfig())


@pytest.mark.parametrize("factory", [None, "Flat"])
def test_a_querys_own_documents_are_left_out_and_no_query_loses_a_place(data, tmp_path, factory):
    """The first three documents of one query and the second of another: each ranking is what follows."""
    index, vectors = None, tmp_path / "vectors"
    vectors.mkdir()
    write_vectors(vectors, data, np.float16, 70, -200, 200)  # of equal scores at its end an index takes any
    if factory is not None:
        index = tmp_path / "index"
        index.mkdir()
        build_index(index, INLINE, vectors=vectors, factory=factory)
    dataset = toy.with_own(tmp_path / "data", data, [("q0", doc_id) for doc_id in ("d1", "d2", "d3")] + [("q1", "d1")])
    rankings = []
    for number, (folder, k) in enumerate([(data, DOCS), (dataset, K)]):
        out = tmp_path / str(number)
        out.mkdir()
        search(
            out,
            INLINE,
            data=folder,
            vectors=vectors,
            queries=vectors,
            k=k,
            config=SearchConfig(index=factory),
            index=index,
        )
        rankings.append(pq.read_table(out / "ranking.parquet").to_pylist())
    assert toy.without_own(rankings[0], dataset, K) == rankings[1]
