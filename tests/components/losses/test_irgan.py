"""IRGAN's losses by hand, and what each does where the ranker is sure and where it is fooled."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparring.components.losses.adversarial import expected_reward
from sparring.components.losses.irgan import discriminator, generator
from sparring.components.losses.listwise import cross_entropy, distillation
from sparring.components.scores import Scores

Loss = Callable[[Scores], Tensor]


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
    second = student.detach().clone().requires_grad_()
    log_p = torch.log_softmax(second, -1)
    reward = torch.nn.functional.softplus(teacher)
    baseline = (log_p.exp().detach() * reward).sum(-1, keepdim=True)
    (-(log_p.exp().detach() * log_p * (reward - baseline))).sum().backward()
    torch.testing.assert_close(student.grad, second.grad)


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


def warm_ranker(loss: Loss, bias: float) -> Tensor:
    """(Q, C) scores of a linear ranker that learnt a toy collection by a loss to its minimum, from a bias."""
    rng = torch.Generator().manual_seed(1)
    features = torch.randn(32, 8, 3, generator=rng, dtype=torch.float64)
    features[:, 0] += 1.0  # the positive is a little unlike the others
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    level = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
    tight = {"tolerance_grad": 1e-12, "tolerance_change": 1e-14}
    optimizer = torch.optim.LBFGS([weight, level], max_iter=200, line_search_fn="strong_wolfe", **tight)

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(game(features @ weight + level)).mean()
        value.backward()
        return value.item()

    optimizer.step(closure)
    return (features @ weight + level).detach()


def retriever_gradient(loss: Loss, teacher: Tensor) -> Tensor:
    """(Q, C) the gradient of the same retriever's scores under a loss, taught by a ranker."""
    rng = torch.Generator().manual_seed(2)
    student = torch.randn(teacher.shape, generator=rng, dtype=torch.float64).requires_grad_()
    loss(game(student, teacher)).mean().backward()
    assert student.grad is not None
    return student.grad


def test_a_listwise_ranker_has_any_level_and_the_generators_gradient_follows_it() -> None:
    """Two rankers of equal loss, 4 apart: the retriever's gradients are far apart. AR2's losses read no level."""
    level, lower = (warm_ranker(cross_entropy, bias) for bias in (0.0, -4.0))
    torch.testing.assert_close(lower, level - 4)
    assert retriever_gradient(generator, lower).norm() < retriever_gradient(generator, level).norm() / 5
    for loss in (expected_reward, distillation):
        torch.testing.assert_close(retriever_gradient(loss, level), retriever_gradient(loss, lower))


def test_a_pointwise_ranker_has_one_level_wherever_it_begins() -> None:
    level, lower = (warm_ranker(discriminator, bias) for bias in (0.0, -4.0))
    torch.testing.assert_close(level, lower, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        retriever_gradient(generator, level), retriever_gradient(generator, lower), atol=1e-8, rtol=1e-5
    )


def test_the_discriminators_level_is_that_of_even_odds() -> None:
    """Where nothing tells the positive from its negatives, both are as likely, however many there are: a score of 0."""
    level = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    discriminator(game(level.expand(1, 8))).sum().backward()
    assert level.grad == pytest.approx(2 * torch.sigmoid(torch.tensor(3.0, dtype=torch.float64)) - 1)  # 0 at 0 alone


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
    with pytest.raises(ValueError, match="needs a teacher's scores of each group"):
        generator(game(rows([1, 2])))
