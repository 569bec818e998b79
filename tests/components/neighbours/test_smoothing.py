"""Soft labels: Algorithm 1 by hand and as a plain loop, and the ground truth always has its share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparring.components.losses.listwise import cross_entropy
from sparring.components.neighbours.reciprocal import NeighboursConfig, inner_products, scores
from sparring.components.neighbours.smoothing import SmoothingConfig, distribution, evidence, targets, uniform
from sparring.components.scores import Scores
from tests.support import plain_neighbours as plain

OPTIONS: list[dict[str, Any]] = [
    {},
    {"normalise": "std", "boost": 1.525, "n_max": 5},
    {"normalise": "none", "n_max": None, "boost": 1.0},
    {"order": "truncate first"},
    {"order": "truncate first", "normalise": "std", "n_max": 3},
    {"order": "truncate first", "least": 0.1},
    {"least": 0.3, "n_max": None},
    {"n_max": 1},
]
EACH = pytest.mark.parametrize("options", OPTIONS, ids=str)
SIMILARITIES = [{"mix": 1.0}, {"mix": 0.0}, {"mix": 0.4}, {"mix": 0.4, "geometric": "max-min", "tau": 0.5}]


def config(similarity: dict[str, Any] | None = None, **options: Any) -> SmoothingConfig:
    return SmoothingConfig(similarity=NeighboursConfig(**{"k": 3, "k_exp": 2, **(similarity or {})}), **options)


def plain_targets(relevance: list[float], truth: list[bool], config: SmoothingConfig) -> list[float]:
    """Line 6 and the softmax of Algorithm 1 for one query, candidate by candidate."""
    if not any(truth):
        return [0.0] * len(truth)
    order = sorted(range(len(truth)), key=lambda i: (-relevance[i], i))
    kept = [truth[i] or config.n_max is None or order.index(i) < config.n_max for i in range(len(truth))]
    over = list(range(len(truth))) if config.order == "normalise first" else [i for i, k in enumerate(kept) if k]
    ranged = dict(zip(over, plain.normalised([relevance[i] for i in over], config.normalise), strict=True))
    powers = []
    for i in range(len(truth)):
        score = ranged.get(i, 0.0) * (config.boost if truth[i] else 1.0)
        enough = truth[i] or config.least is None or score >= config.least
        powers.append(math.exp(score) if kept[i] and enough else 0.0)
    return [power / sum(powers) for power in powers]


def contexts(count: int, candidates: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, candidates and which of these are ground truth: none for the last query, one or several for others."""
    rng = np.random.default_rng(seed)
    queries, documents = rng.integers(-3, 4, (count, 3)), rng.integers(-3, 4, (count, candidates, 3))
    truth = np.zeros((count, candidates), bool)
    for row in range(count - 1):
        truth[row, rng.permutation(candidates)[: 1 + row % 3]] = True
    return torch.from_numpy(queries).float(), torch.from_numpy(documents).float(), torch.from_numpy(truth)


@pytest.mark.parametrize("similarity", SIMILARITIES, ids=str)
def test_evidence_is_the_mean_similarity_to_the_ground_truth(similarity: dict[str, Any]) -> None:
    queries, documents, truth = contexts(7, 8)
    chosen = config(similarity).similarity
    result = evidence(queries, documents, truth, torch.ones_like(truth), chosen)
    products = inner_products(queries.double(), documents.double())
    for row in range(6):
        probes = [1 + i for i in truth[row].nonzero()[:, 0].tolist()]
        item = [plain.similarities(products[row].tolist(), probe, chosen) for probe in probes]
        wanted = [sum(values) / len(item) for values in zip(*item, strict=True)]
        assert result[row].tolist() == pytest.approx(wanted, abs=1e-4)


@EACH
def test_targets_are_those_of_a_plain_loop(options: dict[str, Any]) -> None:
    _, _, truth = contexts(9, 8)
    relevance = torch.from_numpy(np.random.default_rng(1).integers(0, 6, (9, 8)).astype(np.float32))  # many equal
    result = distribution(relevance, truth, torch.ones_like(truth), config(**options))
    for row in range(9):
        wanted = plain_targets(relevance[row].tolist(), truth[row].tolist(), config(**options))
        assert result[row].tolist() == pytest.approx(wanted, abs=1e-6)


