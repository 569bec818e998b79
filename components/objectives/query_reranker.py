"""Train a query reranker: it predicts the rank at which each expansion of a query finds an answer (Chuang et al., 2023,
3.3)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from components.data.batches import Batch
from components.expansion.query_reading import RerankerInputs
from components.objectives.ranker import Ranker, RankerBatch
from components.training.objective import ObjectiveInputs, ranking_measures


class QueryReranker(Ranker):
    """A ranker whose candidates are expansions, and whose targets are their ranks: the lower the score the better."""

    views = ("group",)
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self._reading = RerankerInputs(inputs.data, self._tokens, self.model.config.pair_tokens)

    def _pairs(self, rows: np.ndarray) -> Batch:
        return self._reading.batch(rows[:, 1])

    def judge(self, representations: Tensor, batch: RankerBatch) -> dict[str, Tensor]:
        """`RR` and `accuracy` where the expansions of the lowest rank that any of a query's has are the right ones.

        So `accuracy` is how often the chosen expansion is as good as the best.
        """
        rows = self._scores(representations, batch).rows()
        return ranking_measures([(-predicted, (ranks == ranks.min()).to(ranks.dtype)) for predicted, ranks in rows])


Objective = QueryReranker
