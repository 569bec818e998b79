"""The query reranker's validation measures, by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from sparring.components.data.batches import Batch
from sparring.components.objectives.query_reranker import QueryReranker
from sparring.components.objectives.ranker import RankerBatch
from sparring.components.training.validation import better

RANKS = [[1.0, 2.0, 101.0], [1.0, 2.0, 101.0], [1.0, 2.0, 101.0]]
BOLD = [[0.1, 0.5, 0.9], [0.1, 0.5, 0.9], [0.8, 0.5, 0.2]]
"""Right twice, and once as wrong as can be."""
CAREFUL = [[0.5, 0.1, 0.9], [0.5, 0.1, 0.9], [0.5, 0.1, 0.9]]
"""Never right, and never far from it."""


def judged(predicted: list[list[float]], ranks: list[list[float]]) -> dict[str, float]:
    """The mean measures; a row with fewer candidates than the first is padded."""
    width = len(ranks[0])
    target = torch.tensor([[*row, *[0.0] * (width - len(row))] for row in ranks])
    where = torch.tensor([[place < len(row) for place in range(width)] for row in ranks])
    places = torch.zeros(where.shape, dtype=torch.long)
    places[where] = torch.arange(int(where.sum()))
    scores = torch.tensor([[score for row in predicted for score in row]])
    everything = torch.ones(scores.shape[1], dtype=torch.bool)
    batch = RankerBatch(pairs=cast(Batch, None), places=places, target=target, where=where, teacher=None)
    reranker: Any = QueryReranker.__new__(QueryReranker)
    return {name: values.mean().item() for name, values in reranker.judge((scores, everything), batch).items()}


def test_the_mean_rank_of_the_chosen_and_how_often_it_is_the_best_disagree() -> None:
    """A checkpoint that the one measure keeps is not the one that the other keeps."""
    bold, careful = judged(BOLD, RANKS), judged(CAREFUL, RANKS)
    assert bold == pytest.approx({"accuracy": 2 / 3, "rank": (1 + 1 + 101) / 3})
    assert careful == {"accuracy": 0.0, "rank": 2.0}
    chosen = {
        measure: better(careful[measure], bold[measure], lowest=measure in QueryReranker.lowest)
        for measure in QueryReranker.measures
    }
    assert chosen == {"accuracy": False, "rank": True}


@pytest.mark.parametrize(
    ("predicted", "ranks", "wanted"),
    [
        ([[0.2, 0.2, 0.9]], [[3.0, 7.0, 1.0]], 7.0),  # of two chosen the worse
        ([[0.2, 0.1, 0.9], [0.3]], [[3.0, 7.0, 1.0], [5.0]], 6.0),  # padding is never chosen
        ([[float("inf"), 4.0]], [[1.0, 9.0]], 9.0),
    ],
)
def test_the_rank_of_the_chosen(predicted: list[list[float]], ranks: list[list[float]], wanted: float) -> None:
    assert judged(predicted, ranks)["rank"] == wanted


@pytest.mark.parametrize(
    ("value", "best", "lowest", "kept"),
    [
        (1.0, None, True, True),
        (1.0, 2.0, True, True),
        (2.0, 2.0, True, False),
        (3.0, 2.0, True, False),
        (3.0, 2.0, False, True),
        (2.0, 2.0, False, False),
        (float("nan"), 2.0, True, False),
    ],
)
def test_what_is_better(value: float, best: float | None, lowest: bool, kept: bool) -> None:
    """Of equal ones the first stays."""
    assert better(value, best, lowest=lowest) == kept
