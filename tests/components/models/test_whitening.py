"""Whitening: closed forms of what becomes of vectors."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.models.whitening import whitening

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(500, 6)) @ RNG.normal(size=(6, 6)) + 100.0 * RNG.normal(size=6)
"""Far from the origin, and of another spread in each direction."""


@pytest.mark.parametrize("cuts", [[], [1], [7, 300]])
def test_the_mean_is_zero_and_the_covariance_the_identity(cuts: list[int]) -> None:
    """However the vectors come in blocks."""
    result = whitening(np.split(VECTORS, cuts))
    white = VECTORS @ result.matrix + result.shift
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(white.T @ white / len(white), np.eye(6), atol=1e-9)


def test_it_is_the_published_one() -> None:
    """`(x - mean) U S^(-1/2)` of the covariance's singular values (Su et al., 2021, Algorithm 1). Inner products are
    `x C^(-1) y` of centred vectors."""
    result = whitening([VECTORS])
    white = VECTORS @ result.matrix + result.shift
    covariance = np.cov(VECTORS, rowvar=False, bias=True)
    u, s, _ = np.linalg.svd(covariance)
    published = (VECTORS - VECTORS.mean(0)) @ u @ np.diag(1 / np.sqrt(s))
    np.testing.assert_allclose(np.abs(white[:, ::-1]), np.abs(published), atol=1e-8)  # directions have either sign
    centred = VECTORS - VECTORS.mean(0)
    np.testing.assert_allclose(white @ white.T, centred @ np.linalg.inv(covariance) @ centred.T, atol=1e-7)


def test_vectors_in_a_plane_are_refused() -> None:
    with pytest.raises(UserError, match=r"the vectors of 5 texts do not span all 6 dimensions. Provide more"):
        whitening([VECTORS[:5]])
    with pytest.raises(UserError, match="there are no texts to fit it to"):
        whitening([])
