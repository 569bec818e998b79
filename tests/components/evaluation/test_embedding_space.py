"""Numbers of a space, by hand and by loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from components import embedding_space as space
from components.embedding_space import AnalysisConfig

DRAW = np.random.default_rng(0)
QUERIES, DOCUMENTS = (space.unit(DRAW.normal(size=(6, 4))) for _ in range(2))


def test_unit_vectors() -> None:
    found = space.unit(np.array([[3, 4], [0, 0]], np.float16))
    assert found.tolist() == [[0.6, 0.8], [0, 0]]


def test_alignment_by_hand() -> None:
    """Together, at right angles, and opposite: 0, 2, 4."""
    queries, documents = np.array([[1.0, 0], [1, 0], [1, 0]]), np.array([[1.0, 0], [0, 1], [-1, 0]])
    assert space.alignment(queries, documents) == pytest.approx(2)


def test_uniformity_and_anisotropy_are_loops_over_pairs() -> None:
    pairs = [(i, j) for i in range(6) for j in range(6) if i < j]
    wanted = math.log(np.mean([math.exp(-2 * ((QUERIES[i] - QUERIES[j]) ** 2).sum()) for i, j in pairs]))
    assert space.uniformity(QUERIES) == pytest.approx(wanted)
    assert space.anisotropy(QUERIES) == pytest.approx(np.mean([QUERIES[i] @ QUERIES[j] for i, j in pairs]))
    one_place = np.tile(QUERIES[:1], (5, 1))
    assert space.uniformity(one_place) == pytest.approx(0, abs=1e-12)
    assert space.anisotropy(one_place) == pytest.approx(1)


def test_ratios_are_a_loop_and_leave_out_pairs_with_one_document() -> None:
    other = ~np.eye(6, dtype=bool)
    other[0, 3] = other[3, 0] = False
    wanted = [QUERIES[i] @ QUERIES[j] / (QUERIES[i] @ DOCUMENTS[j]) for i in range(6) for j in range(6) if other[i, j]]
    assert np.sort(space.ratios(QUERIES, DOCUMENTS, other)) == pytest.approx(np.sort(wanted))
    assert space.ratios(QUERIES, QUERIES, other) == pytest.approx(np.ones(28))  # towers that are one place
    assert len(space.ratios(QUERIES, np.zeros_like(DOCUMENTS), other)) == 0


def test_histograms_are_shares_of_all_values() -> None:
    found = space.histogram(np.array([-0.999, 0.999, 0.999, 7.0]), (-1.0, 1.0))
    assert (len(found), found[0], found[-1], sum(found)) == (80, 0.25, 0.5, 0.75)


def test_a_map_keeps_groups_apart() -> None:
    """Two heaps far from each other: every point's nearest on the map is of its own heap."""
    heaps = [center + 0.01 * DRAW.normal(size=(12, 3)) for center in (np.array([1, 0, 0]), np.array([0, 1, 0]))]
    made = space.flat_map(*map(space.unit, heaps), perplexity=5.0)
    points = np.array([*made["queries"], *made["documents"]])
    assert points.shape == (24, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    distances = np.square(points[:, None] - points[None]).sum(-1) + 9 * np.eye(24)
    assert ((distances.argmin(1) < 12) == (np.arange(24) < 12)).all()


def test_all_of_it_and_its_mean_over_seeds() -> None:
    told = space.about(QUERIES, DOCUMENTS, DOCUMENTS[::-1], np.arange(6), AnalysisConfig(map=0))
    assert told["map"] is None
    assert told["nearest"]["mean"] == pytest.approx(float((QUERIES * DOCUMENTS[::-1]).sum(1).mean()))
    low, high = told["ratio"]["quartiles"]
    assert low <= told["ratio"]["median"] <= high
    assert space.numbers([told, {**told, "alignment": told["alignment"] + 1}])["alignment"] == pytest.approx(
        told["alignment"] + 0.5
    )
    alone = space.about(QUERIES, DOCUMENTS, DOCUMENTS, np.zeros(6), AnalysisConfig(map=0))
    assert space.numbers([told, alone])["ratio"] is None  # all have one document
