"""Another system's ranking, from a file."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import DOCUMENTS, QUERIES
from sparring.workflows.experiments import loading
from sparring.workflows.steps.imported_ranking import RankingFile, rank_from_file
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.store.dag import graph
from tests.support import tiny, toy
from tests.support.errors import refused


def asked(data: Path) -> list[tuple[str, str]]:
    """Ids and texts of the test queries."""
    rows = pq.read_table(data / "queries.parquet").to_pylist()
    return [(row["query_id"], row["text"]) for row in rows if row["split"] == "test"]


def given(data: Path, out: Path, path: Path, k: int = 10, **more: Any) -> list[tuple[str, str, int]]:
    out.mkdir(exist_ok=True)
    summary = rank_from_file(out, toy.INLINE, data=data, split="test", k=k, config=RankingFile(path=str(path), **more))
    (out / "said.json").write_text(json.dumps(summary))
    rows = pq.read_table(out / "ranking.parquet").to_pylist()
    return [(row["query_id"], row["doc_id"], row["rank"]) for row in rows]


def test_a_run_file_is_ranked_by_its_scores(data: Path, tmp_path: Path) -> None:
    query = asked(data)[0][0]
    path = tmp_path / "other.run"
    path.write_text(f"{query} Q0 d1 1 0.5 x\n{query} Q0 d2 2 0.7 x\n{query} Q0 d3 3 0.1 x\n")
    assert given(data, tmp_path / "out", path, k=2) == [(query, "d2", 1), (query, "d1", 2)]


def test_a_querys_own_document_is_left_out_of_another_systems_ranking_too(data: Path, tmp_path: Path) -> None:
    query = asked(data)[0][0]
    folder = toy.with_own(tmp_path / "data", data, [(query, "d2")])
    path = tmp_path / "other.run"
    path.write_text("".join(f"{query} Q0 d{number} {number} {1 / number} x\n" for number in (1, 2, 3, 4)))
    assert given(folder, tmp_path / "out", path, k=2) == [(query, "d1", 1), (query, "d3", 2)]


def test_a_file_of_dprs_is_ranked_as_it_stands(data: Path, tmp_path: Path) -> None:
    """Questions are found by their text, in any order; a document counts once, and a question."""
    (first_id, first), (two, second) = asked(data)[:2]
    contexts = [{"id": "wiki:d4"}, {"passage_id": "d1"}, {"psg_id": "d4"}]
    path = tmp_path / "other.json"
    again = [{"question": second, "ctxs": [{"id": "d9"}, {"id": "d4"}]}]
    entries = [{"question": second, "ctxs": contexts[:1]}, {"question": first, "ctxs": contexts}, *again]
    path.write_text(json.dumps(entries))
    assert given(data, tmp_path / "out", path) == [(two, "d4", 1), (first_id, "d4", 1), (first_id, "d1", 2)]


def test_apostrophes_of_either_kind_are_one(data: Path, tmp_path: Path) -> None:
    """And the objects may be lines."""
    rows = pq.read_table(data / "queries.parquet").to_pylist()
    query = asked(data)[0][0]
    for row in rows:
        row["text"] = "the dog\u2019s" if row["query_id"] == query else row["text"]
    folder = shutil.copytree(data, tmp_path / "data")
    pq.write_table(pa.Table.from_pylist(rows, schema=QUERIES), folder / "queries.parquet")
    for number, question in enumerate(["the dog\u2019s", "the dog's"]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps({"question": question, "ctxs": [{"id": "d4"}]}) + "\n")
        assert given(folder, tmp_path / "out", path) == [(query, "d4", 1)]


def test_queries_of_other_splits_are_left_out(data: Path, tmp_path: Path) -> None:
    """Who ranks all of a collection's queries need not know which are held out."""
    query = asked(data)[0][0]
    path = tmp_path / "other.run"
    path.write_text(f"q1 Q0 d1 1 0.5 x\n{query} Q0 d2 1 0.7 x\n")
    assert given(data, tmp_path / "out", path) == [(query, "d2", 1)]


def test_of_two_queries_with_one_text_the_splits_is_meant(data: Path, tmp_path: Path) -> None:
    """A file of DPR's has texts alone, and the same question may be in two splits."""
    rows = pq.read_table(data / "queries.parquet").to_pylist()
    query, question = asked(data)[0]
    for row in rows:
        row["text"] = question if row["split"] != "test" else row["text"]
    folder = shutil.copytree(data, tmp_path / "data")
    pq.write_table(pa.Table.from_pylist(rows, schema=QUERIES), folder / "queries.parquet")
    path = tmp_path / "other.json"
    path.write_text(json.dumps([{"question": question, "ctxs": [{"id": "d4"}]}]))
    assert given(folder, tmp_path / "out", path) == [(query, "d4", 1)]


