"""Ingest: three tables that fit together, or one clear line about what does not."""

import hashlib
import json
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import DOCUMENTS, QRELS, QUERIES, check
from sparring.components.sources import base
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, judgement, query
from sparring.workflows.steps import ingest as step
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.store.dag import canonical
from tests.support.errors import refused


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


class Collection:
    """A small BEIR folder whose lines a test may change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.corpus: list[Any] = [{"_id": f"d{n}", "title": f"T{n}", "text": f"about {n}"} for n in range(6)]
        self.queries: list[Any] = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(4)]
        self.qrels: dict[str, list[str]] = {"train": ["q0\td0\t1", "q1\td1\t1"], "test": ["q2\td2\t2", "q2\td3\t0"]}

    def source(self, **keys: Any) -> base.Source:
        """Write the files and declare them."""
        (self.path / "qrels").mkdir(parents=True, exist_ok=True)
        for name, rows in {"corpus": self.corpus, "queries": self.queries}.items():
            lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
            (self.path / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        for split, judged in self.qrels.items():
            text = "\n".join(["query-id\tcorpus-id\tscore", *judged, ""])
            (self.path / "qrels" / f"{split}.tsv").write_text(text)
        source: base.Source = base.declared({"format": "beir", "path": str(self.path), **keys})
        return source


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection(tmp_path / "beir")


def rows(out: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    records: list[dict[str, Any]] = pq.read_table(out / f"{name}.parquet").to_pylist()
    return records


def test_three_tables_and_a_summary(out: Path, collection: Collection) -> None:
    collection.queries[0]["metadata"] = {"answers": ["zero"]}
    source = collection.source()
    summary = ingest(out, None, source=source)
    for name, schema in {"documents": DOCUMENTS, "queries": QUERIES, "qrels": QRELS}.items():
        table = pq.read_table(out / f"{name}.parquet")
        assert table.schema.equals(schema)
        check(table, schema, source=name)
    assert rows(out, "documents")[0] == {"doc_id": "d0", "title": "T0", "text": "about 0"}
    assert rows(out, "queries")[:2] == [
        {"query_id": "q0", "text": "what is 0?", "answers": ["zero"], "split": "train"},
        {"query_id": "q1", "text": "what is 1?", "answers": [], "split": "train"},
    ]
    assert rows(out, "qrels")[0] == {"query_id": "q2", "doc_id": "d2", "relevance": 2, "split": "test"}
    assert summary == {
        "documents": 6,
        "queries": {"train": 2, "test": 1, "unjudged": 1},
        "judgements": {"test": 2, "train": 2},
        "mean_words": {"documents": 2.0, "queries": 3.0},
        "dropped": {},
    }
    assert json.loads(json.dumps(summary)) == summary


def test_run_again_is_the_same_to_the_byte_and_removes_what_a_kill_left(out: Path, collection: Collection) -> None:
    source = collection.source()
    names = ["documents.parquet", "qrels.parquet", "queries.parquet"]
    ingest(out, None, source=source)
    before = [(out / name).read_bytes() for name in names]
    (out / ".documents.parquet.0a1b2c3d").write_bytes(b"half")
    (out / "queries.parquet").unlink()
    ingest(out, None, source=source)
    assert [(out / name).read_bytes() for name in names] == before
    assert sorted(path.name for path in out.iterdir() if path.suffix != ".json") == names


BAD_INPUT = [
    ("corpus", {"_id": "d1", "title": "", "text": "again"}, "corpus.jsonl:7: duplicate document id 'd1' (first at "),
    ("corpus", {"_id": "d7", "title": " ", "text": ""}, "corpus.jsonl:7: document with neither title nor text 'd7'"),
    ("corpus", {"_id": "d 7", "title": "", "text": "x"}, "corpus.jsonl:7: document id with white space 'd 7'"),
    ("corpus", {"_id": "", "title": "", "text": "x"}, "corpus.jsonl:7: empty document id"),
    ("corpus", {"id": "d7", "title": "", "text": "x"}, "corpus.jsonl:7: wrong columns (expected _id, title and text)"),
    (
        "corpus",
        {"_id": "d7", "title": "", "text": ["x"]},
        "corpus.jsonl:7: wrong columns 'd7' (text must be text, but is",
    ),
    ("corpus", {"_id": "d7", "title": "", "text": "\ud800"}, "corpus.jsonl:7: half of a character 'd7' (the escape"),
    ("corpus", b'{"_id": "d7", "text": "caf\xe9"}', "corpus.jsonl:7: text that is not UTF-8 (invalid continuation"),
    ("corpus", b'{"_id": "d7", "text": ', "corpus.jsonl:7: line that is not JSON (Expecting value"),
    ("queries", {"_id": "q1", "text": "other?"}, "queries.jsonl:5: duplicate query id 'q1' (with another text at "),
    ("queries", {"_id": "q4", "text": " "}, "queries.jsonl:5: empty query 'q4'"),
    ("queries", {"_id": "q\t4", "text": "x"}, "queries.jsonl:5: query id with white space 'q\\t4'"),
    (
        "queries",
        {"_id": "q4", "text": "x", "metadata": {"answers": "one"}},
        "queries.jsonl:5: answers that are not a list of texts 'q4'",
    ),
    ("qrels", "q1\td9\t1", "train.tsv:4: judgement of a missing document 'd9'"),
    ("qrels", "q9\td1\t1", "train.tsv:4: judgement of a missing query 'q9'"),
    ("qrels", "q2\td1\t1", "train.tsv:4: query in two splits 'q2' (train here, test before)"),
    ("qrels", "q1\td1\t2", "train.tsv:4: two relevances for one pair 'q1' ('d1' has 2 here, 1 at "),
    ("qrels", "q1\td2\t1.5", "train.tsv:4: relevance that is not an integer (got '1.5', of query 'q1')"),
    ("qrels", "q1\t0\td2\t1", "train.tsv:4: wrong columns (expected query-id, corpus-id, score, got 4 columns)"),
]


@pytest.mark.parametrize(("where", "line", "message"), BAD_INPUT)
def test_bad_input_is_one_clear_line(out: Path, collection: Collection, where: str, line: Any, message: str) -> None:
    lines = {"corpus": collection.corpus, "queries": collection.queries, "qrels": collection.qrels["train"]}
    lines[where].append(line)
    with pytest.raises(UserError) as caught:
        ingest(out, None, source=collection.source())
    folder = collection.path / "qrels" if where == "qrels" else collection.path
    assert str(caught.value).startswith(f"{folder}/{message}")
    remedy = "Convert the file (iconv -f CP1252 -t UTF-8)" if "UTF-8" in message else "Fix the record"
    assert str(caught.value).endswith(f". {remedy}, or set data.on_bad: drop.")
    assert "\n" not in str(caught.value)
    name = {"corpus": "documents", "queries": "queries", "qrels": "qrels"}[where]
    assert not (out / f"{name}.parquet").exists()
    assert not list(out.glob(".*.parquet*"))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"query_id": "id", "doc_id": "nr"},
            "judgement of a missing document '1' (nor is any other there that a judgement names; the documents are "
            "called such as 'kb1'; is `columns.qrels.doc_id` the right column?)",
        ),
        (
            {"query_id": "nr", "doc_id": "kb"},
            "judgement of a missing query '1' (nor is any other there that a judgement names; the queries are called "
            "such as 't1'; is `columns.qrels.query_id` the right column?)",
        ),
    ],
)
def test_where_judgements_name_nothing_that_is_there_their_column_is_asked_for(
    out: Path, tmp_path: Path, columns: dict[str, str], says: str
) -> None:
    (tmp_path / "articles.csv").write_text("doc_id,text\nkb1,one\nkb2,two\n")
    (tmp_path / "tickets.csv").write_text("id,nr,kb,text\nt1,1,kb1,one?\nt2,2,kb2,two?\n")
    source = base.declared(
        {
            "format": "tables",
            "path": str(tmp_path),
            "documents": "articles.csv",
            "queries": "tickets.csv",
            "qrels": "tickets.csv",
            "graded": False,
            "split": "train",
            "columns": {"queries": {"query_id": "id"}, "qrels": columns},
        }
    )
    with pytest.raises(UserError) as caught:
        ingest(out, None, source=source)
    assert str(caught.value) == f"{tmp_path}/tickets.csv:2: {says}. Fix the record, or set data.on_bad: drop."


def test_no_column_is_asked_for_where_a_judgement_fits_or_the_format_says_it(
    out: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "ROWS", 1)
    collection.qrels = {"train": ["q0\td9\t1"]}
    with refused("train.tsv:2", "judgement-of-a-missing-document", "'d9'", "'d0'"):
        ingest(out, None, source=collection.source())
    collection.qrels = {"train": ["q0\td0\t1", "q0\td9\t1"]}
    with refused("train.tsv:3", "judgement-of-a-missing-document", "'d9'"):
        ingest(out, None, source=collection.source())
    collection.qrels, collection.queries = {"train": ["q0\td0\t1"]}, []
    with refused("train.tsv:2", "judgement-of-a-missing-query", "'q0'"):
        ingest(out, None, source=collection.source())


@pytest.mark.parametrize(("where", "line", "message"), BAD_INPUT)
def test_bad_input_can_be_dropped(out: Path, collection: Collection, where: str, line: Any, message: str) -> None:
    ingest(out, None, source=collection.source())
    before = {name: rows(out, name) for name in ("documents", "queries", "qrels")}
    lines = {"corpus": collection.corpus, "queries": collection.queries, "qrels": collection.qrels["train"]}
    lines[where].append(line)
    summary = ingest(out, None, source=collection.source(on_bad="drop"))
    assert {name: rows(out, name) for name in before} == before
    (reason,) = summary["dropped"]
    assert f": {reason}" in message
    assert summary["dropped"][reason]["count"] == 1
    (example,) = summary["dropped"][reason]["examples"]
    assert isinstance(example, str)


def test_a_dropped_document_takes_its_judgements_along(out: Path, collection: Collection) -> None:
    collection.corpus[2] = {"_id": "d2", "title": "", "text": ""}
    summary = ingest(out, None, source=collection.source(on_bad="drop"))
    assert summary["documents"] == 5
    assert summary["dropped"] == {
        "document with neither title nor text": {"count": 1, "examples": ["d2"]},
        "judgement of a missing document": {"count": 1, "examples": ["d2"]},
    }
    assert summary["note"] == (
        "on_bad: drop left out 2 records (1: document with neither title nor text; 1: judgement of a missing document)"
    )
    assert ("q2", "d2") not in {(row["query_id"], row["doc_id"]) for row in rows(out, "qrels")}


def test_one_reason_in_two_tables_keeps_the_examples_of_both(out: Path, collection: Collection) -> None:
    collection.corpus.append({"id": "d6"})
    collection.qrels["train"].append("q1 d1 1")
    dropped = ingest(out, None, source=collection.source(on_bad="drop"))["dropped"]
    places = [f"{collection.path}/corpus.jsonl:7", f"{collection.path}/qrels/train.tsv:4"]
    assert dropped == {"wrong columns": {"count": 2, "examples": places}}


def test_the_same_query_and_the_same_judgement_twice_merge(out: Path, collection: Collection) -> None:
    collection.queries += collection.queries[:2]
    collection.qrels["train"] += collection.qrels["train"]
    summary = ingest(out, None, source=collection.source())
    assert [row["query_id"] for row in rows(out, "queries")] == ["q0", "q1", "q2", "q3"]
    assert summary["judgements"] == {"test": 2, "train": 2}
    assert summary["dropped"] == {}


def test_a_query_that_two_files_give_to_two_splits(out: Path, tmp_path: Path) -> None:
    for name, text in {"collection": "d\ttext", "queries.dev": "1\tsame", "queries.test": "1\tsame"}.items():
        (tmp_path / f"{name}.tsv").write_text(f"{text}\n")
    source = base.declared({"format": "msmarco", "path": str(tmp_path)})
    with refused("queries.test.tsv:1", "query-in-two-splits"):
        ingest(out, None, source=source)


def test_a_missing_file_is_named(out: Path, collection: Collection) -> None:
    source = collection.source()
    (collection.path / "queries.jsonl").unlink()
    with refused("data", "missing-file", "queries.jsonl"):
        ingest(out, None, source=source)
    assert list(out.iterdir()) == []


def test_a_collection_without_documents_is_refused(out: Path, collection: Collection) -> None:
    collection.corpus = []
    with refused("data", "no-documents"):
        ingest(out, None, source=collection.source())
    collection.corpus = [{"_id": "d", "text": ""}]
    with refused("data", "no-documents"):
        ingest(out, None, source=collection.source(on_bad="drop"))


def test_a_collection_without_queries_is_fine(out: Path, collection: Collection) -> None:
    collection.queries, collection.qrels = [], {"test": []}
    summary = ingest(out, None, source=collection.source())
    assert (summary["queries"], summary["judgements"], summary["mean_words"]["queries"]) == ({}, {}, None)
    assert pq.read_table(out / "qrels.parquet").schema.equals(QRELS)


def test_declared_digests_must_hold(out: Path, collection: Collection) -> None:
    source = collection.source()
    good = hashlib.sha256((collection.path / "corpus.jsonl").read_bytes()).hexdigest()
    ingest(out, None, source=collection.source(sha256={"corpus.jsonl": good}))
    with refused("corpus.jsonl", "other-digest", good, "0000"):
        ingest(out, None, source=collection.source(sha256={"corpus.jsonl": "0" * 64}))
    with refused("data.sha256", "unread-file", "'corpus.tsv'"):
        ingest(out, None, source=collection.source(sha256={"corpus.tsv": good}))
    assert source.sha256 == {}


class Large(base.Source):
    """A collection that is made up while it is read."""

    documents: int

    def read_documents(self) -> Iterator[Document | Bad]:
        for n in range(self.documents):
            yield document(f"d{n}", "", f"{n} " * 500, f"row {n}")

    def read_queries(self) -> Iterator[Query | Bad]:
        for n in range(self.documents // 10):
            yield query(f"q{n}", "text", None, "train", f"row {n}")

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        for n in range(self.documents // 10):
            yield judgement(f"q{n}", f"d{n * 10}", 1, "train", f"row {n}")


def test_memory_does_not_grow_with_the_collection(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "ROWS", 500)

    def peak(documents: int) -> int:
        tracemalloc.start()
        arrow = pa.total_allocated_bytes()
        try:
            ingest(out, None, source=Large(format="large", documents=documents))
            assert pa.total_allocated_bytes() - arrow < 1_000_000
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(2_000), peak(12_000)  # 4 and 30 MB of text
    assert large < small + 2_000_000
    assert pq.ParquetFile(out / "documents.parquet").metadata.num_row_groups == 24
    assert pq.read_metadata(out / "qrels.parquet").num_rows == 1_200


def test_long_documents_make_small_batches(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "CHARACTERS", 10_000)
    ingest(out, None, source=Large(format="large", documents=40))
    assert pq.ParquetFile(out / "documents.parquet").metadata.num_row_groups > 3


def test_ids_whose_hashes_clash_are_told_apart(
    out: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_hash", lambda record: len(step._key(record)))
    collection.qrels = {}
    assert ingest(out, None, source=collection.source())["documents"] == 6
    assert [row["doc_id"] for row in rows(out, "documents")] == [f"d{n}" for n in range(6)]
    collection.corpus.append({"_id": "d3", "text": "again"})
    with refused("corpus.jsonl:7", "duplicate-document-id"):
        ingest(out, None, source=collection.source())


def test_docstrings_tell_versions_and_manifest(out: Path) -> None:
    summary = ingest(out, None, source=base.declared({"format": "docstrings", "packages": ["yaml", "numpy"]}))
    assert list(summary["versions"]) == ["yaml", "numpy"]
    assert len(summary["manifest"]) == 64
    assert summary["documents"] == sum(summary["queries"].values()) == sum(summary["judgements"].values())


@pytest.mark.parametrize(
    ("name", "documents", "judgements"),
    [
        ("squad", 20_958, {"train+dev": 87_423, "test": 10_570}),
        ("scifact", 5_183, {"train+dev": 821 + 98, "test": 339}),
        ("cranfield", 1_400, {"train+dev": 0, "test": 1_837}),
    ],
)
def test_real_collections(out: Path, name: str, documents: int, judgements: dict[str, int]) -> None:
    source = base.declared({"format": "beir", "path": f"data/{name}"})
    if source.missing():
        pytest.skip(f"data/{name} is not here ({os.environ.get('SPARRING_DATA') or 'SPARRING_DATA is not set'})")
    summary = ingest(out, None, source=source)
    counts = summary["judgements"]
    assert summary["documents"] == documents
    assert {"train+dev": counts.get("train", 0) + counts.get("dev", 0), "test": counts["test"]} == judgements
    assert summary["dropped"] == {}
    assert "unjudged" not in summary["queries"]


# A sample of the queries


def test_a_sample_of_a_split_is_the_same_wherever_its_queries_stand(out: Path, collection: Collection) -> None:
    collection.queries = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(20)]
    collection.qrels = {
        "train": [f"q{n}\td{n % 6}\t1" for n in range(15)],
        "test": [f"q{n}\td0\t1" for n in range(15, 20)],
    }
    summary = ingest(out, None, source=collection.source(sample={"train": 7}))
    assert summary["queries"] == {"train": 7, "test": 5}
    assert summary["judgements"] == {"train": 7, "test": 5}
    assert summary["documents"] == 6
    kept = {row["query_id"] for row in rows(out, "queries") if row["split"] == "train"}
    assert kept == {row["query_id"] for row in rows(out, "qrels") if row["split"] == "train"}
    collection.queries.reverse()
    ingest(out, None, source=collection.source(sample={"train": 7}))
    assert {row["query_id"] for row in rows(out, "queries") if row["split"] == "train"} == kept
    ingest(out, None, source=collection.source(sample={"train": 8}))
    assert {row["query_id"] for row in rows(out, "queries") if row["split"] == "train"} > kept
    with refused("data.sample", "unknown-split", "'dev'"):
        ingest(out, None, source=collection.source(sample={"dev": 2}))


def test_documents_that_no_kept_query_asks_for_may_be_left_out(out: Path, collection: Collection) -> None:
    collection.queries = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(20)]
    collection.qrels = {"train": [f"q{n}\td{n % 6}\t{n % 2}" for n in range(20)]}
    sampled = collection.source(sample={"train": 2}, only_judged=True)
    of_two = ingest(out, None, source=sampled)
    assert of_two["documents"] <= 2 < of_two["of_documents"]
    kept = f"{of_two['documents']} of {of_two['of_documents']} documents"
    assert of_two["note"].startswith(f"only_judged keeps {kept}, those that a judgement names. Measures are higher")
    assert {row["doc_id"] for row in rows(out, "documents")} == {row["doc_id"] for row in rows(out, "qrels")}
    whole = ingest(out, None, source=collection.source(only_judged=True))
    assert whole["documents"] == 6
    assert whole.keys().isdisjoint({"note", "of_documents"})
    assert canonical(collection.source(only_judged=False)) == canonical(collection.source())


def test_a_split_is_drawn_from_another_by_its_queries_ids(out: Path, collection: Collection) -> None:
    """The same queries whatever else there is; a sample is drawn from what is left."""
    collection.queries = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(200)]
    collection.qrels = {
        "train": [f"q{n}\td{n % 6}\t1" for n in range(150)],
        "test": [f"q{n}\td0\t1" for n in range(150, 200)],
    }
    hold_out = {"dev": {"share": 0.2}}
    summary = ingest(out, None, source=collection.source(hold_out=hold_out))
    assert summary["queries"] == summary["judgements"]
    assert summary["queries"]["test"] == 50
    assert 20 < summary["queries"]["dev"] < 40
    assert summary["queries"]["train"] == 150 - summary["queries"]["dev"]
    drawn = {row["query_id"] for row in rows(out, "queries") if row["split"] == "dev"}
    assert {row["query_id"] for row in rows(out, "qrels") if row["split"] == "dev"} == drawn
    collection.qrels["train"] = collection.qrels["train"][:100]
    fewer = ingest(out, None, source=collection.source(hold_out=hold_out, sample={"train": 10}))
    assert {row["query_id"] for row in rows(out, "queries") if row["split"] == "dev"} < drawn
    assert fewer["queries"]["train"] == 10
    with refused("data.hold_out", "unusable-name", "'test'"):
        ingest(out, None, source=collection.source(hold_out={"test": {"of": "train"}}))
    with refused("data.hold_out.dev.of", "unknown-split", "'trian'"):
        ingest(out, None, source=collection.source(hold_out={"dev": {"of": "trian"}}))


def test_queries_of_the_same_text_are_drawn_into_the_same_split(out: Path, collection: Collection) -> None:
    """Or a model is measured on what it was trained on. Others are drawn as without them."""
    twins = [{"_id": f"twin{n}", "text": f" What  is {n}?"} for n in range(100)]
    alone = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(200)]
    shares = {"test": {"share": 0.3}, "dev": {"share": 0.5}}

    def drawn(queries: list[dict[str, str]]) -> dict[str, str]:
        collection.queries = queries
        collection.qrels = {"train": [f"{query['_id']}\td0\t1" for query in queries]}
        ingest(out, None, source=collection.source(hold_out=shares))
        splits = {row["query_id"]: row["split"] for row in rows(out, "queries")}
        assert {row["query_id"]: row["split"] for row in rows(out, "qrels")} == splits
        return splits

    before, both = drawn(alone), drawn([*twins, *alone])
    assert {both[f"twin{n}"] == both[f"q{n}"] for n in range(100)} == {True}
    assert {name: both[name] for name in before} == before
    assert set(Counter(both[f"twin{n}"] for n in range(100))) == {"train", "dev", "test"}


@pytest.mark.parametrize("starts", [(None, None), (0.0, 0.4), (None, 0.5)])
def test_a_source_foretells_how_many_are_drawn(
    out: Path, collection: Collection, starts: tuple[float | None, float | None]
) -> None:
    """Of a share without a place, of those that are left; within four standard deviations."""
    collection.queries = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(2000)]
    collection.qrels = {"train": [f"q{n}\td{n % 6}\t1" for n in range(2000)]}
    shares = {split: {"share": 0.4, "start": start} for split, start in zip(("test", "dev"), starts, strict=True)}
    source = collection.source(hold_out=shares)
    drawn, foretold = ingest(out, None, source=source)["queries"], source.counts({"train": 2000})
    assert foretold["dev"] == (800 if starts == (0.0, 0.4) else 480)
    assert all(abs(drawn[split] - foretold[split]) < 4 * 22 for split in ("train", "dev", "test"))


def test_shares_that_do_not_overlap_have_no_query_in_common(out: Path, collection: Collection) -> None:
    """Folds: wherever they begin, also across the circle's end, all queries are dealt."""
    collection.queries = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(300)]
    collection.qrels = {"test": [f"q{n}\td{n % 6}\t1" for n in range(300)]}
    dealt: list[str] = []
    for start in (0.0, 0.25, 0.5, 0.75):
        shares = {"train": {"of": "test", "start": (start + 0.25) % 1, "share": 0.75}}
        ingest(out, None, source=collection.source(hold_out=shares))
        query_ids = [row["query_id"] for row in rows(out, "queries") if row["split"] == "test"]
        assert 50 < len(query_ids) < 100
        dealt += query_ids
    assert sorted(dealt) == sorted(f"q{n}" for n in range(300))


