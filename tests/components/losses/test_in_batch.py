"""Softmax over the batch, in both directions and with hard negatives weighing more, by hand and by loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparring.components.losses.in_batch import both_directions, hardness_weighted
from sparring.components.losses.listwise import cross_entropy
from sparring.components.scores import Scores
from tests.support.vectors import batch, one_row, soft_row, unit


def test_both_directions_by_hand() -> None:
    """Odds 1 : 2 from the query and 1 : 6 from its document: ln 3 + ln 7."""
    scores = one_row(0, [math.log(2)], document_query=[math.log(4), math.log(2)])
    assert both_directions(scores).item() == pytest.approx(math.log(3) + math.log(7))
    assert both_directions(scores, temperature=0.5).item() == pytest.approx(math.log(5) + math.log(21))


def test_both_directions_are_those_of_a_loop() -> None:
    queries, documents = unit(4, seed=1), unit(7, seed=2)  # three of the documents are mined negatives
    values = both_directions(batch(queries, documents), temperature=0.3)
    for i in range(4):
        positive = math.exp(queries[i] @ documents[i] / 0.3)
        forward = sum(math.exp(queries[i] @ documents[j] / 0.3) for j in range(7))
        back = sum(math.exp(documents[i] @ queries[j] / 0.3) for j in range(4))
        assert values[i].item() == pytest.approx(-math.log(positive / forward) - math.log(positive / back))


def test_without_mined_negatives_both_directions_are_symmetric() -> None:
    """Whose side is called query does not matter."""
    a, b = unit(5, seed=3), unit(5, seed=4)
    torch.testing.assert_close(both_directions(batch(a, b)), both_directions(batch(b, a)))


def test_a_negative_weighs_by_its_hardness() -> None:
    """Scores 0, ln 2, ln 3 with strength 1 weigh 2 and 3: odds 1 : 4 : 9. The positive weighs 1 whatever it scores."""
    scores = one_row(0, [math.log(2), math.log(3)])
    assert hardness_weighted(scores).item() == pytest.approx(math.log(14))
    high = one_row(5, [math.log(2), math.log(3)])
    assert hardness_weighted(high).item() == pytest.approx(math.log((math.exp(5) + 13) / math.exp(5)))


def test_hardness_is_taken_before_the_temperature() -> None:
    """At temperature 1/2 the odds are 1 : 4, times a weight of 2^3."""
    value = hardness_weighted(one_row(0, [math.log(2)]), temperature=0.5, strength=3.0)
    assert value.item() == pytest.approx(math.log(1 + 4 * 8))


def test_hardness_in_both_directions_is_the_mean_of_the_two() -> None:
    """Odds 1 : 4 from the query; 1 : 3 * 3 and 1 : 2 * 2 from its document."""
    scores = one_row(0, [math.log(2)], document_query=[math.log(3), math.log(2)])
    value = hardness_weighted(scores, both_directions=True)
    assert value.item() == pytest.approx((math.log(5) + math.log(14)) / 2)


def test_without_strength_hardness_is_the_plain_softmax() -> None:
    scores = batch(unit(4, seed=1), unit(6, seed=2))
    plain = cross_entropy(scores, temperature=0.2)
    torch.testing.assert_close(hardness_weighted(scores, temperature=0.2, strength=0.0), plain)


def test_no_gradient_flows_through_the_weights() -> None:
    """It is that of a softmax in which a negative stands so many times: weighted probability minus target."""
    student = torch.tensor([[0.0, math.log(2), math.log(3)]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    scores = Scores(student, target, torch.ones(1, 3, dtype=torch.bool))
    hardness_weighted(scores).sum().backward()
    wanted = torch.tensor([[1 / 14 - 1, 4 / 14, 9 / 14]], dtype=torch.float64)
    torch.testing.assert_close(student.grad, wanted)


def test_gradients_of_vectors_are_those_of_finite_differences() -> None:
    vectors = unit(3, seed=5).requires_grad_(), unit(4, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, d: both_directions(batch(q, d), temperature=0.5), vectors)


@pytest.mark.parametrize("directions", [False, True])
def test_hardness_has_the_gradient_of_weights_that_are_held(directions: bool) -> None:
    """That of a softmax with a factor before each negative that was taken from vectors of another place: finite
    differences of it, as those of the loss itself would move the factors too."""
    q, d = unit(3, seed=5), unit(5, seed=6)  # two of the documents are mined negatives
    t, strength = 0.4, 2.0
    forward, back = (strength * (q @ d.T)).exp(), (strength * (d[:3] @ q.T)).exp()
    itself = torch.arange(3)
    forward[itself, itself] = back[itself, itself] = 1.0

    def held(queries: Tensor, documents: Tensor) -> Tensor:
        positive = (queries * documents[:3]).sum(-1) / t
        ways = [forward * (queries @ documents.T / t).exp()]
        ways += [back * (documents[:3] @ queries.T / t).exp()] if directions else []
        return torch.stack([way.sum(-1).log() - positive for way in ways]).mean(0)

    vectors = q.clone().requires_grad_(), d.clone().requires_grad_()
    assert torch.autograd.gradcheck(held, vectors)
    loss = hardness_weighted(batch(*vectors), temperature=t, strength=strength, both_directions=directions)
    torch.testing.assert_close(loss, held(*vectors))
    actual, wanted = (torch.autograd.grad(item.sum(), vectors) for item in (loss, held(*vectors)))
    torch.testing.assert_close(actual, wanted)


def test_both_directions_with_several_positives_in_a_row() -> None:
    """The way back has both in its one denominator, beside odds of 4: 1 + 2 + 4."""
    value = both_directions(soft_row(document_query=[math.log(4)]))
    assert value.item() == pytest.approx(math.log(6) + math.log(7) - 2 * 0.25 * math.log(2))