def test_all_queries_of_the_split_with_a_text_have_its_ranking(data: Path, tmp_path: Path) -> None:
    rows = pq.read_table(data / "queries.parquet").to_pylist()
    (first, question), (second, _) = asked(data)[:2]
    for row in rows:
        row["text"] = question if row["query_id"] == second else row["text"]
    folder = shutil.copytree(data, tmp_path / "data")
    pq.write_table(pa.Table.from_pylist(rows, schema=QUERIES), folder / "queries.parquet")
    path = tmp_path / "other.JSONL"
    path.write_text(json.dumps({"question": question, "ctxs": [{"id": "d4"}, {"id": "d2"}]}) + "\n")
    hits = given(folder, tmp_path / "out", path)
    assert hits == [(query, doc, rank) for query in (first, second) for rank, doc in ((1, "d4"), (2, "d2"))]


def test_a_run_file_may_have_json_within_its_name(data: Path, tmp_path: Path) -> None:
    query, _ = asked(data)[0]
    path = tmp_path / "ours.json.trec"
    path.write_text(f"{query} Q0 d4 1 0.5 x\n")
    assert given(data, tmp_path / "out", path) == [(query, "d4", 1)]


DROPPED = {
    "a.run": "{query} Q0 gone 1 0.9 x\n{query} Q0 d2 2 0.7 x\n{query} Q0 lost 3 0.5 x\n{query} Q0 d1 4 0.3 x\n"
    "{other} Q0 gone 1 0.5 x\nnobody Q0 d1 1 0.5 x\nq1 Q0 gone 1 0.5 x\n",
    "a.json": '[{"question": "{text}", "ctxs": [{"id": "gone"}, {"id": "d2"}, {"id": "lost"}, {"id": "d1"}]},'
    '{"question": "{more}", "ctxs": [{"id": "gone"}]}, {"question": "what is it", "ctxs": [{"id": "d1"}]}]',
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_the_collection_has_not_can_be_dropped(data: Path, tmp_path: Path, name: str) -> None:
    """The others move up, before the ranking is cut; a query of which nothing is left has no results."""
    (query, question), (second, more) = asked(data)[:2]
    text = DROPPED[name].replace("{query}", query).replace("{other}", second)
    (tmp_path / name).write_text(text.replace("{text}", question).replace("{more}", more))
    hits = given(data, tmp_path / "out", tmp_path / name, k=2, unknown="drop")
    assert hits == [(query, "d2", 1), (query, "d1", 2)]
    queries = len(asked(data))
    summary = json.loads((tmp_path / "out" / "said.json").read_text())
    note = summary.pop("note")
    assert note.startswith(f"The file has no results for {queries - 1} of the {queries} queries of test. ")
    assert note.endswith(" 3 of its 5 rows name documents that the collection lacks, and were dropped.")
    assert summary == {
        "queries": queries,
        "without_results": queries - 1,
        "of_other_splits": int(name == "a.run"),
        "dropped_queries": 1,
        "dropped_documents": 3,
    }


def test_a_file_of_other_documents_alone_is_refused(data: Path, tmp_path: Path) -> None:
    """Their ids are others, which dropping would hide."""
    path = tmp_path / "a.run"
    path.write_text(f"{asked(data)[0][0]} Q0 gone 1 0.9 x\n")
    with refused("a.run", "other-collection"):
        given(data, tmp_path / "out", path, unknown="drop")


@pytest.mark.parametrize(
    ("name", "text", "code", "fact"),
    [
        ("a.run", "nobody Q0 d1 1 0.5 x\n", "unknown-query", "nobody"),
        ("a.run", "q1 Q0 d1 1 0.5 x\n", "no-rows", "'test'"),
        ("a.run", "{query} Q0 d999 1 0.5 x\n", "unknown-document", "d999"),
        ("a.json", '[{"question": "what is it", "ctxs": []}]', "unknown-query", "'what is it'"),
        ("a.json", '[{"question": "what is it"}]', "unknown-layout", "item 1"),
        ("a.json", '[{"question": "{text}", "ctxs": [{"title": "x"}]}]', "no-id", "passage_id, psg_id"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(
    data: Path, tmp_path: Path, name: str, text: str, code: str, fact: str
) -> None:
    query, question = asked(data)[0]
    (tmp_path / name).write_text(text.replace("{query}", query).replace("{text}", question))
    with refused(name, code, fact):
        given(data, tmp_path / "out", tmp_path / name)


def test_a_file_that_is_not_there_is_refused(data: Path, tmp_path: Path) -> None:
    with refused("gone.run", "missing-file"):
        given(data, tmp_path / "out", tmp_path / "gone.run")


def test_it_is_a_system_of_its_split_alone(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Measured where it has queries, fused with the dense retriever where that is asked, never selected."""
    tree: dict[str, Any] = tiny.ear(beir, encoder)
    tree["evaluate"] = {"other_rankings": {"SEAL": {"path": "seal.json"}, "elsewhere": {"path": "a.run", "split": "x"}}}
    tree["with_dense"] = ["first expansion", "SEAL", "elsewhere"]
    systems = {system.name for system in loading.read(tiny.write(tmp_path / "a.yaml", tree), [], tmp_path).outcome.rows}
    assert {"SEAL", "SEAL + dense", "first expansion + dense"} <= systems
    assert not {"elsewhere", "elsewhere + dense"} & systems
    tree["with_dense"] = ["CCS"]
    with pytest.raises(UserError, match="with_dense: 'CCS'; accepted: "):
        loading.read(tiny.write(tmp_path / "b.yaml", tree), [], tmp_path)


def in_two_forms(folder: Path) -> tuple[Path, Path]:
    """A collection whose ids are in NFC, and another system's ranking of it whose ids are in NFD."""
    folder.mkdir()
    name = "caf\u00e9"
    texts = [f"{name}-{number}" for number in (1, 2)]
    documents = {"doc_id": texts, "title": ["", ""], "text": ["one", "two"]}
    queries = {"query_id": [f"q-{name}"], "text": ["asked?"], "answers": [[]], "split": ["test"]}
    pq.write_table(pa.table(documents, schema=DOCUMENTS), folder / "documents.parquet")
    pq.write_table(pa.table(queries, schema=QUERIES), folder / "queries.parquet")
    path = folder / "other.run"
    text = f"q-{name} Q0 {name}-2 1 0.9 x\nq-{name} Q0 {name}-1 2 0.5 x\n"
    path.write_text(unicodedata.normalize("NFD", text))
    return folder, path


def test_ids_of_a_ranking_are_read_in_the_collections_form(tmp_path: Path) -> None:
    data, path = in_two_forms(tmp_path / "data")
    out = tmp_path / "out"
    out.mkdir()
    rank_from_file(out, toy.INLINE, data=data, split="test", k=10, config=RankingFile(path=str(path), ids="NFC"))
    rows = pq.read_table(out / "ranking.parquet").to_pylist()
    assert [(row["query_id"], row["doc_id"], row["rank"]) for row in rows] == [
        ("q-caf\u00e9", "caf\u00e9-2", 1),
        ("q-caf\u00e9", "caf\u00e9-1", 2),
    ]


def test_without_the_form_it_is_told(tmp_path: Path) -> None:
    data, path = in_two_forms(tmp_path / "data")
    says = "it exists in a different Unicode form, NFC. Write `ids: NFC` under `data` to read all ids in one form."
    with pytest.raises(UserError, match=f"is not in the collection; {says}"):
        given(data, tmp_path / "out", path)
    path.write_text(path.read_text().replace(unicodedata.normalize("NFD", "q-caf\u00e9"), "q-caf\u00e9"))
    with pytest.raises(UserError, match=f"the document .* is not in the collection; {says}"):
        given(data, tmp_path / "out", path)


def test_a_ranking_that_has_a_document_in_both_forms_is_refused(tmp_path: Path) -> None:
    data, path = in_two_forms(tmp_path / "data")
    path.write_text(path.read_text() + "q-caf\u00e9 Q0 caf\u00e9-1 3 0.1 x\n")
    config = RankingFile(path=str(path), ids="NFC")
    with refused("other.run", "duplicate"):
        rank_from_file(tmp_path, toy.INLINE, data=data, split="test", k=10, config=config)


def test_the_collections_form_is_that_of_its_rankings_and_judgements(tmp_path: Path) -> None:
    """Those of other judgements too: rankings have ids in that form."""
    tree = tiny.dpr(Path("data/toy"), Path("models/toy"))
    tree["evaluate"] = {
        **tree.get("evaluate", {}),
        "other_rankings": {"theirs": {"path": "x.run"}},
        "other_qrels": {"others": {"format": "beir", "path": "data/others"}},
    }
    plan = loading.read(tiny.write(tmp_path / "tiny.yaml", tree), ["data.ids=NFC"], Path("runs"))
    ranked = [node for node in graph(plan.wanted) if node.function is rank_from_file]
    assert ranked
    assert all(node.inputs["config"].ids == "NFC" for node in ranked)
    read = [node.inputs["source"] for node in graph(plan.wanted) if node.function is ingest]
    assert {source.path: source.ids for source in read} == {"data/toy": "NFC", "data/others": "NFC"}
