"""The retriever's batch: who is scored against whom, what counts, and where the targets land."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.data.tables import document_text
from sparring.components.objectives.parts import scoring
from sparring.components.objectives.parts.scoring import RetrieverBatch, batch_scores, group_scores
from sparring.components.objectives.retriever import Retriever
from sparring.components.scores import Scores
from sparring.components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.trainings import visits


@pytest.fixture
def objective(tmp_path: Path, data: Path, tokens: Path, retriever: Path) -> Any:
    """Builds a retriever's objective over some groups."""

    def build(rows: list[dict[str, Any]], **losses: Any) -> Retriever:
        groups = toy.write_groups(tmp_path / "groups", rows)
        return Retriever(
            ObjectiveInputs(
                model=retriever / "model",
                rows=groups,
                data=data,
                tokens=tokens,
                losses=toy.train_config(**losses).losses,
                max_tokens=10_000,
                recompute=False,
            ),
        )

    return build


# Documents 30 and 31 say what 0 and 1 say; document 9 is another positive of query 0, 12 of query 3.
ROWS = [
    {"query_id": "q0", "doc_ids": ["d0", "d5", "d31"]},
    {"query_id": "q1", "doc_ids": ["d1", "d9"]},  # shorter; d9 is known to be relevant to q0
    {"query_id": "q3", "doc_ids": ["d3", "d12", "d30", "d5"], "targets": [1.0, 0.5, 0.0, 0.0]},  # two targets
    {"query_id": "q0", "doc_ids": ["d9", "d30", "d6"]},  # the other positive; d30 says what d0 says
    {"query_id": "q2", "doc_ids": ["d2", "d7", "d8", "d7"]},  # the same negative twice
    {"query_id": "q4", "doc_ids": ["d6", "d4"], "targets": [0.0, 1.0]},  # the positive second
]


