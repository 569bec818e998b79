"""Train a query reranker: it predicts the rank at which each expansion of a query finds an answer (paper 002, 3.3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from components.objectives.ranker import Ranker, RankerBatch
from components.objectives.terms import Term
from components.query_reading import Reading
from components.text import Batch


class QueryReranker(Ranker):
    """A ranker whose candidates are expansions, and whose targets are their ranks: the lower the score the better."""

    def __init__(
        self, model: Path, *, rows: Path, data: Path, tokens: Path, losses: list[Term], piece: int, recompute: bool
    ) -> None:
        super().__init__(model, rows=rows, data=data, tokens=tokens, losses=losses, piece=piece, recompute=recompute)
        self._reading = Reading(data, self._tokens, self.model.config.pair_tokens)

    def _pairs(self, rows: np.ndarray) -> Batch:
        return self._reading.batch(rows[:, 1])

    def judge(self, representations: Tensor, batch: RankerBatch) -> list[tuple[Tensor, Tensor]]:
        """Scores of each query's expansions, the best the highest, and 1 for those of the lowest rank that any has.

        So `accuracy` is how often the chosen expansion is as good as the best.
        """
        judged = super().judge(representations, batch)
        return [(-predicted, (ranks == ranks.min()).to(ranks.dtype)) for predicted, ranks in judged]


Objective = QueryReranker