def test_a_sample_by_document_has_all_queries_of_some_documents(out: Path, collection: Collection) -> None:
    """Five documents have three questions each; the last one drawn gives two. A question that asks for none is none."""
    collection.queries = [{"_id": f"q{n}", "text": f"what is {n}?"} for n in range(16)]
    collection.qrels = {"train": [f"q{n}\td{n % 5}\t1" for n in range(15)] + ["q15\td0\t0"]}
    sample = {"train": {"queries": 8, "by": "document"}}
    assert ingest(out, None, source=collection.source(sample=sample))["queries"] == {"train": 8}
    judged = {row["query_id"]: row["doc_id"] for row in rows(out, "qrels")}
    assert sorted(Counter(judged.values()).values()) == [2, 3, 3]
    collection.queries.reverse()
    collection.qrels["train"].reverse()
    ingest(out, None, source=collection.source(sample=sample))
    assert {row["query_id"]: row["doc_id"] for row in rows(out, "qrels")} == judged
    with pytest.raises(ValueError, match="document"):
        collection.source(sample={"train": {"queries": 8, "by": "title"}})


def test_bad_lines_are_seen_in_a_sample_too(out: Path, collection: Collection) -> None:
    collection.qrels["train"].append("q3\tnowhere")
    with refused("train.tsv:4", "wrong-columns"):
        ingest(out, None, source=collection.source(sample={"train": 1}))


