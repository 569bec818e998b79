"""The ranker's batch: every pair of a query and one of its candidates, each group apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.components.objectives.ranker import Ranker
from sparring.components.training.config import HardestConfig
from sparring.components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.errors import refused
from tests.support.trainings import checked, gradients, visits

ROWS = [
    {"query_id": "q0", "doc_ids": ["d0", "d5", "d6"], "teacher": [3.0, 2.0, 1.0]},
    {"query_id": "q1", "doc_ids": ["d1"], "teacher": [4.0]},
    {"query_id": "q3", "doc_ids": ["d7", "d3"], "targets": [0.0, 1.0], "teacher": [5.0, 6.0]},
]


@pytest.fixture
def objective(tmp_path: Path, data: Path, tokens: Path, ranker: Path) -> Any:
    """Builds a ranker's objective over some groups."""

    def build(
        rows: list[dict[str, Any]],
        *,
        max_tokens: int = 10_000,
        recompute: bool = False,
        keep: int | None = None,
        **losses: Any,
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
            hardest=None if keep is None else HardestConfig(keep=keep),
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
            example = alone.collate(visits([0]))
            torch.testing.assert_close(
                scores.student[row, column], alone.encode(example)[0][0, 0], rtol=1e-5, atol=1e-6
            )


def test_each_row_is_a_softmax_over_its_own_candidates(objective: Any) -> None:
    ranker = objective(ROWS)
    batch = ranker.collate(visits([0, 1, 2]))
    representations = ranker.encode(batch)
    values = representations[0][0].detach()
    ((total, count),) = ranker.terms(representations, batch).values()
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
    values, everything = torch.arange(6.0).unsqueeze(0), torch.ones(6, dtype=torch.bool)
    judged = ranker.judge((values, everything), batch)
    assert judged["RR"].tolist() == [1 / 3, 1, 1]
    assert judged["accuracy"].tolist() == [0, 1, 1]
    assert ranker.judge((-values, everything), batch)["RR"].tolist() == [1, 1, 1 / 2]


def test_a_loss_over_the_batch_is_refused(objective: Any) -> None:
    with refused("losses", "unknown-view"):
        objective(ROWS, losses=[{"function": toy.CROSS_ENTROPY, "over": "batch"}])


R_DROP = [
    {"function": toy.CROSS_ENTROPY},
    {"function": "components.losses.listwise.symmetric_kl", "over": "passes", "weight": 0.5},
]


def test_r_drop_sees_two_passes_in_training_and_one_elsewhere(objective: Any) -> None:
    """Cross entropy is the mean over both; the other term compares them. Without dropout they are the same."""
    ranker = objective(ROWS, losses=R_DROP)
    for module in ranker.modules():
        if isinstance(module, torch.nn.Dropout):  # the toy ranker has none
            module.p = 0.1
    batch = ranker.collate(visits([0, 1, 2]))
    scores, kept = ranker.train().encode(batch)
    assert scores.shape == (2, 6)
    assert kept.all()
    assert not torch.allclose(scores[0], scores[1])
    entropy, apart = ranker.terms((scores, kept), batch).values()
    assert (entropy.rows, apart.rows) == (6, 3)
    groups = ((slice(0, 3), 0), (slice(3, 4), 0), (slice(4, 6), 1))
    losses = [-torch.log_softmax(row[where], 0)[place] for row in scores for where, place in groups]
    torch.testing.assert_close(entropy.value, torch.stack(losses).sum())
    a, b = (torch.cat([torch.log_softmax(row[where], 0) for where, _ in groups]) for row in scores)
    both = torch.nn.functional.kl_div(a, b, reduction="sum", log_target=True)
    both = both + torch.nn.functional.kl_div(b, a, reduction="sum", log_target=True)
    torch.testing.assert_close(apart.value, 0.5 * 0.5 * both)
    scores, kept = ranker.eval().encode(batch)
    assert len(scores) == 1
    assert ranker.terms((scores, kept), batch)["symmetric_kl (passes)"].value == 0


def test_the_hardest_are_those_that_it_scores_highest_itself(objective: Any) -> None:
    """Of each group the positive and the best-scored others; nothing else counts, or has a gradient."""
    rows = [
        {"query_id": "q0", "doc_ids": ["d5", "d0", "d6", "d7", "d8"], "targets": [0.0, 1.0, 0.0, 0.0, 0.0]},
        {"query_id": "q1", "doc_ids": ["d1", "d9"]},
    ]
    ranker = objective(rows, keep=3)
    batch = ranker.collate(visits([0, 1]))
    ((alone,), everything) = ranker.eval().encode(batch)
    assert everything.all()
    scores, kept = ranker.train().encode(batch)
    assert ranker.model.training
    candidates = [0, 2, 3, 4]
    best = sorted(candidates, key=lambda place: -alone[place].item())[:2]
    assert kept.nonzero().flatten().tolist() == sorted([1, *best, 5, 6])
    assert (scores[0] != 0).tolist() == kept.tolist()
    block = ranker._scores((scores, kept), batch)
    assert block.where.sum(-1).tolist() == [3, 2]
    ((total, count),) = ranker.terms((scores, kept), batch).values()
    chosen = scores[0][kept]
    place = sorted([1, *best]).index(1)
    wanted = -torch.log_softmax(chosen[:3], 0)[place] - torch.log_softmax(chosen[3:], 0)[0]
    torch.testing.assert_close(total, wanted)
    assert count == 2
    assert ranker.operations(batch) < objective(rows, losses=R_DROP).operations(batch)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True])
