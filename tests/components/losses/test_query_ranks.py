"""The query reranker's loss against plain loops, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sparring.components.losses.query_ranks import ranking
from sparring.components.scores import Scores


def some(*, ties: bool = True, queries: int = 4, candidates: int = 7) -> Scores:
    """Ranks from 1 to 100 and MAX_RANK, several of them equal, a third of the candidates masked."""
    rng = torch.Generator().manual_seed(3)
    student = 0.4 * torch.randn(queries, candidates, generator=rng, dtype=torch.float64)
    if ties:
        target = torch.tensor([1.0, 5, 40, 101], dtype=torch.float64)[
            torch.randint(4, (queries, candidates), generator=rng)
        ]
    else:
        target = torch.rand(queries, candidates, generator=rng, dtype=torch.float64).argsort(-1).double() * 9 + 1
    where = torch.rand(queries, candidates, generator=rng) < 0.7
    where[0] = True
    where[1] = False
    where[1, 2] = True  # one candidate alone
    return Scores(student, target, where)


def members(scores: Scores, row: int) -> list[tuple[float, float]]:
    """(rank, predicted) of what counts in a row."""
    return [
        (float(r), float(s))
        for r, s, w in zip(scores.target[row], scores.student[row], scores.where[row], strict=True)
        if w
    ]


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.1])
def test_the_papers_sum_is_a_loop_over_pairs(alpha: float) -> None:
    scores = some()
    values = ranking(scores, alpha=alpha)
    for row in range(4):
        those = members(scores, row)
        wanted = sum(max(0.0, s_i - s_j + alpha * (r_j - r_i)) for r_i, s_i in those for r_j, s_j in those if r_i < r_j)
        assert values[row].item() == pytest.approx(wanted)
    assert values[0] > 0


@pytest.mark.parametrize("ties", [True, False])
def test_the_released_mean_is_a_loop_over_offsets(ties: bool) -> None:
    """As the public code has it: sorted by rank, then offset by offset, pairs of equal rank included."""
    scores = some(ties=ties)
    values = ranking(scores, pairs="offsets")
    for row in range(4):
        those = sorted(members(scores, row), key=lambda single: single[0])  # stable, as ours
        means = []
        for offset in range(1, len(those)):
            result = [
                max(0.0, those[j][1] - those[j + offset][1] + 0.01 * (those[j + offset][0] - those[j][0]))
                for j in range(len(those) - offset)
            ]
            means.append(sum(result) / len(result))
        assert values[row].item() == pytest.approx(sum(means) / max(1, len(means)))


def test_pairs_far_apart_weigh_more_by_offsets() -> None:
    """Of three candidates the first and last are one pair alone: it weighs as much as the two others together."""
    rank = torch.tensor([[1.0, 2, 3]], dtype=torch.float64)
    student = torch.tensor([[3.0, 2, 1]], dtype=torch.float64)  # the wrong way round: hinges 1, 1 and 2
    scores = Scores(student, rank, torch.ones_like(rank, dtype=torch.bool))
    assert ranking(scores, alpha=0.0).item() == pytest.approx(4.0)
    assert ranking(scores, alpha=0.0, pairs="offsets").item() == pytest.approx((1.0 + 2.0) / 2)


def test_where_all_ranks_are_equal_the_paper_learns_nothing() -> None:
    rank = torch.full((1, 4), 101.0, dtype=torch.float64)
    student = torch.tensor([[0.3, -1.0, 2.0, 0.0]], dtype=torch.float64)
    scores = Scores(student, rank, torch.ones_like(rank, dtype=torch.bool))
    assert ranking(scores).item() == 0
    assert ranking(scores, pairs="offsets").item() > 0  # whichever stands first counts as the better one


def test_a_perfect_prediction_costs_nothing() -> None:
    scores = some()
    perfect = Scores(0.01 * scores.target, scores.target, scores.where)
    assert ranking(perfect).abs().max().item() == pytest.approx(0, abs=1e-12)
    assert ranking(perfect, pairs="offsets").abs().max().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("pairs", ["all", "offsets"])
def test_gradients_are_those_of_finite_differences(pairs: str) -> None:
    scores = some()
    assert torch.autograd.gradcheck(
        lambda student: ranking(Scores(student, scores.target, scores.where), pairs=pairs),
        (scores.student.clone().requires_grad_(),),
    )


@pytest.mark.parametrize("pairs", ["all", "offsets"])
def test_what_stands_at_a_masked_candidate_does_not_matter(pairs: str) -> None:
    scores = some()
    student = scores.student.masked_fill(~scores.where, float("nan")).requires_grad_()
    values = ranking(Scores(student, scores.target.masked_fill(~scores.where, 7.0), scores.where), pairs=pairs)
    torch.testing.assert_close(values, ranking(scores, pairs=pairs))
    values.sum().backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()


@pytest.mark.parametrize(("scale", "subject"), [("log", math.log), ("reciprocal", lambda rank: -1 / rank)])
@pytest.mark.parametrize("pairs", ["all", "offsets"])
def test_another_scale_is_the_same_loss_of_other_ranks(scale: Any, subject: Any, pairs: Any) -> None:
    scores = some()
    changed = Scores(scores.student, scores.target.clone().apply_(subject), scores.where)
    torch.testing.assert_close(
        ranking(scores, alpha=0.3, scale=scale, pairs=pairs), ranking(changed, alpha=0.3, pairs=pairs)
    )


def test_how_much_the_first_place_is_worth() -> None:
    """The margin between ranks 1 and 2, as a share of that between 1 and 101: what the docstring says."""
    for scale, share in (("rank", 0.01), ("log", 0.15), ("reciprocal", 0.505)):
        near, far = (
            ranking(
                Scores(torch.zeros(1, 2), torch.tensor([[1.0, rank]]), torch.ones(1, 2, dtype=torch.bool)),
                alpha=1.0,
                scale=scale,
            ).item()  # type: ignore[arg-type]
            for rank in (2.0, 101.0)
        )
        assert near / far == pytest.approx(share, abs=0.003)
