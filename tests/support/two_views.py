"""An objective written from the documentation alone: each sentence with itself, seen twice, against the others of the
batch.

A view of a sentence leaves out some of its tokens, others at each visit. Vectors pass a projector with BatchNorm over
the rows of all workers, which no export contains.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from sparring.components.compute.gather import first_row, gather, of_workers
from sparring.components.data.batches import Batch
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokens import Tokens
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.scores import Scores
from sparring.components.training import objective
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import TermSum


class Views(NamedTuple):
    """Two views of some sentences."""

    first: Batch
    second: Batch


class TwoViews(objective.Objective):
    """Inner products of one view with the other views of the batch."""

    table = "documents.parquet"
    texts = ("documents",)
    views = ("batch",)
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.model = DualEncoder.load(inputs.model)
        self._store = TokenStore(inputs.tokens, inputs.model)
        self.projector = nn.Sequential(nn.Linear(self.model.width, 16, bias=False), nn.BatchNorm1d(16))

    def open(self, table: Path) -> None:
        self._rows = pq.read_metadata(table).num_rows

    def rows(self) -> int:
        return self._rows

    def collate(self, visits: list[Visit]) -> Views:
        return Views(self._view(visits, "first view"), self._view(visits, "second view"))

    def encode(self, batch: Views) -> tuple[Tensor, Tensor]:
        """(N, d) vectors of either view."""
        first, second = (self.in_chunks(lambda part: self.model(part, "document"), view) for view in batch)
        return first, second

    def terms(self, representations: tuple[Tensor, Tensor], batch: Views) -> dict[str, TermSum]:
        scores = self._scores(*representations)
        return self.evaluate(lambda _: scores)

    def judge(self, representations: tuple[Tensor, Tensor], batch: Views) -> dict[str, Tensor]:
        return objective.ranking_measures(self._scores(*representations).rows())

    def _view(self, visits: list[Visit], name: str) -> Batch:
        texts = [self._store.documents[visit.row] for visit in visits]
        kept = [text[visit.rng(name).random(len(text)) < 0.8] for text, visit in zip(texts, visits, strict=True)]
        limit = self.model.max_tokens("document")
        return self._store.template.texts(Tokens.of(kept), np.arange(len(kept)), limit)

    def _scores(self, first: Tensor, second: Tensor) -> Scores:
        count = len(first)
        counts = of_workers(count)
        mine = self.projector(gather(first, counts))[first_row(counts) :][:count]
        keys = self.projector(gather(second, counts))
        rows = first_row(counts) + torch.arange(count, device=first.device)
        target = torch.zeros(count, len(keys), device=first.device).scatter_(1, rows.unsqueeze(1), 1.0)
        return Scores(student=mine @ keys.T, target=target, where=torch.ones_like(target, dtype=torch.bool))


Objective = TwoViews
