"""AR2's adversarial term against the paper's equations, worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from sparring.components.losses.adversarial import expected_reward, released
from sparring.components.losses.listwise import cross_entropy
from sparring.components.scores import Scores


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def game(student: Tensor, teacher: Tensor) -> Scores:
    """A positive first, then negatives."""
    target = torch.zeros_like(student)
    target[:, 0] = 1
    return Scores(student, target, torch.ones_like(student, dtype=torch.bool), teacher=teacher)


def test_the_value_by_hand() -> None:
    """The retriever's odds over the negatives are 1 : 3. Against a negative that scores as the positive does the
    ranker gives it 1/2; against one that is ln 3 below, 3/4. So J = 1/4 ln 1/2 + 3/4 ln 3/4."""
    student = rows([99, 0, math.log(3)])  # what the positive scores does not matter
    teacher = rows([2, 2, 2 - math.log(3)])
    value = expected_reward(game(student, teacher))
    assert value.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(0.75))


def test_temperatures_divide_their_own_scores() -> None:
    """At temperature 1/2 odds of 1 : 3 become 1 : 9; at teacher temperature 1/2 a lead of ln 3 becomes ln 9."""
    student, teacher = rows([0, 0, math.log(3)]), rows([2, 2, 2 - math.log(3)])
    value = expected_reward(game(student, teacher), temperature=0.5, teacher_temperature=0.5)
    assert value.item() == pytest.approx(0.1 * math.log(0.5) + 0.9 * math.log(0.9))


def test_the_gradient_is_equation_10() -> None:
    """sum_i p_i (grad log p_i) log p_phi(d | q, d, d_i), p a softmax over the negatives: by automatic
    differentiation of log p alone, each term weighted with p and the reward as constants."""
    rng = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    student.requires_grad_()
    expected_reward(game(student, teacher)).sum().backward()

    second = student.detach().clone().requires_grad_()
    log_p = torch.log_softmax(second[:, 1:], -1)
    pair = torch.stack([teacher[:, :1].expand(-1, 5), teacher[:, 1:]], -1)
    reward = torch.log_softmax(pair, -1)[..., 0]
    (log_p.exp().detach() * log_p * reward).sum().backward()
    torch.testing.assert_close(student.grad, second.grad)
    assert student.grad[:, 1:].abs().min() > 1e-4
    assert (student.grad[:, 0] == 0).all()  # the positive is not among what the retriever chooses from


def test_a_confident_ranker_leaves_the_retriever_alone() -> None:
    """Where the ranker is sure of the positive against every negative, all rewards are about 0."""
    student = rows([0, 1, 2, -1]).requires_grad_()
    value = expected_reward(game(student, rows([20, -20, -21, -22])))
    value.sum().backward()
    assert abs(value.item()) < 1e-15
    assert student.grad.abs().max() < 1e-15


def test_a_negative_that_fools_the_ranker_draws_the_retriever() -> None:
    """Following the gradient moves the probability to it, from wherever it was."""
    student = torch.nn.Parameter(rows([0, 3, 0, 1]))
    teacher = rows([0, -10, 5, -10])
    optimizer = torch.optim.SGD([student], lr=1.0)
    result = []
    for _ in range(200):
        optimizer.zero_grad()
        value = expected_reward(game(student, teacher)).sum()
        value.backward()
        optimizer.step()
        result.append(value.item())
    assert all(after <= before for before, after in itertools.pairwise(result))
    assert torch.softmax(student.detach()[0, 1:], -1)[1] > 0.99


def test_the_value_is_never_positive_and_zero_without_a_negative() -> None:
    rng = torch.Generator().manual_seed(2)
    student, teacher = (5 * torch.randn(50, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    assert (expected_reward(game(student, teacher)) <= 0).all()
    alone = Scores(student, torch.ones_like(student), torch.ones_like(student, dtype=torch.bool), teacher=teacher)
    assert (expected_reward(alone) == 0).all()


def test_of_several_positives_the_ranker_defends_its_best() -> None:
    """Candidates 0 and 1 are positives that score 0 and 2; the one negative scores 2: log 1/2."""
    where = torch.ones(1, 3, dtype=torch.bool)
    scores = Scores(rows([5, 6, 7]), rows([1, 1, 0]), where, teacher=rows([0, 2, 2]))
    assert expected_reward(scores).item() == pytest.approx(math.log(0.5))


def test_a_row_without_a_positive_has_no_reward() -> None:
    """There is nothing that the ranker could prefer: no value, no pull."""
    student = rows([0, 1, 2]).requires_grad_()
    where = torch.tensor([[False, True, True]])
    value = expected_reward(Scores(student, rows([1, 0, 0]), where, teacher=rows([1, 2, 3])))
    value.sum().backward()
    assert value.item() == 0
    assert (student.grad == 0).all()


def test_rewards_stay_exact_where_the_ranker_is_sure() -> None:
    """log sigmoid(x) is x for very negative x and -e^-x for large x, not 0 or -inf."""
    for lead, wanted in ((-1000.0, -1000.0), (30.0, -math.exp(-30))):
        value = expected_reward(game(rows([0, 0]), rows([lead, 0])))
        assert value.item() == pytest.approx(wanted, rel=1e-9)


def test_one_negative_is_no_choice() -> None:
    """A softmax over one negative is 1 whatever it scores: the paper's term teaches nothing, the released one does."""
    rng = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(3, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    for term, moves in ((expected_reward, False), (released, True)):
        leaf = student.clone().requires_grad_()
        term(game(leaf, teacher)).sum().backward()
        assert leaf.grad is not None
        assert bool(leaf.grad.abs().max() > 1e-3) is moves


def test_it_wants_a_teacher() -> None:
    scores = game(rows([0, 1]), rows([0, 1]))
    with pytest.raises(ValueError, match="needs a teacher"):
        expected_reward(Scores(scores.student, scores.target, scores.where))


# As released


def test_the_released_term_by_hand() -> None:
    """Odds 2 : 1 : 1 over the group. Rewards ln 1/2 for the positive itself, ln 1/2 against the negative that scores
    as it does, ln 3/4 against the other."""
    student, teacher = rows([math.log(2), 0, 0]), rows([2, 2, 2 - math.log(3)])
    wanted = math.log(0.5) * math.log(0.5) + math.log(0.5) * math.log(0.25) + math.log(0.75) * math.log(0.25)
    assert released(game(student, teacher)).item() == pytest.approx(wanted)


def test_where_the_ranker_is_sure_the_released_term_is_a_cross_entropy() -> None:
    """Towards the positive, times the constant ln 2: the positive is its own opponent."""
    student = rows([0, 1, 2, -1])
    value = released(game(student, rows([20, -20, -21, -22])))
    torch.testing.assert_close(value, math.log(2) * cross_entropy(game(student, student)))


def test_where_a_negative_fools_the_ranker_the_released_term_draws_the_retriever() -> None:
    student = rows([0, 3, 0, 1]).requires_grad_()
    released(game(student, rows([0, -10, 5, -10]))).sum().backward()
    assert student.grad.argmin() == 2
    assert (student.grad > 0).nonzero().tolist() == [[0, 1], [0, 3]]  # the other negatives lose


def test_the_released_term_masks_what_does_not_count() -> None:
    student, teacher = rows([0.3, 0.1, 9.0]), rows([1, 2, 9])
    scores = game(student, teacher)
    masked = Scores(student, scores.target, torch.tensor([[True, True, False]]), teacher=teacher)
    assert released(masked).item() == pytest.approx(released(game(student[:, :2], teacher[:, :2])).item())
    without = Scores(student, torch.zeros_like(student), scores.where, teacher=teacher)
    assert released(without).item() == 0


def test_the_released_terms_gradient() -> None:
    rng = torch.Generator().manual_seed(3)
    student, teacher = (torch.randn(3, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    options = {"temperature": 0.7, "teacher_temperature": 1.3}
    assert torch.autograd.gradcheck(lambda s: released(game(s, teacher), **options), student.requires_grad_())
