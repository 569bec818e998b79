"""Training of EAR's query reranker (Chuang et al., 2023, section 3.3).

It predicts, for each expansion of a query, the rank of the first passage with an answer.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sparring.components.data.batches import Batch
from sparring.components.expansion.query_reading import RerankerInputs
from sparring.components.objectives.ranker import Ranker, RankerBatch
from sparring.components.training.objective import ObjectiveInputs, ranking_measures


class QueryReranker(Ranker):
    """A ranker whose candidates are expansions and whose targets are ranks. Lower scores are better."""

    views = ("group",)
    scores_of: ClassVar[dict[str, str]] = {"group": "query ranks"}
    measures = ("rank", "accuracy")
    lowest = ("rank",)

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self._reading = RerankerInputs.stored(inputs.data, self._tokens, self.model.config.pair_tokens)

    def _pairs(self, rows: np.ndarray) -> Batch:
        return self._reading.batch(rows[:, 1])

    def judge(self, representations: tuple[Tensor, Tensor], batch: RankerBatch) -> dict[str, Tensor]:
        """Measure `rank` and `accuracy` of the expansion with the lowest predicted rank.

        `rank` is the true rank of this expansion, and `accuracy` is 1 if no expansion has a better rank. Ties count
        against both. The public code keeps the checkpoint with the lowest mean rank.
        """
        rows = self._scores(representations, batch).rows()
        chosen = torch.stack([ranks[predicted == predicted.min()].max() for predicted, ranks in rows])
        right = [(-predicted, (ranks == ranks.min()).to(ranks.dtype)) for predicted, ranks in rows]
        return {"rank": chosen.double(), "accuracy": ranking_measures(right)["accuracy"]}


Objective = QueryReranker
