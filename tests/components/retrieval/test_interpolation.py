"""Two rankings as one, against a plain loop over queries and documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparring.components.data.tables import RANKING, check
from sparring.components.retrieval.fusion import FusionConfig, fuse
from sparring.components.retrieval.interpolation import interpolated

Found = dict[str, dict[str, float]]


def how(**numbers: Any) -> FusionConfig:
    return FusionConfig(how="interpolate", **numbers)


def table(found: Found) -> pa.Table:
    rows = [
        {"query_id": query, "doc_id": doc, "rank": rank, "score": score}
        for query, scores in found.items()
        for rank, (doc, score) in enumerate(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0])), 1)
    ]
    return pa.Table.from_pylist(rows, schema=RANKING)


def plain(
    first: Found, second: Found, config: FusionConfig, k: int, lexical: tuple[bool, bool] = (False, False)
) -> list[tuple[str, str, int, float]]:
    rows = []
    for query in dict.fromkeys([*first, *second]):
        total: dict[str, float] = {}
        shares = (1 - config.weight, config.weight)
        for ranking, share, words in zip((first, second), shares, lexical, strict=True):
            scores = ranking.get(query, {})
            low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
            cut = len(scores) >= k
            for doc in {**first.get(query, {}), **second.get(query, {})}:
                value = scores.get(doc, 0.0 if words and not cut else low)
                if config.normalise == "max-min" and words:
                    value /= high or 1.0
                elif config.normalise == "max-min":
                    value = (value - low) / (high - low) if high > low else float(doc in scores)
                total[doc] = total.get(doc, 0.0) + share * value
        best = sorted(total.items(), key=lambda pair: (-np.float32(pair[1]), pair[0]))[:k]
        rows += [(query, doc, rank, score) for rank, (doc, score) in enumerate(best, 1)]
    return rows


def some(seed: int) -> Found:
    """Of each query some of twelve documents, with ties; a query of its own."""
    rng = np.random.default_rng(seed)
    queries = [*(f"q{i}" for i in rng.permutation(5).tolist()), f"only {seed}"]
    return {q: {f"d{d}": float(rng.integers(-3, 4)) / 2 for d in rng.permutation(12)[:7].tolist()} for q in queries}


@pytest.mark.parametrize(
    "config", [{}, {"normalise": "none"}, {"weight": 0.0}, {"weight": 1.0}, {"weight": 0.3}], ids=str
)
@pytest.mark.parametrize("k", [4, 100])
@pytest.mark.parametrize("words", [None, 0])
def test_as_a_plain_loop(config: dict[str, Any], k: int, words: int | None) -> None:
    fusion = how(**config, depth=k)
    for seed in range(8):
        first, second = some(2 * seed), some(2 * seed + 1)
        if words is not None:  # BM25's scores are above 0
            first = {query: {doc: score + 2.0 for doc, score in scores.items()} for query, scores in first.items()}
        lexical = (words is not None, False)
        fused = fuse([table(first), table(second)], fusion, lexical=[] if words is None else [words])
        rows = check(fused, RANKING, source="found").to_pylist()
        wanted = plain(first, second, fusion, k, lexical)
        assert [(row["query_id"], row["doc_id"], row["rank"]) for row in rows] == [row[:3] for row in wanted]
        assert [row["score"] for row in rows] == pytest.approx([row[3] for row in wanted], abs=1e-6)


def test_a_document_behind_a_cut_list_is_not_taken_for_one_without_words() -> None:
    """The retriever's first document is behind the end of BM25's list, whose scores are nearly equal."""
    words = {"q": {f"d{i}": 10.0 - i / 100 for i in range(5)}}
    near = {"q": {"behind": 0.9, "d0": 0.1, "d1": 0.05}}
    cut, whole = (
        fuse([table(words), table(near)], how(depth=depth), lexical=[0])["doc_id"].to_pylist() for depth in (5, 100)
    )
    assert cut[0] == "behind"
    assert whole[0] == "d0"


def test_with_itself_a_ranking_keeps_its_order() -> None:
    same = table(some(0))
    again = fuse([same, same], how())
    assert again.select(["query_id", "doc_id", "rank"]).equals(same.select(["query_id", "doc_id", "rank"]))


def test_equal_scores_are_no_division_by_zero_and_nothing_is_no_error() -> None:
    first, second = table({"q": {"a": 2.0, "b": 2.0}}), table({"q": {"b": 1.0, "c": 0.0}})
    rows = fuse([first, second], how()).to_pylist()
    assert [(row["doc_id"], row["score"]) for row in rows] == [("b", 1.0), ("a", 0.5), ("c", 0.0)]
    assert len(fuse([table({}), table({})], how())) == 0


def test_the_one_document_that_a_list_has_counts() -> None:
    dense = table({"q": {f"d{number}": 1 - number / 10 for number in range(10)}})
    words = table({"q": {"d7": 14.2}})
    rows = fuse([dense, words], how(weight=0.9)).to_pylist()
    assert rows[0]["doc_id"] == "d7"
    assert rows[0]["score"] == pytest.approx(0.9 + 0.1 * 2 / 9)


def test_more_than_two_rankings_weigh_the_same() -> None:
    rankings = [some(seed) for seed in (1, 2, 3)]
    rows = fuse([table(ranking) for ranking in rankings], how(normalise="none")).to_pylist()
    for row in rows:
        scores = [ranking.get(row["query_id"], {}) for ranking in rankings]
        wanted = sum(values.get(row["doc_id"], min(values.values(), default=0.0)) for values in scores) / 3
        assert row["score"] == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(ValueError, match=r"weight: 0\.3 is that of the second of two lists"):
        fuse([table(ranking) for ranking in rankings], how(weight=0.3))


def test_a_ranking_that_has_nothing_keeps_its_weight() -> None:
    ranking = table({"q": {"a": 2.0, "b": 1.0}})
    assert fuse([ranking, table({})], how(weight=0.2)).to_pylist()[0]["score"] == pytest.approx(0.8)


def test_what_is_written_as_equal_is_in_order_of_the_documents() -> None:
    """Sums of 64 bits differ in their last ones, which are not written."""
    draw = np.random.default_rng(0)
    for _ in range(60):
        rankings = []
        for _ in range(3):
            scores = np.sort(draw.integers(0, 6, 8).astype(np.float32))[::-1]
            names = [f"d{number}" for number in draw.permutation(12)[:8]]
            rankings.append(
                pa.table(
                    {"query_id": ["q"] * 8, "doc_id": names, "rank": np.arange(1, 9, dtype=np.int32), "score": scores},
                    schema=RANKING,
                )
            )
        rows = interpolated(rankings, [0.6, 0.3, 0.1], normalise="max-min", lexical=[], k=20).to_pylist()
        assert rows == sorted(rows, key=lambda row: (-row["score"], row["doc_id"]))
