"""Zerveas et al.'s Appendix A.1 for one context, in plain loops over sets: slow, and easy to compare with the text.

`products` are the inner products of M elements, `products[i][j]`.
"""

from __future__ import annotations

import math

from sparring.components.neighbours.reciprocal import NeighboursConfig

Matrix = list[list[float]]


def nearest(products: Matrix, i: int, count: int) -> set[int]:
    """NN(i, k), Eq. 3: all that are at least as similar as the k-th of the others; i itself always."""
    rest = [j for j in range(len(products)) if j != i]
    similar = sorted((products[i][j] for j in rest), reverse=True)
    if count == 0 or not rest:
        return {i}
    kth = similar[min(count, len(similar)) - 1]
    return {i} | {j for j in rest if products[i][j] >= kth}


def reciprocal(products: Matrix, i: int, count: int) -> set[int]:
    """R(i, k), Eq. 4."""
    return {j for j in nearest(products, i, count) if i in nearest(products, j, count)}


def extended(products: Matrix, i: int, config: NeighboursConfig) -> set[int]:
    """R*(i, k), Eq. 5, or as the public code has it."""
    neighbours = reciprocal(products, i, config.k)
    if config.tau == 0:
        return neighbours
    released = config.extension == "released"
    few = round(config.tau * (config.k + 1)) + 1 if released else round(config.tau * config.k)
    more = set(neighbours)
    for j in neighbours:
        nearer = reciprocal(products, j, few)
        shared, bar = 3 * len(neighbours & nearer), 2 * len(nearer)
        if shared > bar or (shared == bar and not released):
            more |= nearer
    return more


def weights(products: Matrix, i: int, config: NeighboursConfig) -> list[float]:
    """v'_i, Eq. 7."""
    weigh = {
        "linear": lambda s: max(s, 0.0),
        "exp": lambda s: math.exp(config.sharpness * s),
        "expm1": lambda s: max(math.expm1(config.sharpness * s), 0.0),
    }[config.weight]
    neighbours = extended(products, i, config)
    row = [weigh(products[i][j]) if j in neighbours else 0.0 for j in range(len(products))]
    total = sum(row)
    return [weight / total for weight in row] if config.row_sums == "one" and total > 0 else row


def connections(products: Matrix, config: NeighboursConfig) -> Matrix:
    """v, Eq. 8."""
    rows = [weights(products, i, config) for i in range(len(products))]
    mixtures = []
    for i in range(len(products)):
        mixed = nearest(products, i, config.k_exp - 1)
        mixtures.append([sum(rows[j][c] for j in mixed) / len(mixed) for c in range(len(products))])
    return mixtures


def jaccard(first: list[float], second: list[float]) -> float:
    """Eq. 9 to 11."""
    union = sum(map(max, first, second))
    return sum(map(min, first, second)) / union if union > 0 else 0.0


def normalised(values: list[float], method: str) -> list[float]:
    """Eq. 13 and 14."""
    lowest, highest, mean = min(values), max(values), sum(values) / len(values)
    spread = {
        "none": 1.0,
        "max-min": highest - lowest,
        "std": math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)),
    }[method]
    base = 0.0 if method == "none" else lowest
    return [(value - base) / spread if spread > 0 else 0.0 for value in values]


def similarities(products: Matrix, probe: int, config: NeighboursConfig) -> list[float]:
    """Of every element but the first, the query, to the probe: Eq. 1."""
    rows = connections(products, config)
    geometric = normalised(products[probe][1:], config.geometric)
    return [config.mix * s + (1 - config.mix) * jaccard(rows[probe], rows[i]) for i, s in enumerate(geometric, start=1)]
