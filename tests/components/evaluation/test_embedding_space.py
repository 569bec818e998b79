"""Numbers of a space, by hand and by loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparring.components.evaluation import embedding_space as space
from sparring.components.evaluation.embedding_space import EmbeddingSpaceConfig

DRAW = np.random.default_rng(0)
QUERIES, DOCUMENTS = (space.unit_length(DRAW.normal(size=(6, 4))) for _ in range(2))


def test_unit_vectors() -> None:
    result = space.unit_length(np.array([[3, 4], [0, 0]], np.float16))
    assert result.tolist() == [[0.6, 0.8], [0, 0]]


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
    second = ~np.eye(6, dtype=bool)
    second[0, 3] = second[3, 0] = False
    wanted = [QUERIES[i] @ QUERIES[j] / (QUERIES[i] @ DOCUMENTS[j]) for i in range(6) for j in range(6) if second[i, j]]
    assert np.sort(space.same_tower_ratios(QUERIES, DOCUMENTS, second)) == pytest.approx(np.sort(wanted))
    assert space.same_tower_ratios(QUERIES, QUERIES, second) == pytest.approx(np.ones(28))  # towers that are one place
    assert len(space.same_tower_ratios(QUERIES, np.zeros_like(DOCUMENTS), second)) == 0


def test_histograms_are_shares_of_all_values() -> None:
    result = space.histogram(np.array([-0.999, 0.999, 0.999, 7.0]), (-1.0, 1.0))
    assert (len(result), result[0], result[-1], sum(result)) == (80, 0.25, 0.5, 0.75)


def test_a_retriever_that_has_collapsed_has_no_map() -> None:
    """scikit-learn ends the process where all points are one."""
    for vectors in (np.zeros((100, 8), np.float32), np.tile(QUERIES[:1], (100, 1))):
        result = space.analyse(vectors, vectors, vectors, np.arange(100), EmbeddingSpaceConfig())
        assert result["map"] is None


def test_a_map_keeps_groups_apart() -> None:
    """Two heaps far from each other: every point's nearest on the map is of its own heap."""
    heaps = [center + 0.01 * DRAW.normal(size=(12, 3)) for center in (np.array([1, 0, 0]), np.array([0, 1, 0]))]
    output = space.tsne_map(*map(space.unit_length, heaps), perplexity=5.0)
    assert output is not None
    points = np.array([*output["queries"], *output["documents"]])
    assert points.shape == (24, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    distances = np.square(points[:, None] - points[None]).sum(-1) + 9 * np.eye(24)
    assert ((distances.argmin(1) < 12) == (np.arange(24) < 12)).all()


def test_the_ratio_is_of_query_to_query_over_query_to_document() -> None:
    """Two pairs: cosines of the first query to the second and to the second's document .6 and .8, of the second to the
    first and to the first's document .6 and .6. The ratios are .75 and 1; those of documents would be 1 and 4/3."""
    queries, documents = np.array([[1.0, 0.0], [0.6, 0.8]]), np.array([[1.0, 0.0], [0.8, 0.6]])
    summary = space.analyse(queries, documents, documents, np.arange(2), EmbeddingSpaceConfig(map=0))["ratio"]
    assert summary["median"] == pytest.approx(0.875)
    assert summary["quartiles"] == pytest.approx([0.8125, 0.9375])
    middle = space.BINS // 2  # the histogram spans -1 to 3: this bin begins at 1
    assert sum(summary["histogram"][: middle + 1]) == pytest.approx(1)


def test_each_number_is_of_the_side_that_its_name_says() -> None:
    nearest = DOCUMENTS[::-1]
    summary = space.analyse(3 * QUERIES, 2 * DOCUMENTS, nearest, np.arange(6), EmbeddingSpaceConfig(map=0))
    assert summary["queries"] == 6
    assert summary["map"] is None
    assert summary["alignment"] == pytest.approx(space.alignment(QUERIES, DOCUMENTS))
    for name, function in (("uniformity", space.uniformity), ("anisotropy", space.anisotropy)):
        assert summary[name] == pytest.approx({"queries": function(QUERIES), "documents": function(DOCUMENTS)})
    cosines = (QUERIES * nearest).sum(1)
    assert summary["nearest"]["mean"] == pytest.approx(float(cosines.mean()))
    assert summary["nearest"]["histogram"] == space.histogram(cosines, space.COSINES)


def test_numbers_are_means_over_seeds() -> None:
    summary = space.analyse(QUERIES, DOCUMENTS, DOCUMENTS[::-1], np.arange(6), EmbeddingSpaceConfig(map=0))
    one_more = space.mean_over_seeds([summary, {**summary, "alignment": summary["alignment"] + 1}])
    assert one_more["alignment"] == pytest.approx(summary["alignment"] + 0.5)
    assert one_more["ratio"] == pytest.approx(summary["ratio"]["median"])
    assert one_more["uniformity_documents"] == pytest.approx(summary["uniformity"]["documents"])
    alone = space.analyse(QUERIES, DOCUMENTS, DOCUMENTS, np.zeros(6), EmbeddingSpaceConfig(map=0))
    assert space.mean_over_seeds([summary, alone])["ratio"] is None  # all have one document
