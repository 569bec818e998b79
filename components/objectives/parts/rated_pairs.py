"""Validation of sentence encoders on pairs of sentences that people have rated.

SimCSE and DiffCSE choose their checkpoints on STS-B's development split (Chuang et al., 2022, Appendix A.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.config import UserError, listing
from sparring.components.data.batches import Batch
from sparring.components.data.examples import rated_pairs, splits_of
from sparring.components.data.groups import ids_of, rows_of
from sparring.components.data.token_store import TokenStore
from sparring.components.evaluation.similarity import DIGITS, equal_as_one, spearman
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.training.objective import Objective, Visit
from sparring.components.training.terms import TermSum


class RatedBatch(NamedTuple):
    """Some pairs and their ratings."""

    texts: Batch
    """2N texts: N first sentences, followed by N second sentences."""
    ratings: Tensor
    """Ratings by people: (N,)."""


class RatedPairs(Objective):
    """Spearman's correlation of a model's cosines with the ratings of pairs. It has no losses.

    `data` is the collection of pairs, and `tokens` its token store. Vectors are those of an export: without projector
    and dropout, and truncated as the model's config says.
    """

    measures = ("Spearman",)

    def __init__(self, owner: Objective, model: DualEncoder, data: Path, tokens: Path) -> None:
        nn.Module.__init__(self)
        self.inputs, self.model, self._frozen = owner.inputs, model, {}
        self._store = TokenStore(tokens, owner.inputs.model, pairs=False)
        self.open(data / "examples.parquet")

    def open(self, table: Path) -> None:
        """Open an examples table. Raise UserError if it is not rated pairs of a single split."""
        if len(splits := splits_of(table.parent)) > 1:
            raise UserError(f"rated: the pairs have the splits {listing(splits)}. Choose one in `rated.splits`.")
        examples = rated_pairs(table.parent, splits[0])
        ids = ids_of(table.parent / "documents.parquet", "doc_id")
        self._pairs = np.stack([rows_of(examples[side], ids, source="examples") for side in ("first", "second")])
        self._ratings = examples["score"].to_numpy()

    def rows(self) -> int:
        """Return the number of pairs."""
        return len(self._ratings)

    def collate(self, visits: list[Visit]) -> RatedBatch:
        """Collate pairs into a batch."""
        rows = np.asarray([visit.row for visit in visits])
        limit = self.model.max_tokens("document")
        texts = self._store.template.texts(self._store.documents, self._pairs[:, rows].reshape(-1), limit)
        return RatedBatch(texts, torch.from_numpy(self._ratings[rows]))

    def encode(self, batch: RatedBatch) -> Tensor:
        """Encode the texts as (2N, d) vectors."""
        cut = self.model.config.truncate
        return self.in_chunks(lambda part: self.model.pooled(part, "document"), batch.texts)[:, :cut]

    def terms(self, representations: Tensor, batch: RatedBatch) -> dict[str, TermSum]:
        """Return no losses: ratings are for validation only."""
        return {}

    def judge(self, representations: Tensor, batch: RatedBatch) -> dict[str, Tensor]:
        """Compute the cosine of each pair (N,), and return it with the rating."""
        first, second = representations.double().chunk(2)
        return {"cosine": functional.cosine_similarity(first, second), "rating": batch.ratings}

    def summarise(self, values: dict[str, list[float]]) -> dict[str, float]:
        """Compute `Spearman` over all pairs."""
        correlation = spearman(equal_as_one(np.asarray(values["cosine"])), np.asarray(values["rating"]))
        return {"Spearman": round(correlation.value, DIGITS)}
