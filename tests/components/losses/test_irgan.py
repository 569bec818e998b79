"""IRGAN's losses by hand, and what each does where the ranker is sure and where it is fooled."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from components.losses.irgan import discriminator, generator
from components.scores import Scores


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def game(student: Tensor, teacher: Tensor | None = None) -> Scores:
    """A positive first, then negatives."""
    target = torch.zeros_like(student)
    target[:, 0] = 1
    return Scores(student, target, torch.ones_like(student, dtype=torch.bool), teacher=teacher)


def test_the_generators_value_by_hand() -> None:
    """Odds 1 : 1 : 2; rewards log(1 + e^z) of ln 2, ln 3 and ln 5 for z of 0, ln 2 and ln 4."""
    student, teacher = rows([0, 0, math.log(2)]), rows([0, math.log(2), math.log(4)])
    wanted = -(0.25 * math.log(2) + 0.25 * math.log(3) + 0.5 * math.log(5))
    assert generator(game(student, teacher)).item() == pytest.approx(wanted)


def test_the_generators_gradient_is_the_policy_gradient() -> None:
    """`-sum_i p_i grad log p_i (r_i - b)` for any baseline b: it falls out of an exact expectation."""
    rng = torch.Generator().manual_seed(2)
    student, teacher = (torch.randn(4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()
    generator(game(student, teacher)).sum().backward()
    other = student.detach().clone().requires_grad_()
    log_p = torch.log_softmax(other, -1)
    reward = torch.nn.functional.softplus(teacher)
    baseline = (log_p.exp().detach() * reward).sum(-1, keepdim=True)
    (-(log_p.exp().detach() * log_p * (reward - baseline))).sum().backward()
    torch.testing.assert_close(student.grad, other.grad)


@pytest.mark.parametrize(("teacher", "rising"), [([9, -9, -9, -9], 0), ([-9, -9, 9, -9], 2)])
def test_the_generator_goes_where_the_ranker_scores_high(teacher: list[float], rising: int) -> None:
    """To the positive where the ranker is sure; to the negative that fools it where it is not."""
    student = rows([0, 1, 0, 2]).requires_grad_()
    generator(game(student, rows(teacher))).sum().backward()
    assert (student.grad < 0).nonzero().tolist() == [[0, rising]]


def test_a_ranker_that_pays_for_everything_moves_nothing() -> None:
    """What AR2's reward, which looks at the positive and a negative together, does not suffer from."""
    student = rows([0, 1, 0, 2]).requires_grad_()
    generator(game(student, rows([7, 7, 7, 7]))).sum().backward()
    assert student.grad.abs().max() < 1e-12


def test_the_discriminators_value_by_hand() -> None:
    """sigmoid(ln 3) is 3/4 for the positive; the negatives are told apart with 1/2 and 3/4."""
    value = discriminator(game(rows([math.log(3), 0, -math.log(3)])))
    assert value.item() == pytest.approx(-math.log(0.75) - (math.log(0.5) + math.log(0.75)) / 2)


def test_pairs_that_do_not_count_do_not() -> None:
    scores = game(rows([1, 2, 3, 4]), rows([1, 2, 3, 4]))
    where = torch.tensor([[True, True, False, False]])
    masked = Scores(scores.student, scores.target, where, teacher=scores.teacher)
    short = game(rows([1, 2]), rows([1, 2]))
    assert generator(masked).item() == pytest.approx(generator(short).item())
    assert discriminator(masked).item() == pytest.approx(discriminator(short).item())
    nothing = Scores(scores.student, scores.target, torch.zeros_like(where), teacher=scores.teacher)
    assert generator(nothing).item() == discriminator(nothing).item() == 0


def test_gradients_are_those_of_finite_differences() -> None:
    rng = torch.Generator().manual_seed(3)
    student, teacher = (torch.randn(3, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: generator(game(s, teacher), temperature=0.7), student)
    assert torch.autograd.gradcheck(lambda s: discriminator(game(s)), student)


def test_the_generator_needs_a_ranker() -> None:
    with pytest.raises(ValueError, match="score the groups with a ranker first"):
        generator(game(rows([1, 2])))