def test_choosing_takes_no_gradient_away(objective: Any, precision: str, recompute: bool) -> None:
    """bf16 weights that were cast to choose, without a gradient, are not those that are learned with."""
    ranker = objective(ROWS, keep=2, losses=R_DROP, max_tokens=40, recompute=recompute)
    ranker.train()
    device = torch.device("cpu")
    gradients(ranker, visits([0, 1, 2]), parts=1, seed=1, update=0, device=device, precision=precision)
    matrices = [value.grad for value in ranker.parameters() if value.ndim > 1]
    assert all(gradient is not None and gradient.any() for gradient in matrices)


def test_both_pass_the_check_before_the_first_update(objective: Any) -> None:
    assert checked(objective(ROWS * 2, keep=2, losses=R_DROP)) < 1e-3


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradient_of_many_pieces_in_bf16_is_as_right_as_that_of_one(objective: Any, recompute: bool) -> None:
    """It is summed in fp32: a sum in bf16 stays as it is once it is 256 times as large as what is added."""
    device, rows = torch.device("cpu"), ROWS * 50

    def gradient(max_tokens: int, precision: str) -> torch.Tensor:
        ranker = objective(rows, max_tokens=max_tokens, recompute=recompute).eval()
        among = visits(range(len(rows)))
        gradients(ranker, among, parts=1, seed=1, update=0, device=device, precision=precision)
        return torch.cat(
            [parameter.grad.flatten() for name, parameter in ranker.named_parameters() if ".layer" in name]
        )

    wanted = gradient(100_000, "fp32")
    apart = {tokens: float((gradient(tokens, "bf16") - wanted).norm() / wanted.norm()) for tokens in (100_000, 24)}
    assert apart[24] < 1.5 * apart[100_000] + 1e-3, apart


def test_a_loss_is_told_how_many_updates_there_were(
    objective: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes with the updates, such as a temperature that falls, does so in a ranker's training too."""
    source = "def counted(scores):\n    return 0 * scores.student.sum(1) + scores.update\n"
    (tmp_path / "own_counting_loss.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    ranker = objective(ROWS, losses=[{"function": "own_counting_loss.counted"}])
    batch = ranker.collate(visits([0, 1]))
    ranker.update = 7
    (term,) = ranker.terms(ranker.encode(batch), batch).values()
    assert term.value.item() == 14  # of two rows
