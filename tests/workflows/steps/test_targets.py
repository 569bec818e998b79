"""What generators learn to write, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import ANSWERED, DOCUMENTS, GROUPS, QRELS, QUERIES, check, write
from sparring.components.expansion.expansions import fold_of
from sparring.components.expansion.targets import MOST_TITLES, TargetConfig, joined
from sparring.workflows.steps.targets import targets
from tests.support import toy

TEXTS = [
    ("d0", "Oslo", "Norway is cold. Its capital is Oslo. Oslo grew."),
    ("d1", "Bergen", "Bergen is wet. Oslo is not."),
    ("d2", "Rome", "Rome is warm."),
]
ANSWERS = {"q0": ["Oslo", "Christiania"], "q1": [], "q2": ["Rome"]}
FOUND = [
    ("q0", "d2", 1, False),
    ("q0", "d1", 3, True),
    ("q0", "d0", 2, True),
    ("q1", "d0", 1, False),
    ("q2", "d1", 1, False),
    ("q2", "d2", 2, True),
]
JUDGED = [("q0", "d2", 0), ("q0", "d1", 1), ("q0", "d0", 1), ("q1", "d2", 1)]


def write_places(folder: Path, answers: dict[str, list[str]] = ANSWERS) -> dict[str, Path]:
    """The collection, and its ranking that says which documents bear an answer."""
    queries = [
        {"query_id": query, "text": f"where {query}", "answers": phrases, "split": "train"}
        for query, phrases in answers.items()
    ]
    rows: dict[str, tuple[pa.Schema, list[dict[str, Any]]]] = {
        "documents": (DOCUMENTS, [dict(zip(DOCUMENTS.names, row, strict=True)) for row in TEXTS]),
        "queries": (QUERIES, queries),
        "qrels": (QRELS, [{"query_id": q, "doc_id": d, "relevance": r, "split": "train"} for q, d, r in JUDGED]),
        "ranking": (
            ANSWERED,
            [
                {"query_id": q, "doc_id": d, "rank": rank, "score": -float(rank), "hit": hit}
                for q, d, rank, hit in FOUND
            ],
        ),
    }
    for name, (schema, records) in rows.items():
        write(folder / f"{name}.parquet", pa.Table.from_pylist(records, schema=schema), schema)
    return {"data": folder, "ranking": folder}


def written(out: Path, places: dict[str, Path], leave_out: list[int] | None = None, **config: Any) -> dict[str, str]:
    """query -> its target."""
    out.mkdir(parents=True)
    summary = targets(
        out, toy.INLINE, **places, splits=["train"], leave_out=leave_out, mode="tokens", config=TargetConfig(**config)
    )
    groups = check(pq.read_table(out / "groups.parquet"), GROUPS, source="groups").to_pylist()
    texts = {row["doc_id"]: row["text"] for row in pq.read_table(out / "documents.parquet").to_pylist()}
    assert summary["targets"] == len(groups) == len(texts)
    return {row["query_id"]: texts[row["doc_ids"][0]] for row in groups}


@pytest.mark.parametrize(
    ("kind", "documents", "several", "wanted"),
    [
        ("answer", "answering", "joined", {"q0": "Oslo *** Christiania", "q2": "Rome"}),
        ("answer", "judged", "joined", {"q0": "Oslo *** Christiania", "q2": "Rome"}),
        ("answer", "answering", "first", {"q0": "Oslo", "q2": "Rome"}),
        ("sentence", "answering", "joined", {"q0": "Its capital is Oslo.", "q2": "Rome is warm."}),
        ("sentence", "answering", "first", {"q0": "Its capital is Oslo.", "q2": "Rome is warm."}),
        ("sentence", "judged", "joined", {"q0": "Oslo is not.", "q1": "Rome is warm."}),
        ("title", "answering", "joined", {"q0": "Oslo *** Bergen", "q2": "Rome"}),
        ("title", "judged", "joined", {"q0": "Bergen *** Oslo", "q1": "Rome"}),
        ("title", "answering", "first", {"q0": "Oslo", "q2": "Rome"}),
        ("title", "judged", "first", {"q0": "Bergen", "q1": "Rome"}),
    ],
)
def test_each_kind_of_target(tmp_path: Path, kind: str, documents: str, several: str, wanted: dict[str, str]) -> None:
    """The documents of the ranking that bear an answer, or those that are relevant: of the first the first sentence
    that bears one, or the titles of all."""
    places = write_places(tmp_path)
    assert written(tmp_path / "out", places, kind=kind, documents=documents, several=several) == wanted


def test_titles_are_different_ones_and_ten_at_most() -> None:
    """As in the released texts; answers have no such limit."""
    titles = ["Oslo", "", "Oslo ", *(f"Town  {n}" for n in range(12))]
    kept = ["Oslo", *(f"Town {n}" for n in range(12))]
    assert joined(titles, "joined", MOST_TITLES) == " *** ".join(kept[:10])
    assert joined(titles, "joined") == " *** ".join(kept)
    assert joined(titles, "first") == "Oslo"
    assert joined([], "joined") == joined(["", " "], "first") == ""


def test_a_generator_of_a_fold_has_seen_all_but_that_fold(tmp_path: Path) -> None:
    places = write_places(tmp_path, {f"q{i}": ["Oslo"] for i in range(30)})
    for fold in range(3):
        seen = set(written(tmp_path / f"out {fold}", places, [fold, 3], kind="answer"))
        members = {f"q{i}" for i in range(30) if fold_of(f"q{i}", 3) == fold}
        assert members
        assert not seen & members
        assert seen | members == {f"q{i}" for i in range(30)}


def test_without_a_target_there_is_nothing_to_learn(tmp_path: Path) -> None:
    places = write_places(tmp_path, {"q5": []})
    for kind in ("answer", "sentence", "title"):
        with pytest.raises(UserError, match=f"targets: kind: {kind}: no query of train has one"):
            written(tmp_path / kind, places, kind=kind)
