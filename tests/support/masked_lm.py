"""An objective written from the documentation alone: masked language modelling over the documents table.

A document's tokens are masked at each visit anew; the encoder's states at the masked places predict them through a
head that no export contains.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.data.token_store import TokenStore
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.scores import Scores
from sparring.components.training import objective
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import TermSum


class MaskedBatch(NamedTuple):
    """Documents with some tokens masked."""

    ids: Tensor
    mask: Tensor
    labels: Tensor
    """(N, L) the token that was masked at each place; -1 elsewhere."""


class MaskedLM(objective.Objective):
    """Log-probabilities of masked tokens."""

    table = "documents.parquet"
    texts = ("documents",)
    views = ("tokens",)

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.model = DualEncoder.load(inputs.model)
        self._store = TokenStore(inputs.tokens, inputs.model)
        width = self.model.width
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    def open(self, table: Path) -> None:
        self._rows = pq.read_metadata(table).num_rows

    def rows(self) -> int:
        return self._rows

    def collate(self, visits: list[Visit]) -> MaskedBatch:
        template, documents = self._store.template, self._store.documents
        rows = np.asarray([visit.row for visit in visits])
        batch = template.texts(documents, rows, self.model.max_tokens("document"))
        drawn = np.stack([visit.rng("mask").random(batch.ids.shape[1]) for visit in visits])
        masked = template.text_positions(batch) & torch.from_numpy(drawn < 0.3)
        return MaskedBatch(batch.ids.masked_fill(masked, template.mask), batch.mask, batch.ids.where(masked, -1))

    def encode(self, batch: MaskedBatch) -> Tensor:
        """(N, L) log-probabilities of the masked tokens; 0 elsewhere."""
        return self.in_chunks(lambda part: self._log_likelihoods(part, batch.ids.shape[1]), batch)

    def terms(self, representations: Tensor, batch: MaskedBatch) -> dict[str, TermSum]:
        where = batch.labels >= 0
        scores = Scores(student=representations, target=where.float(), where=where)
        return self.evaluate(lambda _: scores)

    def _log_likelihoods(self, batch: MaskedBatch, width: int) -> Tensor:
        encoder, where = self.model.tower("document"), batch.labels >= 0
        states = encoder(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state[where]
        logits = self.head(states).float() @ encoder.get_input_embeddings().weight.T
        likelihoods = -functional.cross_entropy(logits, batch.labels[where], reduction="none")
        full = likelihoods.new_zeros(len(batch.ids), width)
        return full.masked_scatter(functional.pad(where, (0, width - where.shape[1])), likelihoods)


Objective = MaskedLM
