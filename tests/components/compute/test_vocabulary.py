"""The softmax over a vocabulary, against torch's own."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from sparring.components.compute import vocabulary
from sparring.components.compute.vocabulary import log_likelihoods, sampled

KINDS = [vocabulary._InTheCache, vocabulary._InFewPasses]
"""What a CPU does, and what a GPU does."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cached", [1, 100, 10**6])  # a place at a time, some, all
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float64, 1e-12)]
)
def test_likelihoods_are_torchs_cross_entropy_with_its_gradient(
    monkeypatch: pytest.MonkeyPatch, kind: Any, cached: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Scores as far apart as any are: an exponential of them would overflow."""
    monkeypatch.setattr(vocabulary, "CACHED", cached)
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randn(7, 31, generator=generator) * 50 + 300).to(dtype)
    ids, weights = torch.randint(31, (7,), generator=generator), torch.randn(7, generator=generator)
    gradients = []
    for fast in (True, False):
        leaf = scores.clone().requires_grad_()
        wide = leaf.to(torch.promote_types(dtype, torch.float32))
        values = kind.apply(leaf, ids) if fast else -functional.cross_entropy(wide, ids, reduction="none")
        (gradient,) = torch.autograd.grad((values * weights).sum(), leaf)
        gradients.append(gradient)
        if fast:
            likelihoods = values
    assert likelihoods.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(likelihoods, values, rtol=1e-6, atol=1e-4)
    assert gradients[0].dtype == dtype
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_finite_differences(kind: Any) -> None:
    scores = torch.randn(3, 11, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda rows: kind.apply(rows, torch.tensor([0, 10, 4])), scores)


def test_scores_are_left_as_they_are() -> None:
    scores = torch.randn(3, 11)
    before = scores.clone()
    log_likelihoods(scores, torch.tensor([0, 10, 4]))
    sampled(scores, torch.rand(3))
    assert torch.equal(scores, before)


def test_no_place_has_no_likelihood_and_no_sample() -> None:
    assert log_likelihoods(torch.empty(0, 11), torch.empty(0, dtype=torch.int64)).shape == (0,)
    assert sampled(torch.empty(0, 11), torch.empty(0)).shape == (0,)


def test_samples_have_the_softmaxs_distribution() -> None:
    """Draws that are evenly spread fall on each token as often as its probability says."""
    scores = torch.tensor([0.0, 1.0, -2.0, 3.0, -30.0])
    draws = (torch.arange(10_000) + 0.5) / 10_000
    tokens = sampled(scores.expand(len(draws), -1), draws)
    shares = torch.bincount(tokens, minlength=5) / len(draws)
    torch.testing.assert_close(shares, scores.softmax(-1), rtol=0, atol=1e-4)


def test_a_draw_next_to_one_is_a_token() -> None:
    scores = torch.randn(4, 30_000, generator=torch.Generator().manual_seed(0))
    assert sampled(scores, torch.full((4,), 1.0, dtype=torch.float64)).max() < 30_000


def test_samples_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, draws = torch.randn(50, 300, generator=generator) * 3, torch.rand(50, generator=generator)
    samples = []
    for cached in (1, 1000, 10**6):
        monkeypatch.setattr(vocabulary, "CACHED", cached)
        samples.append(sampled(scores, draws))
    assert torch.equal(samples[0], samples[1])
    assert torch.equal(samples[0], samples[2])