def test_one_reading_of_the_queries_serves_all_samples(out: Path) -> None:
    readings = []

    class Counting(Large):
        def read_queries(self) -> Iterator[Query | Bad]:
            readings.append(1)
            for n in range(30):
                yield query(f"q{n}", "text", None, ["train", "dev", "test"][n % 3], f"row {n}")

        def read_qrels(self) -> Iterator[Judgement | Bad]:
            yield from ()

    summary = ingest(out, None, source=Counting(format="counting", documents=1, sample={"train": 4, "dev": 3}))
    assert summary["queries"] == {"train": 4, "dev": 3, "test": 10}
    assert len(readings) == 2  # to draw the samples, and to write what stays
    readings.clear()
    ingest(out, None, source=Counting(format="counting", documents=1))
    assert len(readings) == 1


def test_queries_that_are_trained_on_under_another_id_are_told(out: Path, collection: Collection) -> None:
    """Their results are too good."""
    collection.queries += [{"_id": "q8", "text": "what is 0?"}, {"_id": "q9", "text": "what is 7?"}]
    collection.qrels["test"] += ["q8\td0\t1", "q9\td1\t1"]
    summary = ingest(out, None, source=collection.source())
    note = "queries with the text of a training query, which flatters trained systems: 1 of the 3 of test"
    assert summary["note"] == note


