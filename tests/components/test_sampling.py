"""Samplers: positions of candidates, each at most once. New ones are under the contract as soon as they are there."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from sparring.components import sampling
from sparring.components.functions import FunctionRef, keyword_options
from sparring.components.rng import keyed_rng

SAMPLERS = [
    function
    for name, function in vars(sampling).items()
    if inspect.isfunction(function) and function.__module__ == sampling.__name__ and not name.startswith("_")
]
ALL = pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda function: function.__name__)
SCORES = np.linspace(9, 1, 12, dtype=np.float32)


def draw(sampler: Any, scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """At the query's fourth visit, where the sampler asks for that."""
    requests = {"visit": 3} if "visit" in inspect.signature(sampler).parameters else {}
    drawn: np.ndarray = sampler(scores, count, rng, 8.0, **requests)
    return drawn


@ALL
@pytest.mark.parametrize("count", [0, 1, 5, 12, 40])
@pytest.mark.parametrize("candidates", [0, 1, 12])
def test_at_most_so_many_positions_without_repetition(sampler: Any, count: int, candidates: int) -> None:
    result = draw(sampler, SCORES[:candidates], count, keyed_rng(1))
    assert len(result) == min(count, candidates)
    assert len(set(result.tolist())) == len(result)
    assert all(0 <= position < candidates for position in result)


@ALL
def test_the_same_generator_draws_the_same(sampler: Any) -> None:
    first, second = (draw(sampler, SCORES, 5, keyed_rng("q1", 0)).tolist() for _ in range(2))
    assert first == second


@ALL
def test_samplers_can_be_named_in_yaml(sampler: Any) -> None:
    call = FunctionRef(function=f"components.sampling.{sampler.__name__}")
    assert call.resolve() is sampler
    names = list(inspect.signature(sampler).parameters)
    assert names[:4] == ["scores", "count", "rng", "positive"]
    assert list(keyword_options(call.function)) == [name for name in names[4:] if name != "visit"]


def test_uniform_draws_each_alike() -> None:
    counts = Counter(int(position) for i in range(2000) for position in sampling.uniform(SCORES, 3, keyed_rng(i), 8.0))
    assert set(counts) == set(range(12))
    assert all(abs(count - 500) < 100 for count in counts.values())


def test_the_hardest_are_the_first() -> None:
    assert sampling.hardest(SCORES, 3, keyed_rng(1), 8.0).tolist() == [0, 1, 2]


def test_rotating_takes_each_in_turn_and_all_equally_often() -> None:
    taken = [sampling.rotating(SCORES, 5, keyed_rng(v), 8.0, visit=v).tolist() for v in range(12)]
    assert taken[:3] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 0, 1, 2]]
    assert Counter(itertools.chain.from_iterable(taken)) == dict.fromkeys(range(12), 5)


def shares(sampler: Any, **options: Any) -> np.ndarray:
    """How often each candidate is the one that is drawn."""
    result = [int(sampler(SCORES[:4], 1, keyed_rng(i), 8.0, **options)[0]) for i in range(4000)]
    return np.bincount(result, minlength=4) / 4000


def test_simans_draws_by_the_distance_to_the_positive() -> None:
    weights = np.exp(-0.5 * (SCORES[:4] - 8.0) ** 2)
    assert np.abs(shares(sampling.simans) - weights / weights.sum()).max() < 0.03
    weights = np.exp(-2.0 * (SCORES[:4] - 8.0 + 1.0) ** 2)
    assert np.abs(shares(sampling.simans, a=2.0, b=-1.0) - weights / weights.sum()).max() < 0.03


def test_softmax_draws_as_the_retriever_chooses() -> None:
    weights = np.exp(SCORES[:4] / 2.0)
    assert np.abs(shares(sampling.softmax, temperature=2.0) - weights / weights.sum()).max() < 0.03
