"""Train a cross encoder on groups: each query with each of its candidates (Zhang et al., 2022, Eq. 7)."""

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
    """Some groups, their pairs one after another."""

    pairs: Batch
    places: Tensor
    """(Q, C) position of each candidate among the pairs, 0 for padding."""
    target: Tensor
    where: Tensor
    teacher: Tensor | None


class Ranker(GroupObjective):
    """Scores of pairs under the losses asked for, over each query's own candidates.

    A loss over `passes` looks at two passes of the same pairs, which differ by their dropout (R-Drop): the student's
    scores are the first's, the teacher's the second's. Losses over `group` then see each group twice, once with each.
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
                "losses: over: passes: two passes differ by dropout, and the model has none; accepted: "
                "`dropout` above 0 in the ranker's model"
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
        """Make the inputs of (N, 2) rows of queries and candidates."""
        tokens = self._tokens
        return tokens.template.pairs(tokens.queries, tokens.documents, rows, self.model.config.pair_tokens)

    def operations(self, batch: RankerBatch) -> float:
        """Count the operations of scoring all pairs. If only some are kept, estimate these and their choice."""
        lengths = batch.pairs.mask.sum(-1).numpy()
        learned = self._passes * self.products[0].training_operations(lengths)
        if self._keep is None:
            return learned
        counts = batch.where.sum(-1)
        kept = float(counts.clamp_max(self._keep).sum() / counts.sum())
        return learned * kept + self.products[0].operations(lengths)  # what is not learned from runs forward alone

    def encode(self, batch: RankerBatch) -> tuple[Tensor, Tensor]:
        """Compute (P, N) scores of all pairs in P passes, and (N,) which of them were scored. Only training has a
        second pass and leaves pairs out."""
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
        """Choose (N,) pairs to keep: `keep` of a group, the positives and the pairs that the model scores highest
        now."""
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
        """Compute the losses over each group, and over both passes."""
        return self.evaluate(lambda term: self._scores(representations, batch, term.over))

    def judge(self, representations: tuple[Tensor, Tensor], batch: RankerBatch) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among each query's own candidates."""
        return ranking_measures(self._scores(representations, batch).rows())

    @staticmethod
    def _scores(representations: tuple[Tensor, Tensor], batch: RankerBatch, over: str = "group") -> Scores:
        """Return each group once for each pass, (P Q, C), or, over `passes`, with both passes, (Q, C)."""
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
