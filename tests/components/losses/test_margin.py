"""MarginMSE and the hinge by hand, by a loop over pairs, and by PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sparring.components.losses.margin import hinge, mean_squared
from sparring.components.scores import Scores


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def group(student: torch.Tensor, teacher: torch.Tensor, target: torch.Tensor | None = None) -> Scores:
    if target is None:
        target = torch.zeros_like(student)
        target[:, 0] = 1
    return Scores(student, target, torch.ones_like(student, dtype=torch.bool), teacher=teacher)


def test_margins_by_hand() -> None:
    """Leads of 2 and 3 where the teacher has 1 and 5: (1 + 4) / 2. At temperature 1/2 they are 4 and 6: (9 + 1) / 2."""
    scores = group(rows([3, 1, 0]), rows([7, 6, 2]))
    assert mean_squared(scores).item() == pytest.approx(2.5)
    assert mean_squared(scores, temperature=0.5).item() == pytest.approx(5.0)
    assert mean_squared(scores, teacher_temperature=0.5).item() == pytest.approx((0 + 49) / 2)


def test_margins_are_those_of_a_loop_over_pairs() -> None:
    rng = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    target = (torch.rand(4, 6, generator=rng) < 0.4).double()
    where = torch.rand(4, 6, generator=rng) < 0.7
    values = mean_squared(Scores(student, target, where, teacher=teacher))
    for i in range(4):
        result = []
        for a in range(6):
            for b in range(6):
                if where[i, a] and where[i, b] and target[i, a] > 0 and target[i, b] <= 0:
                    result.append(float((student[i, a] - student[i, b]) - (teacher[i, a] - teacher[i, b])) ** 2)
        assert values[i].item() == pytest.approx(sum(result) / max(1, len(result)))


def test_only_margins_count() -> None:
    """A student that scores as the teacher does but for a constant has nothing to learn; a factor is another thing."""
    teacher = rows([3, 1, 0], [2, 5, 1])
    assert mean_squared(group(teacher + 100, teacher)).max().item() == pytest.approx(0, abs=1e-20)
    assert (mean_squared(group(2 * teacher, teacher)) > 0.1).all()
    assert mean_squared(group(2 * teacher, teacher), temperature=2.0).max() == 0


def test_the_gradient_by_hand() -> None:
    """The mean of 2 (lead - lead) over pairs: the positive by all of it, each negative by its own."""
    student = rows([3, 1, 0]).requires_grad_()
    mean_squared(group(student, rows([7, 6, 2]))).sum().backward()
    torch.testing.assert_close(student.grad, rows([1 - 2, -1, 2]))


def test_without_a_pair_there_is_nothing() -> None:
    student, teacher = rows([3, 1]), rows([1, 3])
    for target in (rows([0, 0]), rows([1, 1])):
        assert mean_squared(group(student, teacher, target)).item() == 0


def test_it_wants_a_teacher() -> None:
    scores = group(rows([0, 1]), rows([0, 1]))
    with pytest.raises(ValueError, match="needs a teacher"):
        mean_squared(Scores(scores.student, scores.target, scores.where))


# The hinge


def test_a_hinge_by_hand() -> None:
    """Leads of 2 and 0.5 lack nothing and 0.5 of a margin of 1: 0.5 / 3. Of a margin of 3 they lack 1 and 2.5."""
    scores = Scores(rows([3, 1, 2.5]), rows([1, 0, 0]), torch.ones(1, 3, dtype=torch.bool))
    assert hinge(scores).item() == pytest.approx(0.5 / 3)
    assert hinge(scores, margin=3.0).item() == pytest.approx(3.5 / 3)


def test_the_hinge_is_pytorchs() -> None:
    """RepBERT's loss is `MultiLabelMarginLoss`, which takes the positions of the positives, ended by -1."""
    rng = torch.Generator().manual_seed(3)
    student = torch.randn(20, 6, generator=rng, dtype=torch.float64).requires_grad_()
    target = (torch.rand(20, 6, generator=rng) < 0.3).double()
    positions = torch.full((20, 6), -1)
    for i, row in enumerate(target):
        result = row.nonzero().flatten()
        positions[i, : len(result)] = result
    expected = functional.multilabel_margin_loss(student, positions, reduction="none")
    result = hinge(Scores(student, target, torch.ones(20, 6, dtype=torch.bool)))
    torch.testing.assert_close(result, expected)
    gradients = [torch.autograd.grad(values.sum(), student)[0] for values in (result, expected)]
    torch.testing.assert_close(*gradients)


def test_a_hinge_has_no_gradient_where_the_margins_are_met() -> None:
    student = rows([3, 1, 2.5]).requires_grad_()
    hinge(Scores(student, rows([1, 0, 0]), torch.ones(1, 3, dtype=torch.bool))).sum().backward()
    torch.testing.assert_close(student.grad, rows([-1 / 3, 0, 1 / 3]))


def test_a_hinge_without_a_pair_is_nothing() -> None:
    where = torch.ones(1, 2, dtype=torch.bool)
    for target in (rows([0, 0]), rows([1, 1])):
        assert hinge(Scores(rows([3, 1]), target, where)).item() == 0
