"""The ranker's batch: every pair of a query and one of its candidates, each group apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from components.config import UserError
from components.objectives.ranker import Ranker
from components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.trainings import visits

ROWS = [
    {"query_id": "q0", "doc_ids": ["d0", "d5", "d6"], "teacher": [3.0, 2.0, 1.0]},
    {"query_id": "q1", "doc_ids": ["d1"], "teacher": [4.0]},
    {"query_id": "q3", "doc_ids": ["d7", "d3"], "targets": [0.0, 1.0], "teacher": [5.0, 6.0]},
]


@pytest.fixture
def objective(tmp_path: Path, data: Path, tokens: Path, ranker: Path) -> Any:
    """Builds a ranker's objective over some groups."""

    def build(
        rows: list[dict[str, Any]], *, max_tokens: int = 10_000, recompute: bool = False, **losses: Any
    ) -> Ranker:
        groups = toy.write_groups(tmp_path / "groups", rows)
        return Ranker(
            ObjectiveInputs(
                model=ranker / "model",
                rows=groups,
                data=data,
                tokens=tokens,
                losses=toy.train_config(**losses).losses,
                max_tokens=max_tokens,
                recompute=recompute,
            ),
        )

    return build


def test_scores_stand_with_their_candidates(objective: Any) -> None:
    ranker = objective(ROWS)
    batch = ranker.collate(visits([0, 1, 2]))
    assert len(batch.pairs.ids) == 6
    scores = ranker._scores(ranker.encode(batch), batch)
    assert scores.where.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert scores.target.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert scores.teacher is not None
    assert scores.teacher.tolist() == [[3, 2, 1], [4, 0, 0], [5, 6, 0]]
    for row, group in enumerate(ROWS):
        for column, name in enumerate(group["doc_ids"]):
            alone = objective([{"query_id": group["query_id"], "doc_ids": [name]}])
            one = alone.collate(visits([0]))
            torch.testing.assert_close(scores.student[row, column], alone.encode(one)[0], rtol=1e-5, atol=1e-6)


def test_each_row_is_a_softmax_over_its_own_candidates(objective: Any) -> None:
    ranker = objective(ROWS)
    batch = ranker.collate(visits([0, 1, 2]))
    values = ranker.encode(batch).detach()
    ((total, count),) = ranker.terms(values, batch).values()
    wanted = -torch.log_softmax(values[:3], 0)[0] - 0 - torch.log_softmax(values[4:], 0)[1]
    torch.testing.assert_close(total, wanted)
    assert count == 3


def test_pieces_and_recomputing_change_nothing(objective: Any) -> None:
    whole, pieces = objective(ROWS), objective(ROWS, max_tokens=40, recompute=True)
    for ranker in (whole, pieces):
        ranker.eval()
        batch = ranker.collate(visits([0, 1, 2]))
        ((total, _),) = ranker.terms(ranker.encode(batch), batch).values()
        total.backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), pieces.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_judging_leaves_padding_out(objective: Any) -> None:
    ranker = objective(ROWS)
    batch = ranker.collate(visits([0, 1, 2]))
    values = torch.arange(6.0)
    judged = ranker.judge(values, batch)
    assert judged["RR"].tolist() == [1 / 3, 1, 1]
    assert judged["accuracy"].tolist() == [0, 1, 1]
    assert ranker.judge(-values, batch)["RR"].tolist() == [1, 1, 1 / 2]


def test_a_loss_over_the_batch_is_refused(objective: Any) -> None:
    with pytest.raises(UserError, match="losses: over: 'batch': ranker accepts group"):
        objective(ROWS, losses=[{"function": toy.CROSS_ENTROPY, "over": "batch"}])
