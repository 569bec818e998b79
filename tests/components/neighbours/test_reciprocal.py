"""Similarity by reciprocal neighbours: a plain loop says the same, and neither order nor padding changes anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparring.components.neighbours.reciprocal import (
    NeighboursConfig,
    connections,
    contexts_per_batch,
    element_mask,
    inner_products,
    jaccard,
    normalised,
    scores,
    similarity,
)
from tests.support import plain_neighbours as plain

PAPER: dict[str, Any] = {"mix": 0.451, "geometric": "none"}
"""The paper's mixture (Table 5)."""
OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 1, "k_exp": 1},
    {"k": 2, "tau": 0.5},
    {"k": 5, "tau": 0.6, "k_exp": 2},
    {"k": 5, "tau": 0.6, "extension": "released"},
    {"k": 4, "tau": 0.1, "extension": "released"},
    {"k": 3, "tau": 1.0, "k_exp": 6},
    {"weight": "exp", "sharpness": 0.2},
    {"weight": "expm1", "sharpness": 0.3, "row_sums": "one", "tau": 0.5},
    {"weight": "exp", "sharpness": 0.3, "row_sums": "one"},
    {"row_sums": "one"},
    {"geometric": "max-min"},
    {"geometric": "std"},
    {"mix": 0.0},
    {"mix": 1.0},
    {"k": 50, "k_exp": 40},
]
EACH = pytest.mark.parametrize("options", OPTIONS, ids=str)


def config(**options: Any) -> NeighboursConfig:
    return NeighboursConfig(**{"k": 4, "k_exp": 3, **PAPER, **options})


def contexts(count: int, candidates: int, *, seed: int = 0, low: int = -3, high: int = 4) -> tuple[Tensor, Tensor]:
    """Queries and candidates of whole numbers: sums are exact, and many are equal."""
    draw = np.random.default_rng(seed)
    queries = draw.integers(low, high, (count, 3)).astype(np.float32)
    documents = draw.integers(low, high, (count, candidates, 3)).astype(np.float32)
    return torch.from_numpy(queries), torch.from_numpy(documents)


def by_hand(queries: Tensor, documents: Tensor, config: NeighboursConfig, probe: int = 0) -> list[list[float]]:
    """The plain loop's similarities of each context's candidates to an element of it."""
    products = inner_products(queries.double(), documents.double())
    return [plain.similarities(product.tolist(), probe, config) for product in products]


@EACH
@pytest.mark.parametrize(("candidates", "low"), [(12, -3), (9, 0), (3, -3), (1, -3)])
def test_a_plain_loop_says_the_same(options: dict[str, Any], candidates: int, low: int) -> None:
    queries, documents = contexts(8, candidates, low=low)
    result = scores(queries, documents, config(**options))
    wanted = torch.tensor(by_hand(queries, documents, config(**options)))
    torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5, check_dtype=False)


@EACH
def test_similarity_to_a_document_is_that_of_the_plain_loop(options: dict[str, Any]) -> None:
    queries, documents = contexts(5, 8, seed=3)
    products = inner_products(queries, documents)
    mask = element_mask(products, None)
    connected = connections(products, mask, config(**options))
    for probe in (0, 3, 8):
        result = similarity(products, connected, torch.full((5,), probe), mask, config(**options))
        wanted = torch.tensor(by_hand(queries, documents, config(**options), probe))
        torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5, check_dtype=False)