@EACH
@pytest.mark.parametrize("labels", ["evidence", "query"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(1, 9), more=st.integers(0, 3))
def test_the_ground_truth_always_has_a_share(
    options: dict[str, Any], labels: Any, seed: int, candidates: int, more: int
) -> None:
    """And a query's targets sum to 1; one without ground truth has none, and what is not there has none either."""
    queries, documents, truth = contexts(6, candidates + more, seed=seed)
    mask = (torch.arange(candidates + more) < candidates).expand(6, -1)
    truth &= mask
    result = targets(queries, documents, truth, mask, config(labels=labels, **options))
    assert result.isfinite().all()
    assert (result[truth] > 0).all()
    assert (result[~mask] == 0).all()
    torch.testing.assert_close(result.sum(-1), truth.any(-1).float())
    wanted = targets(
        queries,
        documents[:, :candidates],
        truth[:, :candidates],
        mask[:, :candidates],
        config(labels=labels, **options),
    )
    torch.testing.assert_close(result[:, :candidates], wanted, rtol=1e-4, atol=1e-5)


def test_by_hand() -> None:
    """Similarities 9, 6, 3 and 1, of which the second is ground truth: in a range of 0 to 1 they are 1, 5/8, 1/4, 0."""
    relevance = torch.tensor([[9.0, 6.0, 3.0, 1.0]])
    truth, mask = torch.tensor([[False, True, False, False]]), torch.ones(1, 4, dtype=torch.bool)

    def shares(*powers: float | None) -> Tensor:
        kept = torch.tensor([-math.inf if power is None else power for power in powers])
        return kept.softmax(-1)[None]

    def found(**options: Any) -> Tensor:
        return distribution(relevance, truth, mask, SmoothingConfig(**{"boost": 1.2, **options}))

    torch.testing.assert_close(found(n_max=None), shares(1, 0.75, 0.25, 0))
    torch.testing.assert_close(found(n_max=3), shares(1, 0.75, 0.25, None))
    torch.testing.assert_close(found(n_max=1), shares(1, 0.75, None, None))  # the ground truth as well
    # The public code: the range is that of the first three, of which the last is 0 and falls below the limit.
    released = {"n_max": 3, "order": "truncate first"}
    torch.testing.assert_close(found(**released), shares(1, 0.6, 0, None))
    torch.testing.assert_close(found(**released, least=0.1), shares(1, 0.6, None, None))
    deviation = float(relevance.std(correction=0))
    std = [8 / deviation, 1.2 * 5 / deviation, 2 / deviation]
    torch.testing.assert_close(found(normalise="std", n_max=3), shares(*std, None))
    torch.testing.assert_close(found(normalise="none", n_max=2), shares(9, 7.2, None, None))


def test_ground_truth_that_would_be_cut_off_by_either_limit_stays() -> None:
    relevance = torch.tensor([[5.0, 4.0, 3.0, 0.0]])
    truth, mask = torch.tensor([[False, False, False, True]]), torch.ones(1, 4, dtype=torch.bool)
    for order in ("normalise first", "truncate first"):
        result = distribution(relevance, truth, mask, SmoothingConfig(n_max=2, least=0.1, order=order))
        assert (result[0] > 0).tolist() == [True, True, False, True]


def test_equally_similar_candidates_are_kept_as_they_stand() -> None:
    """However many share nothing with the ground truth: `n_max` is not more than it says."""
    relevance, truth = torch.tensor([[1.0, *[0.0] * 9]]), torch.tensor([[True, *[False] * 9]])
    result = distribution(relevance, truth, torch.ones_like(truth), SmoothingConfig(n_max=4))
    assert (result[0] > 0).tolist() == [True] * 4 + [False] * 6


def test_labels_by_the_query_follow_what_the_model_says_already() -> None:
    """A document beside the query gets the larger share, though it has nothing to do with the ground truth."""
    queries = torch.tensor([[1.0, 0.0, 0.0]])
    documents = torch.tensor([[[0.6, 0.8, 0.0], [0.5, 0.85, 0.0], [0.9, -0.4, 0.0], [0.1, 0.0, 1.0]]])
    truth = torch.tensor([[True, False, False, False]])
    mask = torch.ones_like(truth)
    geometric = {"mix": 1.0}
    by_truth = targets(queries, documents, truth, mask, config(geometric, boost=1.0))
    by_query = targets(queries, documents, truth, mask, config(geometric, boost=1.0, labels="query"))
    assert by_truth[0].argsort(descending=True).tolist()[:2] == [0, 1]
    assert by_query[0].argmax() == 2
    wanted = distribution(scores(queries, documents, config(geometric).similarity), truth, mask, config(boost=1.0))
    torch.testing.assert_close(by_query, wanted)


def test_uniform_smoothing_is_equation_2() -> None:
    truth = torch.tensor(
        [[True, False, False, False, False], [True, True, False, False, False], [True] + [False] * 4, [False] * 5]
    )
    mask = torch.tensor([[True] * 5, [True] * 4 + [False], [True] + [False] * 4, [True] * 5])
    result = uniform(truth, mask, torch.tensor([0.2, 0.1, 0.3, 0.4]))
    torch.testing.assert_close(
        result,
        torch.tensor([[0.8, 0.05, 0.05, 0.05, 0.05], [0.45, 0.45, 0.05, 0.05, 0.0], [1.0, 0, 0, 0, 0], [0.0] * 5]),
    )


def test_targets_are_what_a_listwise_loss_takes() -> None:
    """Cross entropy towards them less their entropy is the KL divergence of Algorithm 1, line 9."""
    queries, documents, truth = contexts(5, 8, seed=4)
    mask = torch.ones_like(truth)
    target = targets(queries, documents, truth, mask, config())
    student = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    loss = cross_entropy(Scores(student, target, mask))
    entropy = torch.special.entr(target).sum(-1)
    divergence = torch.nn.functional.kl_div(student.log_softmax(-1), target, reduction="none").sum(-1)
    torch.testing.assert_close(loss - entropy, divergence)


@pytest.mark.gpu
@EACH
def test_on_a_gpu_as_on_a_processor(options: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    inputs = contexts(6, 9)
    mask = torch.ones_like(inputs[2])
    result = targets(*(item.cuda() for item in inputs), mask.cuda(), config(**options))
    torch.testing.assert_close(result.cpu(), targets(*inputs, mask, config(**options)), rtol=1e-4, atol=1e-5)
