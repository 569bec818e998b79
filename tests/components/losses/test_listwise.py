"""Softmax cross entropy and distillation against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from sparring.components.losses.listwise import cross_entropy, distillation, divergence, kl, listnet, symmetric_kl
from sparring.components.losses.masking import log_softmax, softmax
from sparring.components.scores import Scores


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def all_of(student: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(student, dtype=torch.bool)


def test_cross_entropy_with_one_positive_is_minus_its_log_probability() -> None:
    """Scores 0, ln 2, ln 5 are odds 1 : 2 : 5, so the probabilities are 1/8, 2/8, 5/8."""
    student = rows([0, math.log(2), math.log(5)], [0, math.log(2), math.log(5)])
    target = rows([0, 1, 0], [0, 0, 1])
    values = cross_entropy(Scores(student, target, all_of(student)))
    torch.testing.assert_close(values, torch.tensor([math.log(4), math.log(8 / 5)], dtype=torch.float64))


def test_temperature_divides() -> None:
    """At temperature 1/2 the odds 1 : 2 : 5 become 1 : 4 : 25, and the second has 4/30."""
    student, target = rows([0, math.log(2), math.log(5)]), rows([0, 1, 0])
    value = cross_entropy(Scores(student, target, all_of(student)), temperature=0.5)
    assert value.item() == pytest.approx(math.log(30 / 4))


def test_cross_entropy_leaves_masked_candidates_out_of_the_denominator() -> None:
    """Without the third candidate the odds are 1 : 2."""
    student, target = rows([0, math.log(2), math.log(5)]), rows([0, 1, 0])
    value = cross_entropy(Scores(student, target, torch.tensor([[True, True, False]])))
    assert value.item() == pytest.approx(math.log(3 / 2))


def test_soft_targets_are_weights_that_sum_to_one() -> None:
    """Targets 3 and 1 weigh 3/4 and 1/4: (3/4) ln 4 + (1/4) ln(8/5). Twice the targets is the same."""
    student = rows([0, math.log(2), math.log(5)])
    wanted = 0.75 * math.log(4) + 0.25 * math.log(8 / 5)
    for factor in (1, 2):
        value = cross_entropy(Scores(student, factor * rows([0, 3, 1]), all_of(student)))
        assert value.item() == pytest.approx(wanted)


def test_a_masked_target_carries_no_weight() -> None:
    student = rows([0, math.log(2), math.log(5)])
    where = torch.tensor([[True, True, False]])
    both = cross_entropy(Scores(student, rows([0, 1, 1]), where))
    single = cross_entropy(Scores(student, rows([0, 1, 0]), where))
    torch.testing.assert_close(both, single)
    none = cross_entropy(Scores(student, rows([0, 0, 1]), where))
    assert none.item() == 0


def test_the_gradient_of_cross_entropy_is_probability_minus_target() -> None:
    student = rows([0, math.log(2), math.log(5)]).requires_grad_()
    cross_entropy(Scores(student, rows([0, 1, 0]), all_of(student))).sum().backward()
    torch.testing.assert_close(student.grad, rows([1 / 8, 2 / 8 - 1, 5 / 8]))


def test_a_shift_of_a_row_changes_nothing() -> None:
    student, target = rows([0, 1, 2], [3, -1, 0]), rows([0, 1, 0], [1, 0, 0])
    teacher = rows([1, 2, 0], [0, 0, 1])
    shifted = student + rows([100], [-7])
    for loss in (cross_entropy, distillation):
        before = loss(Scores(student, target, all_of(student), teacher=teacher))
        after = loss(Scores(shifted, target, all_of(student), teacher=teacher + 13))
        torch.testing.assert_close(before, after)


def test_divergence_is_cross_entropy_less_the_entropy_of_the_targets() -> None:
    """Targets 3/4 and 1/4 under 1/8 and 5/8: (3/4) ln 6 + (1/4) ln(2/5). Nothing where the two agree."""
    student, target = rows([0, math.log(2), math.log(5)]).requires_grad_(), rows([3, 0, 1])
    value = divergence(Scores(student, target, all_of(student)))
    assert value.item() == pytest.approx(0.75 * math.log(6) + 0.25 * math.log(2 / 5))
    value.sum().backward()
    torch.testing.assert_close(student.grad, rows([1 / 8 - 3 / 4, 2 / 8, 5 / 8 - 1 / 4]))
    same = divergence(Scores(student, rows([1, 2, 5]), all_of(student)))
    assert same.item() == pytest.approx(0, abs=1e-12)
    nothing = divergence(Scores(student, rows([0, 0, 0]), all_of(student)))
    assert nothing.item() == 0


def test_distillation_by_hand() -> None:
    """A teacher with odds 1 : 1 : 2 over a student with 1 : 2 : 5: (ln 8 + ln 4 + 2 ln(8/5)) / 4."""
    student, teacher = rows([0, math.log(2), math.log(5)]), rows([0, 0, math.log(2)])
    value = distillation(Scores(student, rows([1, 0, 0]), all_of(student), teacher=teacher))
    assert value.item() == pytest.approx((math.log(8) + math.log(4) + 2 * math.log(8 / 5)) / 4)


def test_distillation_is_the_divergence_from_the_teacher_and_the_teachers_entropy() -> None:
    rng = torch.Generator().manual_seed(3)
    student, teacher = (torch.randn(4, 6, generator=rng, dtype=torch.float64) for _ in range(2))
    where = torch.rand(4, 6, generator=rng) < 0.7
    where[:, 0] = True
    value = distillation(
        Scores(student, torch.zeros(4, 6), where, teacher=teacher), temperature=0.5, teacher_temperature=2.0
    )
    for row in range(4):
        p = torch.softmax(teacher[row][where[row]] / 2.0, -1)
        q = torch.log_softmax(student[row][where[row]] / 0.5, -1)
        divergence = torch.nn.functional.kl_div(q, p, reduction="sum")
        entropy = -(p * p.log()).sum()
        assert value[row].item() == pytest.approx((divergence + entropy).item())


def test_distillation_is_least_where_the_student_agrees_with_the_teacher() -> None:
    teacher = rows([2, 0, 1])
    student = teacher.clone().requires_grad_()
    distillation(Scores(student, rows([1, 0, 0]), all_of(teacher), teacher=teacher)).sum().backward()
    torch.testing.assert_close(student.grad, torch.zeros_like(teacher))


def test_distillation_follows_the_ranker_when_it_is_confident_and_when_it_is_fooled() -> None:
    """It draws the retriever to the positive of a sure ranker, and to the negative that a fooled one prefers."""
    for teacher, drawn in ((rows([9, 0, -1]), 0), (rows([0, 9, -1]), 1)):
        student = rows([0, 0, 0]).requires_grad_()
        distillation(Scores(student, rows([1, 0, 0]), all_of(student), teacher=teacher)).sum().backward()
        assert student.grad is not None
        rising = (-student.grad > 0).flatten().tolist()
        assert [i for i, rises in enumerate(rising) if rises] == [drawn]


def test_distillation_does_not_look_at_the_targets_and_wants_a_teacher() -> None:
    student, teacher = rows([0, 1, 2]), rows([2, 0, 1])
    first, second = (
        distillation(Scores(student, target, all_of(student), teacher=teacher))
        for target in (rows([1, 0, 0]), rows([0, 0, 5]))
    )
    torch.testing.assert_close(first, second)
    with pytest.raises(ValueError, match="needs a teacher"):
        distillation(Scores(student, rows([1, 0, 0]), all_of(student)))


def test_kl_by_hand() -> None:
    """The teacher 3/4 and 1/4, the student 1/2 and 1/2: 3/4 ln 3/2 + 1/4 ln 1/2. At half the temperature the student
    of odds 1 : 3 is one of 1 : 9."""
    teacher = rows([math.log(3), 0])
    where = all_of(teacher)
    value = kl(Scores(rows([5, 5]), rows([1, 0]), where, teacher=teacher))
    assert value.item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    cold = kl(Scores(rows([0, math.log(3)]), rows([1, 0]), where, teacher=teacher), temperature=0.5)
    assert cold.item() == pytest.approx(0.75 * math.log(7.5) + 0.25 * math.log(0.25 / 0.9))
    hot = kl(Scores(rows([5, 5]), rows([1, 0]), where, teacher=2 * teacher), teacher_temperature=2.0)
    torch.testing.assert_close(hot, value)


def test_kl_is_distillation_without_the_teachers_entropy() -> None:
    """So that it is 0 where the two agree; gradients are the same."""
    rng = torch.Generator().manual_seed(3)
    teacher, student = (torch.randn(4, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    where = torch.rand(4, 5, generator=rng) < 0.7
    where[:, 0] = True
    options = {"temperature": 0.5, "teacher_temperature": 2.0}
    gradients = []
    for loss in (kl, distillation):
        leaf = student.clone().requires_grad_()
        loss(Scores(leaf, torch.zeros_like(leaf), where, teacher=teacher), **options).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
    values = kl(Scores(student, torch.zeros_like(student), where, teacher=teacher))
    assert (values >= 0).all()
    agreed = kl(Scores(teacher, torch.zeros_like(student), where, teacher=teacher + 7))
    torch.testing.assert_close(agreed, torch.zeros_like(agreed))
    with pytest.raises(ValueError, match="needs a teacher"):
        kl(Scores(student, torch.zeros_like(student), where))


def test_listnet_by_hand() -> None:
    """Labels ln 2, 0, 0 are odds 2 : 1 : 1; the student has 1 : 2 : 5. At target temperature 1/2 they are 4 : 1 : 1."""
    student, target = rows([0, math.log(2), math.log(5)]), rows([math.log(2), 0, 0])
    scores = Scores(student, target, all_of(student))
    assert listnet(scores).item() == pytest.approx(math.log(8) / 2 + math.log(4) / 4 + math.log(8 / 5) / 4)
    cold = listnet(scores, target_temperature=0.5)
    assert cold.item() == pytest.approx((4 * math.log(8) + math.log(4) + math.log(8 / 5)) / 6)
    assert listnet(scores, temperature=0.5).item() == pytest.approx(
        math.log(30) / 2 + math.log(30 / 4) / 4 + math.log(30 / 25) / 4
    )


def test_listnet_with_a_least_target() -> None:
    """Candidates below it have no probability under the targets, and stay in the student's denominator."""
    student, target = rows([0, math.log(2), math.log(5)]), rows([math.log(3), 0, -1])
    scores = Scores(student, target, all_of(student))
    assert listnet(scores, least=0.0).item() == pytest.approx(0.75 * math.log(8) + 0.25 * math.log(4))
    assert listnet(scores, least=0.5).item() == pytest.approx(math.log(8))
    assert listnet(scores, least=5.0).item() == 0
    single = Scores(student, rows([1, 0, 0]), all_of(student))
    torch.testing.assert_close(listnet(single, least=1.0), cross_entropy(single))


