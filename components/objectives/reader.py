"""Training of a reader that writes an answer from a question's passages.

The method is Fusion-in-Decoder, as in Chuang et al. (2023, section 3.4.6).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparring.components.data.batches import Batch
from sparring.components.data.template import Template
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokens import Tokens
from sparring.components.models.reader import Reader, ReaderInputs
from sparring.components.objectives.parts.writing import Writing
from sparring.components.training.group_objective import PaddedGroups
from sparring.components.training.objective import ObjectiveInputs, Visit


class ReaderBatch(NamedTuple):
    """Questions, each joined with each of its passages, and their answers."""

    passages: Batch
    counts: Tensor
    """Number of passages per question: (N,)."""
    targets: Batch


class ReaderObjective(Writing):
    """Log-probabilities of the tokens of an answer, after the question and its passages.

    A group is a question with its passages. `answer_tokens` is the token store of the answers. Its documents are the
    answers, in the order of the groups.
    """

    views = ("group",)
    scores_of: ClassVar[dict[str, str]] = {"group": "tokens"}
    shards = False

    def __init__(self, inputs: ObjectiveInputs, *, answer_tokens: Path) -> None:
        super().__init__(inputs)
        self.model = Reader.load(inputs.model)
        self.measure_products([self.model.model.get_encoder(), self.model.model.get_decoder()])
        self._readings = ReaderInputs.stored(self.model, inputs.tokens, inputs.model)
        answers = TokenStore(answer_tokens, inputs.model, pairs=False)
        self._template: Template = answers.template
        self._answers: Tokens = answers.documents
        if len(self._answers) != self.rows():
            raise ValueError(f"{answer_tokens}: there are {len(self._answers)} answers for {self.rows()} groups.")

    def collate(self, visits: list[Visit]) -> ReaderBatch:
        """Collate groups into a batch. Each answer ends with the model's end-of-text tokens."""
        padded = PaddedGroups(self.groups(visits))
        rows = np.asarray([visit.row for visit in visits])
        targets = self._template.texts(self._answers, rows, self.model.config.answer_tokens)
        return ReaderBatch(self._readings.batch(padded.pairs()), torch.from_numpy(padded.counts), targets)

    def operations(self, batch: ReaderBatch) -> float | None:
        """Count the operations of reading all passages and writing the answers."""
        if not self.products:
            return None
        encoder, decoder = self.products
        read, written = (part.mask.sum(-1).numpy() for part in (batch.passages, batch.targets))
        return encoder.training_operations(read) + decoder.training_operations(written)

    def encode(self, batch: ReaderBatch) -> Tensor:
        """Compute log-probabilities of the answers' tokens: (N, T)."""
        inputs = self.inputs
        joined = self.model.encode_passages(
            batch.passages, batch.counts, tokens=inputs.max_tokens, recompute=inputs.recompute
        )
        return self.model.log_likelihoods(joined, batch.targets)


Objective = ReaderObjective