def test_queries_that_are_documents_are_told_of(out: Path, collection: Collection) -> None:
    """Of q0 and q1 with the texts of documents; d1 is judged relevant to q1, so it is a result and no copy."""
    for number in (0, 1):
        collection.queries[number]["text"] = f"About {number}"
    collection.qrels["train"][0] = "q0\td4\t1"
    summary = ingest(out, None, source=collection.source())
    assert summary["own_documents"] == 1
    assert summary["note"] == summary["undecided"]
    assert summary["note"].startswith("1 of 4 queries are documents of the collection themselves, such as 'q0', whose")
    assert rows(out, "own") == [{"query_id": "q0", "doc_id": "d0", "left_out": False}]
    kept = ingest(out, None, source=collection.source(own_document="keep"))
    assert kept["own_documents"] == 1
    assert kept.keys().isdisjoint({"note", "undecided"})


def test_a_query_that_is_left_out_is_not_judged_by_itself(out: Path, collection: Collection) -> None:
    collection.queries.append({"_id": "d5", "text": "about 5"})
    collection.qrels["test"] += ["d5\td5\t1", "d5\td4\t1"]
    summary = ingest(out, None, source=collection.source(own_document="leave out"))
    assert summary["judgements"] == {"train": 2, "test": 3}
    assert summary["note"] == "own_document: leave out: 1 judgement of a query's own document does not count"
    assert [row["doc_id"] for row in rows(out, "qrels") if row["query_id"] == "d5"] == ["d4"]
    assert rows(out, "own") == [{"query_id": "d5", "doc_id": "d5", "left_out": True}]


def test_what_is_to_be_left_out_and_is_not_there_is_told(out: Path, collection: Collection) -> None:
    summary = ingest(out, None, source=collection.source(own_document="leave out"))
    assert summary["note"].endswith("no query is a document of the collection, so nothing is left out")
    assert not (out / "own.parquet").exists()