def test_listnet_is_least_where_the_student_has_the_order_and_the_distances_of_the_targets() -> None:
    target = rows([2, 0, 1])
    student = (target + 5).requires_grad_()
    listnet(Scores(student, target, all_of(target))).sum().backward()
    torch.testing.assert_close(student.grad, torch.zeros_like(target))


def test_softmax_over_the_pairs_that_count() -> None:
    scores = rows([0, math.log(3), 7], [1, 2, 3])
    where = torch.tensor([[True, True, False], [False, False, False]])
    torch.testing.assert_close(softmax(scores, where), rows([1 / 4, 3 / 4, 0], [0, 0, 0]))
    torch.testing.assert_close(log_softmax(scores, where), rows([math.log(1 / 4), math.log(3 / 4), 0], [0, 0, 0]))


def test_symmetric_kl_is_the_mean_of_both_directions() -> None:
    """1/4, 3/4 against 1/2, 1/2; candidates that do not count change nothing, and both sides have a gradient."""
    a, b = rows([0, math.log(3), 7]).requires_grad_(), rows([0, 0, -3]).requires_grad_()
    scores = Scores(a, rows([1, 0, 0]), torch.tensor([[True, True, False]]), teacher=b)
    forward = 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    back = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    value = symmetric_kl(scores)
    assert value.item() == pytest.approx((forward + back) / 2)
    value.sum().backward()
    for side in (a, b):
        assert side.grad is not None
        assert side.grad[0, :2].all()
        assert side.grad[0, 2] == 0


def test_symmetric_kl_wants_two_passes() -> None:
    with pytest.raises(ValueError, match=r"symmetric_kl compares two passes of a ranker. Use `over: passes`"):
        symmetric_kl(Scores(rows([0, 1]), rows([1, 0]), all_of(rows([0, 1]))))
