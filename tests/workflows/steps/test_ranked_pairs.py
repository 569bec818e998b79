"""Training examples as a ranking has them: none is left out, none is added."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import ANSWERED, GROUPS, check, read
from sparring.workflows.steps.answers import AnswerConfig, answering
from sparring.workflows.steps.ranked_pairs import ranked_pairs
from tests.support import toy

RANKED = {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(6)] for i in range(24)}
"""Each query finds its own document first."""


@pytest.fixture(scope="module")
def ranking(toys: Path) -> Path:
    return toy.write_ranking(toys / "pairs ranking", RANKED)


def pairs(out: Path, data: Path, ranking: Path, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    out.mkdir()
    settings = {"split": "train", "by_answer": False, "depth": 4, "groups": 64, "seed": [1], **options}
    summary = ranked_pairs(out, toy.INLINE, data=data, ranking=ranking, **settings)
    return check(pq.read_table(out / "groups.parquet"), GROUPS, source="groups").to_pylist(), summary


def test_a_pass_has_each_of_the_first_documents_once(data: Path, ranking: Path, tmp_path: Path) -> None:
    """Relevant or not, a pair a group; the next pass has them in another order."""
    rows, summary = pairs(tmp_path / "out", data, ranking, groups=128 + 10)
    relevant = {
        (row["query_id"], row["doc_id"])
        for row in pq.read_table(data / "qrels.parquet").to_pylist()
        if row["relevance"] > 0
    }
    queries = [f"q{i}" for i in range(24) if i % 3]
    wanted = {(query, document) for query in queries for document in RANKED[query][:4]}
    for visit in (0, 1):
        part = rows[64 * visit : 64 * (visit + 1)]
        assert {(row["query_id"], *row["doc_ids"]) for row in part} == wanted
        assert {row["visit"] for row in part} == {visit}
    assert [row["query_id"] for row in rows[:64]] != [row["query_id"] for row in rows[64:128]]
    assert all(row["targets"] == [float((row["query_id"], *row["doc_ids"]) in relevant)] for row in rows)
    positives = len(wanted & relevant)
    assert 0 < positives < len(wanted)
    assert summary == {"groups": 138, "pairs": 64, "positives": positives, "queries": 16}


def test_a_document_that_bears_an_answer_is_a_positive(data: Path, ranking: Path, tmp_path: Path) -> None:
    """As `answering` says, whatever is judged."""
    dataset = toy.with_answers(tmp_path / "data", data)
    (tmp_path / "answers").mkdir()
    answering(tmp_path / "answers", toy.INLINE, data=dataset, ranking=ranking, splits=["train"], config=AnswerConfig())
    hits = {
        (row["query_id"], row["doc_id"]): row["hit"]
        for row in read(tmp_path / "answers" / "ranking.parquet", ANSWERED).to_pylist()
    }
    rows, _ = pairs(tmp_path / "out", dataset, tmp_path / "answers", by_answer=True)
    assert Counter(row["targets"][0] for row in rows).keys() == {0.0, 1.0}
    assert all(row["targets"] == [float(hits[row["query_id"], row["doc_ids"][0]])] for row in rows)


def test_pairs_that_are_all_alike_teach_nothing(data: Path, ranking: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"passages: 16 of the 16 documents that BM25 ranks first .* accepted: another"):
        pairs(tmp_path / "out", data, ranking, depth=1)
