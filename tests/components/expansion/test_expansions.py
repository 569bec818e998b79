"""Expansions as a table, as a collection, and from files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import EXPANSIONS, QRELS, QUERIES, check
from sparring.components.expansion import expansions


def test_the_papers_form_of_an_expanded_query() -> None:
    assert expansions.expand_query("who won", "Oregon, Idaho") == "who won ? Oregon, Idaho"
    assert expansions.expand_query("Who won? ", "it") == "Who won ? it"  # SQuAD's questions end with a mark
    assert expansions.expand_query("who won", "") == "who won ?"


def test_what_says_the_same_is_there_once_under_its_first_number() -> None:
    result = expansions.distinct(["May  18", "may 18", "", "18 May", "May 18"])
    assert result == [(1, "May 18"), (4, "18 May")]
    rows = expansions.rows("q1", ["a", "A", "b"])
    assert [(row["doc_id"], row["text"], row["number"]) for row in rows] == [("q1#1", "a", 1), ("q1#3", "b", 3)]
    check(pa.Table.from_pylist(rows), EXPANSIONS, source="rows")


def test_each_expansion_is_a_query_of_a_collection(tmp_path: Path, data: Path) -> None:
    rows = expansions.rows("q3", ["ba", "co"]) + expansions.rows("q0", ["du"])
    summary = expansions.write_collection(tmp_path, data, pa.Table.from_pylist(rows, schema=EXPANSIONS))
    assert summary == {"expansions": 3, "queries": 2, "a_query": 1.5}
    assert os.path.samefile(tmp_path / "documents.parquet", data / "documents.parquet")
    before = {row["query_id"]: row for row in pq.read_table(data / "queries.parquet").to_pylist()}
    requests = check(pq.read_table(tmp_path / "queries.parquet"), QUERIES, source="queries").to_pylist()
    assert [row["query_id"] for row in requests] == ["q3#1", "q3#2", "q0#1"]
    assert requests[1]["text"] == f"{before['q3']['text']} ? co"
    assert requests[1]["split"] == before["q3"]["split"]
    judged = pq.read_table(data / "qrels.parquet").to_pylist()
    wanted = {
        (f"{row['query_id']}#{k}", row["doc_id"], row["relevance"])
        for row in judged
        for k in {"q3": (1, 2), "q0": (1,)}.get(row["query_id"], ())
    }
    result = check(pq.read_table(tmp_path / "qrels.parquet"), QRELS, source="qrels").to_pylist()
    assert {(row["query_id"], row["doc_id"], row["relevance"]) for row in result} == wanted
    assert len(result) == len(wanted)


def test_without_links_documents_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("text")
    expansions.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "text"
    assert not os.path.samefile(tmp_path / "a", tmp_path / "b")


def test_folds_are_parts_of_about_one_size() -> None:
    folds = [expansions.fold_of(f"q{i}", 5) for i in range(1_000)]
    assert all(150 < folds.count(fold) < 250 for fold in range(5))


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_files_have_a_text_or_several(tmp_path: Path) -> None:
    path = write(
        tmp_path / "some.jsonl",
        {"_id": "a", "expansions": {"titles": "Deadpool 2 *** X-Men"}},
        {"_id": "b", "expansions": {"titles": ["one", "two"]}},
    )
    assert expansions.read_expansions(path, "titles").by_query == {"a": ["Deadpool 2 *** X-Men"], "b": ["one", "two"]}
    split = expansions.read_expansions(path, "titles", " *** ").by_query
    assert split == {"a": ["Deadpool 2", "X-Men"], "b": ["one", "two"]}
    with gzip.open(tmp_path / "other.jsonl.gz", "wb") as file:
        file.write(path.read_bytes())
    assert expansions.read_expansions(tmp_path / "other.jsonl", "titles", " *** ").by_query == split


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"_id": "a"}, r":2: expected .*, got {\"_id\": \"a\"}"),
        ({"_id": 1.5, "expansions": {"titles": "x"}}, r":2: expected .*, got {\"_id\": 1\.5"),
        ({"_id": "b", "expansions": {"answers": "x"}}, r":2: there are no expansions 'titles'; accepted: answers"),
        ({"_id": "b", "expansions": {"titles": 3}}, r":2: titles: expected a text or a list of texts, got 3"),
        ({"_id": "a", "expansions": {"titles": "x"}}, r":2: query 'a' occurs a second time"),
        ([1], r":2: line that is not JSON"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", {"_id": "a", "expansions": {"titles": "x"}}, line)
    with pytest.raises(UserError, match=message):
        expansions.read_expansions(path, "titles")


def test_the_form_of_gar_t5s_released_expansions(tmp_path: Path) -> None:
    """A line as they have it: a text of each generator, answers with spaces before commas, titles in one text."""
    fields = {
        "answers": "May 18 , 2018",
        "sentences": "Deadpool 2 is scheduled to be released in the United States on May 18, 2018.",
        "titles": "Deadpool 2 *** Deadpool (film) *** Deadpool 2 *** X-Men (film series)",
    }
    path = write(tmp_path / "gar.jsonl", {"_id": "nq-test-1", "expansions": fields})
    for field in ("answers", "sentences"):
        assert expansions.read_expansions(path, field).by_query == {"nq-test-1": [fields[field]]}
    titles = expansions.read_expansions(path, "titles", " *** ").by_query["nq-test-1"]
    assert titles == ["Deadpool 2", "Deadpool (film)", "Deadpool 2", "X-Men (film series)"]
    assert expansions.distinct(titles) == [(1, "Deadpool 2"), (2, "Deadpool (film)"), (4, "X-Men (film series)")]


def test_gar_t5s_released_expansions_of_natural_questions() -> None:
    """3,610 test questions with one text each from three generators; in most titles' and in some answers' texts there
    are several, as in the targets that GAR's generators learn to write here."""
    folder = os.environ.get("SPARRING_TEST_DATA")
    if not folder:
        pytest.skip("$SPARRING_TEST_DATA is not set")
    path = Path(folder) / "qa-topics" / "nq-test-gar.jsonl"
    result = {field: expansions.read_expansions(path, field).by_query for field in ("answers", "sentences", "titles")}
    assert {field: len(by_query) for field, by_query in result.items()} == dict.fromkeys(result, 3610)
    assert all(len(texts) == 1 for by_query in result.values() for texts in by_query.values())
    assert result["answers"]["nq-test-1"] == ["May 18 , 2018"]
    titles = expansions.read_expansions(path, "titles", " *** ").by_query
    assert titles["nq-test-1"][:2] == ["Deadpool 2", "Deadpool (film)"]
    assert sum(len(value) > 1 for value in titles.values()) == 2857
    assert max(map(len, titles.values())) == 11
    assert sum(len(item.split()) for value in titles.values() for item in value) / 3610 == pytest.approx(
        21.486, abs=1e-3
    )
    answers = expansions.read_expansions(path, "answers", " *** ").by_query
    assert sum(len(value) > 1 for value in answers.values()) == 394
    sentences = expansions.read_expansions(path, "sentences", " *** ").by_query
    assert max(map(len, sentences.values())) == 1