def naive(
    rows: list[dict[str, Any]], data: Path, *, all_rows: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """For each row: its texts that count over the batch, with their targets. A loop over strings and sets."""
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    text = {row["doc_id"]: document_text(row["title"], row["text"]) for row in documents}
    qrels = pq.read_table(data / "qrels.parquet").to_pylist()
    batch: list[str] = []
    for row in all_rows or rows:
        batch += [text[document] for document in row["doc_ids"] if text[document] not in batch]
    expected = []
    for row in rows:
        targets: dict[str, float] = {}
        values = row.get("targets") or [1.0] + [0.0] * (len(row["doc_ids"]) - 1)
        for document, target in zip(row["doc_ids"], values, strict=True):
            targets.setdefault(text[document], target)
        relevant = {text[q["doc_id"]] for q in qrels if q["query_id"] == row["query_id"] and q["relevance"] > 0}
        expected.append({t: targets.get(t, 0.0) for t in batch if not (t in relevant and targets.get(t, 0.0) == 0)})
    return expected


def texts_of(batch: RetrieverBatch, data: Path, rows: list[dict[str, Any]]) -> list[str]:
    """The text that each column stands for, by way of the keys."""
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    return [document_text(documents[key]["title"], documents[key]["text"]) for key in batch.document_keys.tolist()]


def test_scores_over_the_batch_are_those_of_a_naive_loop(objective: Any, data: Path) -> None:
    """Every text once whatever ids it stands under; relevant documents that a row does not target do not count;
    the targets stand at their texts, and nothing else has one."""
    retriever = objective(ROWS)
    batch = retriever.collate(visits(list(range(len(ROWS)))))
    queries, documents = retriever.encode(batch)
    scores = batch_scores(queries, documents, batch)
    columns = texts_of(batch, data, ROWS)
    assert len(set(columns)) == len(columns) == 11  # those of d0 to d9 and d12
    for i, wanted in enumerate(naive(ROWS, data)):
        counted = {columns[c]: scores.target[i, c].item() for c in range(len(columns)) if scores.where[i, c]}
        assert counted == wanted, ROWS[i]
    torch.testing.assert_close(scores.student, queries @ documents.T)


def test_a_positive_of_the_query_that_another_row_brings_is_no_negative(objective: Any, data: Path) -> None:
    """Row 0 targets d0; d9, which row 1 brings, is relevant too and must not be pushed away. Row 3 the reverse."""
    retriever = objective(ROWS)
    batch = retriever.collate(visits(list(range(len(ROWS)))))
    scores = batch_scores(*retriever.encode(batch), batch)
    columns = texts_of(batch, data, ROWS)
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    column = {
        name: columns.index(document_text(d["title"], d["text"]))
        for d in documents
        if document_text(d["title"], d["text"]) in columns
        for name in [d["doc_id"]]
    }
    assert column["d30"] == column["d0"]
    assert not scores.where[0, column["d9"]]
    assert scores.target[0, column["d0"]] == 1
    assert not scores.where[3, column["d0"]]
    assert scores.target[3, column["d9"]] == 1
    assert scores.where[1, column["d9"]]  # to query 1 it is a negative like any other


def test_scores_over_the_group_are_each_query_with_its_own(objective: Any, data: Path) -> None:
    retriever = objective(ROWS)
    batch = retriever.collate(visits([0, 1, 4]))
    queries, documents = retriever.encode(batch)
    scores = group_scores(queries, documents, batch)
    store = retriever._tokens

    def alone(text: int, side: str) -> torch.Tensor:
        texts, limit = (store.queries, 8) if side == "query" else (store.documents, 24)
        single = store.template.texts(texts, np.array([text]), limit)
        return retriever.model(single, side)[0]

    for i, row in enumerate((0, 1, 4)):
        query = alone(int(ROWS[row]["query_id"][1:]), "query")
        for c, name in enumerate(ROWS[row]["doc_ids"]):
            wanted = (query * alone(int(name[1:]), "document")).sum()
            torch.testing.assert_close(scores.student[i, c], wanted, rtol=1e-5, atol=1e-5)
    assert scores.where.tolist() == [
        [True, True, True, False],
        [True, True, False, False],
        [True, True, True, False],  # padding, and d7 again
    ]
    assert scores.target[:, 0].tolist() == [1, 1, 1]
    assert scores.target[:, 1:].sum() == 0


def test_each_distinct_document_is_encoded_once(objective: Any) -> None:
    batch = objective(ROWS).collate(visits(list(range(len(ROWS)))))
    assert len(batch.documents.ids) == 11
    assert len(batch.queries.ids) == len(ROWS)
    assert batch.columns.max() == 10


def test_the_teacher_comes_along_in_the_order_of_candidates(objective: Any) -> None:
    rows = [{**row, "teacher": [float(i * 10 + c) for c in range(len(row["doc_ids"]))]} for i, row in enumerate(ROWS)]
    retriever = objective(rows)
    batch = retriever.collate(visits([1, 5]))
    scores = group_scores(*retriever.encode(batch), batch)
    assert scores.teacher is not None
    assert scores.teacher.tolist() == [[10, 11], [50, 51]]
    assert scores.target.tolist() == [[1, 0], [0, 1]]


def test_losses_over_the_group_and_the_batch_add_up_with_their_weights(objective: Any) -> None:
    losses = [
        {"function": toy.CROSS_ENTROPY, "over": "batch", "weight": 0.25},
        {"function": toy.CROSS_ENTROPY, "over": "group", "options": {"temperature": 0.5}},
    ]
    retriever = objective(ROWS, losses=losses)
    batch = retriever.collate(visits(list(range(len(ROWS)))))
    representations = retriever.encode(batch)
    terms = retriever.terms(representations, batch)
    assert list(terms) == ["cross_entropy (batch)", "cross_entropy (group)"]
    from sparring.components.losses.listwise import cross_entropy

    wide = cross_entropy(batch_scores(*representations, batch)).sum()
    narrow = cross_entropy(group_scores(*representations, batch), temperature=0.5).sum()
    torch.testing.assert_close(terms["cross_entropy (batch)"][0], 0.25 * wide)
    torch.testing.assert_close(terms["cross_entropy (group)"][0], narrow)
    assert [count for _, count in terms.values()] == [6, 6]


def test_judging_gives_each_querys_own_candidates_without_padding(objective: Any) -> None:
    retriever = objective(ROWS)
    batch = retriever.collate(visits([0, 1, 5]))
    ranks = (1 / retriever.judge(retriever.encode(batch), batch)["RR"]).tolist()
    scores = group_scores(*retriever.encode(batch), batch)
    for i, targets in enumerate([[1, 0, 0], [1, 0], [0, 1]]):
        of_target = scores.student[i, targets.index(1)]
        assert ranks[i] == (scores.student[i, : len(targets)] >= of_target).sum()


def test_a_group_of_an_unknown_document_is_an_error_that_names_it(objective: Any) -> None:
    with pytest.raises(ValueError, match="d99 is not in the collection"):
        objective([{"query_id": "q0", "doc_ids": ["d0", "d99"]}])


def test_padding_of_other_workers_never_counts() -> None:
    """What a worker with fewer documents is filled up with has key -1; it has no score in any row."""
    queries, documents = torch.eye(2), torch.eye(3, 2)
    batch = RetrieverBatch(
        queries=None,
        documents=None,
        query_keys=torch.arange(2),
        document_keys=torch.tensor([4, 7, 9]),
        columns=torch.tensor([[0, 1], [2, 0]]),
        target=torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
        where=torch.ones(2, 2, dtype=torch.bool),
        relevant_keys=torch.tensor([[4, 9], [9, -1]]),
        teacher=None,
    )

    def gathered(local: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """As if an earlier worker held one document, of a text that this one has too."""
        return torch.cat([torch.tensor([7]) if local.ndim == 1 else torch.full((1, 2), 5.0), local])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "gather", gathered)
        scores: Scores = batch_scores(queries, documents, batch)
    # Columns: the other's 7, then our 4, 7, 9. The text 7 counts at its first place.
    assert scores.where.tolist() == [
        [True, True, False, False],  # 9 is known to be relevant to the first query
        [True, True, False, True],
    ]
    assert scores.target.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_a_target_lands_on_the_first_column_of_its_text() -> None:
    batch = RetrieverBatch(
        queries=None,
        documents=None,
        query_keys=torch.arange(1),
        document_keys=torch.tensor([2, 5]),
        columns=torch.tensor([[1, 0]]),
        target=torch.tensor([[1.0, 0.0]]),
        where=torch.ones(1, 2, dtype=torch.bool),
        relevant_keys=torch.tensor([[5]]),
        teacher=None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "gather", lambda local, counts: torch.cat([local, local]))
        scores = batch_scores(torch.ones(1, 2), torch.ones(2, 2), batch)
    assert scores.target.tolist() == [[0, 1, 0, 0]]
    assert scores.where.tolist() == [[True, True, False, False]]
