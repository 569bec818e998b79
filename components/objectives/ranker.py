"""Train a cross encoder on groups: each query with each of its candidates (Zhang et al., 2022, Eq. 7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from components.compute.roofline import MatrixProducts
from components.data.batches import Batch
from components.data.token_store import TokenStore
from components.models.cross_encoder import CrossEncoder
from components.scores import Scores
from components.training.group_objective import GroupObjective, PaddedGroups
from components.training.objective import ObjectiveInputs, Visit, ranking_measures
from components.training.terms import TermSum, evaluate


class RankerBatch(NamedTuple):
    """Some groups, their pairs one after another."""

    pairs: Batch
    at: Tensor
    """(Q, C) where each candidate stands among the pairs; 0 for padding."""
    target: Tensor
    where: Tensor
    teacher: Tensor | None


class Ranker(GroupObjective):
    """Scores of pairs under the losses asked for, over each query's own candidates."""

    views = ("group",)
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.model = CrossEncoder.load(inputs.model)
        self._products = MatrixProducts(self.model.backbone)
        self._tokens = TokenStore(inputs.tokens, inputs.model)

    def collate(self, visits: list[Visit]) -> RankerBatch:
        """The batch of some groups."""
        padded = PaddedGroups(self.groups(visits))
        return RankerBatch(
            pairs=self._pairs(padded.pairs()),
            at=torch.from_numpy(padded.spread(np.arange(len(padded.documents)), np.int64)),
            target=padded.targets(),
            where=torch.from_numpy(padded.where),
            teacher=padded.teacher(),
        )

    def _pairs(self, rows: np.ndarray) -> Batch:
        """What the ranker reads of (N, 2) rows of queries and candidates."""
        tokens = self._tokens
        return tokens.template.pairs(tokens.queries, tokens.documents, rows, self.model.config.pair_tokens)

    def operations(self, batch: RankerBatch) -> float:
        """Of scoring all pairs."""
        return self._products.operations(batch.pairs.mask.sum(-1).numpy())

    def rate(self, *, device: str, precision: str) -> float:
        """Of the ranker's products."""
        return self._products.rate(tokens=self.inputs.max_tokens, device=device, precision=precision)

    def encode(self, batch: RankerBatch) -> Tensor:
        """(N,) scores of all pairs."""
        return self.in_chunks(self.model, batch.pairs)

    def terms(self, representations: Tensor, batch: RankerBatch) -> dict[str, TermSum]:
        """The losses over each group."""
        scores = self._scores(representations, batch)
        return evaluate(self.inputs.losses, lambda _: scores)

    def judge(self, representations: Tensor, batch: RankerBatch) -> dict[str, Tensor]:
        """`RR` and `accuracy` among each query's own candidates."""
        return ranking_measures(self._scores(representations, batch).rows())

    @staticmethod
    def _scores(representations: Tensor, batch: RankerBatch) -> Scores:
        return Scores(student=representations[batch.at], target=batch.target, where=batch.where, teacher=batch.teacher)


Objective = Ranker
