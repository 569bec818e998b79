"""Fused rankings, by hand and against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparring.components.data.tables import RANKING
from sparring.components.retrieval.fusion import FusionConfig, fuse, fuse_lists


def ranking(**found: str) -> pa.Table:
    """A ranking of one-letter documents."""
    rows = [
        {"query_id": query, "doc_id": document, "rank": rank, "score": 50.0 - rank}
        for query, documents in found.items()
        for rank, document in enumerate(documents, 1)
    ]
    return pa.Table.from_pylist(rows, schema=RANKING)


def fused(*rankings: pa.Table, **config: Any) -> dict[str, str]:
    table = fuse(rankings, FusionConfig(**config))
    letters: dict[str, str] = {}
    for row in table.to_pylist():
        letters[row["query_id"]] = letters.get(row["query_id"], "") + row["doc_id"]
        assert row["rank"] == len(letters[row["query_id"]])
    scores: dict[str, list[float]] = {}
    for row in table.to_pylist():
        scores.setdefault(row["query_id"], []).append(row["score"])
    assert all(values == sorted(values, reverse=True) for values in scores.values())
    return letters


def test_lists_are_interleaved_in_their_order() -> None:
    """The thesis' example: s1 a1 t1 s2 a2 t2, without what is there already."""
    assert fused(ranking(q="stu"), ranking(q="abc"), ranking(q="xyz")) == {"q": "saxtbyucz"}
    assert fused(ranking(q="sab"), ranking(q="abc"), ranking(q="sxa")) == {"q": "sabxc"}


def test_the_cut_is_exact_and_ragged_lists_go_on() -> None:
    assert fused(ranking(q="stuv"), ranking(q="a"), ranking(q="xy"), depth=5) == {"q": "saxty"}
    assert fused(ranking(q="stuv"), ranking(q="a"), ranking(q="xy")) == {"q": "saxtyuv"}
    assert fused(ranking(q="ab"), ranking(r="cd", q="xy")) == {"q": "axby", "r": "cd"}
    assert fused(ranking(), ranking(q="ab")) == {"q": "ab"}
    assert fused(ranking(), ranking()) == {}


def lists(seed: int) -> list[dict[str, str]]:
    """Three rankings of four queries, some missing, of unequal lengths."""
    rng = np.random.default_rng(seed)
    return [
        {
            f"q{i}": "".join(rng.permutation(list("abcdefghij"))[: rng.integers(1, 10)])
            for i in range(4)
            if rng.random() < 0.8
        }
        for _ in range(3)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [1, 4, 7, 100])
def test_interleaving_is_a_loop(seed: int, depth: int) -> None:
    three = lists(seed)
    wanted = {}
    for query in dict.fromkeys(name for letters in three for name in letters):
        turns = [letters.get(query, "") for letters in three]
        out: list[str] = []
        for place in range(10):
            out += [turn[place] for turn in turns if place < len(turn) and turn[place] not in out]
        whole: list[str] = []
        for letter in out:
            if letter not in whole:
                whole.append(letter)
        wanted[query] = "".join(whole[:depth])
    assert fused(*(ranking(**letters) for letters in three), depth=depth) == wanted


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("weight", "c"), [(0.0, 60), (0.3, 5), (0.9, 0), (1.0, 60)])
def test_weighted_reciprocal_ranks_are_a_loop(seed: int, weight: float, c: float) -> None:
    two = lists(seed)[:2]
    wanted = {}
    for query in dict.fromkeys(name for letters in two for name in letters):
        sums: dict[str, float] = {}
        for letters, share in zip(two, (1 - weight, weight), strict=True):
            for rank, letter in enumerate(letters.get(query, ""), 1):
                sums[letter] = sums.get(letter, 0.0) + share / (c + rank)
        order = sorted(sums, key=lambda letter: (-round(sums[letter], 12), letter))
        wanted[query] = "".join(order[:6])
    actual = fused(*(ranking(**letters) for letters in two), how="reciprocal", depth=6, weight=weight, c=c)
    assert actual == wanted


@pytest.mark.parametrize("seed", range(5))
def test_reciprocal_ranks_are_a_loop(seed: int) -> None:
    three = lists(seed)
    wanted = {}
    for query in dict.fromkeys(name for letters in three for name in letters):
        sums: dict[str, float] = {}
        for letters in three:
            for rank, letter in enumerate(letters.get(query, ""), 1):
                sums[letter] = sums.get(letter, 0.0) + 1 / (60 + rank)
        order = sorted(sums, key=lambda letter: (-round(sums[letter], 12), letter))
        wanted[query] = "".join(order[:6])
    assert fused(*(ranking(**letters) for letters in three), how="reciprocal", depth=6) == wanted


def test_a_longer_ranking_is_not_cut_by_a_depth_that_was_left_open() -> None:
    assert FusionConfig().reaching(130).depth == 130
    assert FusionConfig().reaching(10).depth == FusionConfig().depth
    assert FusionConfig(depth=50).reaching(130).depth == 50


def test_the_order_of_lists_makes_no_difference_to_reciprocal_ranks() -> None:
    three = [ranking(**letters) for letters in lists(7)]
    table = fuse(three, FusionConfig(how="reciprocal"))
    reverse = fuse(three[::-1], FusionConfig(how="reciprocal"))
    key = [("query_id", "ascending"), ("rank", "ascending")]
    assert table.sort_by(key) == reverse.sort_by(key)
    assert fused(ranking(q="ab"), ranking(q="ba"), how="reciprocal") == {"q": "ab"}  # equal sums: by id


@pytest.mark.parametrize("method", ["interleave", "reciprocal", "interpolate"])
def test_lists_in_one_table_are_as_lists_apart(method: Any) -> None:
    """Whatever the lists are numbered with, and wherever their rows stand."""
    lists = [ranking(q="abc", r="xy"), ranking(q="bda"), ranking(r="zx", q="e")]
    whole = pa.concat_tables(lists)
    numbers = np.repeat([3, 7, 20], [len(letters) for letters in lists])
    config = FusionConfig(how=method, depth=4)
    assert fuse_lists(whole, numbers, config) == fuse(lists, config, lexical=range(3))