def test_the_paper_and_its_code_differ_in_what_is_taken_in() -> None:
    """Exactly two thirds are enough for the paper; and the code looks at one neighbour more, and then one more."""
    paper, released = config(k=3, tau=0.67), config(k=3, tau=0.67, extension="released")
    assert (paper.extension_k(), released.extension_k()) == (2, 4)
    assert config(k=10, tau=0.05, extension="released").extension_k() == 2
    assert config(k=10, tau=0.05).extension_k() == 0
    assert config(k=10, tau=0.0, extension="released").extension_k() == 0
    queries, documents = contexts(40, 9, seed=1)
    products = inner_products(queries, documents)
    mask = element_mask(products, None)
    options = {"k": 3, "tau": 0.67, "k_exp": 1, "weight": "exp"}
    single = connections(products, mask, config(**options)) > 0
    second = connections(products, mask, config(**options, extension="released")) > 0
    assert (single != second).any()
    wanted = [[plain.extended(p.tolist(), i, paper) for i in range(10)] for p in products]
    assert [[set(row.nonzero()[:, 0].tolist()) for row in rows] for rows in single] == wanted


def test_two_thirds_by_hand() -> None:
    """Of d1's 3 near neighbours (itself, the query, d2) the query has 2: enough for the paper, too few for its code."""
    products = torch.tensor([[[9.0, 8.0, 1.0, 0.0], [8.0, 9.0, 7.0, 0.0], [1.0, 7.0, 9.0, 6.0], [0.0, 0.0, 6.0, 9.0]]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    few = {"k_exp": 1, "weight": "exp"}
    # The query's nearest is d1 and d1's the query; d2's nearest is d1, but not the other way round.
    alone = connections(products, mask, config(k=1, **few)) > 0
    assert alone[0, 0].tolist() == [True, True, False, False]
    # tau = 1 and k = 2: R(q) = {q, d1} (d2's two nearest are d1 and d3), R(d1, 2) = {d1, q, d2}.
    result = connections(products, mask, config(k=2, tau=1.0, **few)) > 0
    assert result[0, 0].tolist() == [True, True, True, False]
    assert plain.extended(products[0].tolist(), 0, config(k=2, tau=1.0)) == {0, 1, 2}
    stricter = config(k=2, tau=0.34, extension="released", **few)  # looks at round(0.34 * 3) + 1 = 2 as well
    assert (connections(products, mask, stricter) > 0)[0, 0].tolist() == [True, True, False, False]


@EACH
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(1, 14))
def test_the_order_of_candidates_changes_nothing(options: dict[str, Any], seed: int, candidates: int) -> None:
    queries, documents = contexts(3, candidates, seed=seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(candidates))
    result = scores(queries, documents[:, order], config(**options))
    torch.testing.assert_close(result, scores(queries, documents, config(**options))[:, order], rtol=1e-5, atol=1e-5)


@EACH
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(1, 9), more=st.integers(1, 6))
def test_what_is_not_there_changes_nothing(options: dict[str, Any], seed: int, candidates: int, more: int) -> None:
    queries, documents = contexts(3, candidates + more, seed=seed)
    mask = (torch.arange(candidates + more) < candidates).expand(3, -1).clone()
    mask[1, 0] = candidates == 1
    result = scores(queries, documents, config(**options), mask)
    wanted = scores(queries[[0, 2]], documents[[0, 2], :candidates], config(**options))
    torch.testing.assert_close(result[[0, 2], :candidates], wanted, rtol=1e-5, atol=1e-5)
    if candidates > 1:
        wanted = scores(queries[1:2], documents[1:2, 1:candidates], config(**options))
        torch.testing.assert_close(result[1:2, 1:candidates], wanted, rtol=1e-5, atol=1e-5)


@EACH
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(2, 9))
def test_the_same_document_twice_has_the_same_score_twice(options: dict[str, Any], seed: int, candidates: int) -> None:
    queries, documents = contexts(3, candidates, seed=seed)
    documents[:, -1] = documents[:, 0]
    result = scores(queries, documents, config(**options))
    torch.testing.assert_close(result[:, -1], result[:, 0], rtol=1e-6, atol=1e-6)


@EACH
def test_a_batch_is_its_contexts_one_by_one(options: dict[str, Any]) -> None:
    queries, documents = contexts(7, 10, seed=5)
    alone = [scores(queries[i : i + 1], documents[i : i + 1], config(**options)) for i in range(7)]
    torch.testing.assert_close(scores(queries, documents, config(**options)), torch.cat(alone), rtol=1e-6, atol=1e-6)


