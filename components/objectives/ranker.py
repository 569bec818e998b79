"""Training of a ranker, a cross-encoder, on groups of a query and its candidates (Zhang et al., 2022, Eq. 7)."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparring.components.compute.chunking import take_rows
from sparring.components.compute.roofline import MatrixProducts
from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.token_store import TokenStore
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.pretrained import has_dropout
from sparring.components.scores import Scores
from sparring.components.training.config import HardestConfig
from sparring.components.training.group_objective import GroupObjective, PaddedGroups
from sparring.components.training.objective import ObjectiveInputs, Visit, ranking_measures
from sparring.components.training.terms import TermSum


class RankerBatch(NamedTuple):
    """Some groups, as a flat list of pairs."""

    pairs: Batch
    places: Tensor
    """Position of each candidate among the pairs: (Q, C). 0 for padding."""
    target: Tensor
    where: Tensor
    teacher: Tensor | None


class Ranker(GroupObjective):
    """Scores of each query's own candidates.

    A loss over `passes` compares two passes over the same pairs with different dropout (R-Drop). The student's scores
    are those of the first pass, and the teacher's those of the second. Losses over `group` then see each group twice,
    once per pass.
    """

    views: ClassVar[tuple[str, ...]] = ("group", "passes")
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs, *, hardest: HardestConfig | None = None) -> None:
        super().__init__(inputs)
        self._keep = hardest.keep if hardest is not None else None
        self._passes = 2 if any(term.over == "passes" for term in inputs.losses) else 1
        self.model = CrossEncoder.load(inputs.model)
        if self._passes == 2 and self.model.config.dropout is None and not has_dropout(self.model):
            raise UserError(
                "losses: `over: passes` compares two passes with different dropout, but the model has no dropout. Set "
                "`dropout` above 0 in the ranker's model."
            )
        self.products = [MatrixProducts(self.model.backbone)]
        self._tokens = TokenStore(inputs.tokens, inputs.model)

    def collate(self, visits: list[Visit]) -> RankerBatch:
        """Collate groups into a batch."""
        padded = PaddedGroups(self.groups(visits))
        return RankerBatch(
            pairs=self._pairs(padded.pairs()),
            places=torch.from_numpy(padded.spread(np.arange(len(padded.documents)), np.int64)),
            target=padded.targets(),
            where=torch.from_numpy(padded.where),
            teacher=padded.teacher(),
        )

    def _pairs(self, rows: np.ndarray) -> Batch:
        """Make model inputs from rows of queries and candidates (N, 2)."""
        tokens = self._tokens
        return tokens.template.pairs(tokens.queries, tokens.documents, rows, self.model.config.pair_tokens)

    def operations(self, batch: RankerBatch) -> float:
        """Count the operations of scoring all pairs.

        If only the hardest pairs are kept, count a forward pass over all pairs, and estimate the training on the kept.
        """
        lengths = batch.pairs.mask.sum(-1).numpy()
        learned = self._passes * self.products[0].training_operations(lengths)
        if self._keep is None:
            return learned
        counts = batch.where.sum(-1)
        kept = float(counts.clamp_max(self._keep).sum() / counts.sum())
        return learned * kept + self.products[0].operations(lengths)

    def encode(self, batch: RankerBatch) -> tuple[Tensor, Tensor]:
        """Compute the scores of N pairs in P passes (P, N), and the mask of the pairs that were scored (N,).

        Only in training is there a second pass, and are pairs left out.
        """
        count = len(batch.pairs.mask)
        everything = torch.ones(count, dtype=torch.bool, device=batch.where.device)
        if not self.training or (self._passes == 1 and self._keep is None):
            return self.in_chunks(self.model, batch.pairs).unsqueeze(0), everything
        kept = everything if self._keep is None else self._hardest(batch, self._keep)
        rows = kept.nonzero().squeeze(1)
        longest = int(batch.pairs.mask[rows].sum(-1).max())
        pairs = take_rows(batch.pairs, rows.repeat(self._passes), longest)
        scores = self.in_chunks(self.model, pairs).view(self._passes, -1)
        return scores.new_zeros((self._passes, count)).index_copy(1, rows, scores), kept

    @torch.no_grad()
    def _hardest(self, batch: RankerBatch, keep: int) -> Tensor:
        """Choose the pairs to keep (N,): per group the positives, and its `keep` highest pairs by the current scores.

        Positives count among the `keep`.
        """
        self.model.eval()
        scores = self.in_chunks(self.model, batch.pairs)[batch.places].float()
        self.model.train()
        scores = scores.masked_fill(batch.target > 0, math.inf).masked_fill(~batch.where, -math.inf)
        first = scores.topk(min(keep, scores.shape[1])).indices
        chosen = (torch.zeros_like(batch.where).scatter(1, first, value=True) | (batch.target > 0)) & batch.where
        kept = torch.zeros(len(batch.pairs.mask), dtype=torch.bool, device=scores.device)
        kept[batch.places[chosen]] = True
        return kept

    def terms(self, representations: tuple[Tensor, Tensor], batch: RankerBatch) -> dict[str, TermSum]:
        """Compute the losses over each group, or over both passes."""
        return self.evaluate(lambda term: self._scores(representations, batch, term.over))

    def judge(self, representations: tuple[Tensor, Tensor], batch: RankerBatch) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among each query's own candidates."""
        return ranking_measures(self._scores(representations, batch).rows())

    @staticmethod
    def _scores(representations: tuple[Tensor, Tensor], batch: RankerBatch, over: str = "group") -> Scores:
        """Return scores over groups, each repeated for every pass: (P * Q, C). Over `passes`, compare both: (Q, C)."""
        scores, kept = representations
        passes, where = scores[:, batch.places], batch.where & kept[batch.places]
        if over == "passes":
            return Scores(student=passes[0], target=batch.target, where=where, teacher=passes[-1])
        count = len(passes)
        return Scores(
            student=passes.flatten(0, 1),
            target=batch.target.repeat(count, 1),
            where=where.repeat(count, 1),
            teacher=None if batch.teacher is None else batch.teacher.repeat(count, 1),
        )


Objective = Ranker