@EACH
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), candidates=st.integers(1, 9), zeros=st.integers(0, 9))
def test_scores_are_numbers_and_jaccard_is_a_share(
    options: dict[str, Any], seed: int, candidates: int, zeros: int
) -> None:
    """Also where vectors are 0 or point away from each other, and nothing is left to divide by."""
    queries, documents = contexts(3, candidates, seed=seed)
    documents[:, :zeros] = 0
    queries[0] = 0
    assert scores(queries, documents, config(**options)).isfinite().all()
    products = inner_products(queries, documents)
    mask = element_mask(products, None)
    connected = connections(products, mask, config(**options))
    for probe in range(candidates + 1):
        result = jaccard(connected, torch.full((3,), probe))
        assert (result >= 0).all()
        assert (result <= 1 + 1e-6).all()
        whole = connected[:, probe].sum(-1) > 0
        torch.testing.assert_close(result[whole, probe], torch.ones(int(whole.sum())))


@EACH
def test_all_alike_is_no_division_by_nothing(options: dict[str, Any]) -> None:
    queries, documents = torch.ones(2, 4), torch.ones(2, 5, 4)
    result = scores(queries, documents, config(**options))
    assert result.isfinite().all()
    torch.testing.assert_close(result, result[:, :1].expand(-1, 5))


def test_an_element_is_its_own_neighbour_beside_longer_ones() -> None:
    """Under the inner product a long vector is more similar to a short one than the short one is to itself."""
    queries = torch.tensor([[0.1, 0.0]])
    documents = torch.tensor([[[5.0, 0.0], [6.0, 0.0], [7.0, 0.1], [8.0, 0.0]]])
    products = inner_products(queries, documents)
    connected = connections(products, element_mask(products, None), config(k=1, k_exp=1))
    assert (connected.diagonal(dim1=-2, dim2=-1) > 0).all()
    assert (connected[0, 0] > 0).tolist() == [True, False, False, False, False]


def test_what_points_away_is_no_neighbour() -> None:
    """With k as large as the context all are reciprocal, but those with a negative product weigh nothing."""
    queries, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]])
    products = inner_products(queries, documents)
    connected = connections(products, element_mask(products, None), config(k=9, k_exp=1))
    assert connected[0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert scores(queries, documents, config(k=9, k_exp=1, mix=0.0)).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("weight", ["exp", "expm1"])
@pytest.mark.parametrize("row_sums", ["free", "one"])
def test_large_inner_products_do_not_overflow(weight: Any, row_sums: Any) -> None:
    """Products of some hundreds, as of vectors that are not normalised: e^s is no number of single precision."""
    draw = torch.Generator().manual_seed(1)
    queries, documents = 10 + torch.randn(4, 3, generator=draw), 10 + torch.randn(4, 8, 3, generator=draw)
    chosen = config(weight=weight, row_sums=row_sums, mix=0.0, sharpness=0.5)
    result = scores(queries, documents, chosen)
    wanted = torch.tensor(by_hand(queries, documents, chosen))
    torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-3, check_dtype=False)


def test_reciprocity_lifts_the_positive_of_figure_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three documents are nearer to the query than the positive, which nearest neighbours alone rank below them.

    They lie in a crowd, whose members have nearer neighbours than the query; the positive has the query among its four
    nearest. So by reciprocal neighbours it is ranked first. The numbers are angles in the plane, the query's is 0.
    """
    near, positive, rest = [-39.0, -41.0, -42.0], 44.0, [-62.0, -69.0, -73.0, 62.0]
    angles = torch.tensor([[*near, positive, *rest]]).deg2rad()
    query, documents = torch.tensor([[1.0, 0.0]]), torch.stack([angles.cos(), angles.sin()], -1)
    products = inner_products(query, documents)[0].tolist()
    four = config(k=4, k_exp=1)

    def of(values: Any) -> tuple[float, float, float]:
        """The lowest and the highest of the three near documents, and the positive."""
        three, positive = [float(value) for value in values[:3]], float(values[3])
        return min(three), max(three), positive

    lowest, highest, fourth = of(products[0][1:])
    assert fourth < lowest - 0.01
    lowest, highest, first = of(scores(query, documents, four)[0])
    assert first > highest + 0.1
    monkeypatch.setattr(plain, "reciprocal", plain.nearest)
    lowest, highest, fourth = of(plain.similarities(products, 0, four))
    assert fourth < lowest - 0.01


def test_mix_1_keeps_the_order_and_mix_0_sees_only_neighbours() -> None:
    queries, documents = contexts(6, 9, seed=2)
    geometric = (queries[:, None] * documents).sum(-1)
    torch.testing.assert_close(scores(queries, documents, config(mix=1.0)), geometric)
    result = scores(queries, documents, config(mix=0.0))
    torch.testing.assert_close(scores(3 * queries, 3 * documents, config(mix=0.0)), result)
    assert (result <= 1).all()


def test_the_default_is_the_same_for_vectors_of_any_length() -> None:
    """The paper's mixture is not: neighbours have no say on long vectors, and all of it on short ones."""
    draw = torch.Generator().manual_seed(2)
    queries, documents = torch.randn(20, 8, generator=draw), torch.randn(20, 30, 8, generator=draw)
    default, paper = NeighboursConfig(k=8), NeighboursConfig(k=8, **PAPER)
    wanted = scores(queries, documents, default)
    for length in (0.01, 100.0):
        torch.testing.assert_close(scores(length * queries, length * documents, default), wanted, rtol=1e-4, atol=1e-4)

    def order(length: float, mix: float) -> list[list[int]]:
        config = paper.model_copy(update={"mix": mix})
        return scores(length * queries, length * documents, config).argsort(-1, descending=True).tolist()

    assert order(100.0, 0.451) == order(100.0, 1.0)
    assert order(1.0, 0.451) != order(1.0, 1.0)
    alone = scores(queries, documents, paper.model_copy(update={"mix": 0.0}))
    torch.testing.assert_close(scores(0.001 * queries, 0.001 * documents, paper), 0.549 * alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("none", [[3, 5, 0, 4], [7, 0, 0, 0]]),
        ("max-min", [[0, 1, 0, 0.5], [0, 0, 0, 0]]),
        ("std", [[0, 2 / (2 / 3) ** 0.5, 0, 1 / (2 / 3) ** 0.5], [0, 0, 0, 0]]),
    ],
)
def test_ranges_are_those_of_what_is_there(mode: Any, wanted: list[list[float]]) -> None:
    values = torch.tensor([[3.0, 5.0, 99.0, 4.0], [7.0, -5.0, 99.0, 4.0]])
    mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    torch.testing.assert_close(normalised(values, mask, mode), torch.tensor(wanted, dtype=torch.float32))
    nothing = torch.zeros_like(mask)
    assert (normalised(values, nothing, mode) == 0).all()


def test_contexts_are_worked_on_in_batches_of_some_size() -> None:
    assert contexts_per_batch(1000) == 1
    assert contexts_per_batch(60) > 16
    assert contexts_per_batch(1000, "cuda") > 16


@pytest.mark.gpu
@EACH
def test_on_a_gpu_as_on_a_processor(options: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    queries, documents = contexts(8, 12)
    mask = torch.rand(8, 12, generator=torch.Generator().manual_seed(0)) < 0.8
    wanted = scores(queries, documents, config(**options), mask)
    result = scores(queries.cuda(), documents.cuda(), config(**options), mask.cuda()).cpu()
    torch.testing.assert_close(result[mask], wanted[mask], rtol=1e-5, atol=1e-5)
