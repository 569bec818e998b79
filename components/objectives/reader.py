"""Train a reader to write an answer out of a question's passages (Fusion-in-Decoder; Chuang et al., 2023, section
3.4.6)."""

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
    """Questions with each of their passages one after another, and the answers to be written."""

    passages: Batch
    counts: Tensor
    """(N,) passages of each question."""
    targets: Batch


class ReaderObjective(Writing):
    """The objective: log-probabilities of the tokens of an answer after the question and its passages.

    A group is a question with its passages. `answers` is the artifact that the groups are in, whose documents are the
    answer of each group in turn, and `answer_tokens` are its tokens.
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
            raise ValueError(f"{answer_tokens}: {len(self._answers)} answers to {self.rows()} groups")

    def collate(self, visits: list[Visit]) -> ReaderBatch:
        """Collate groups into a batch. An answer ends with the special tokens that end a text."""
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
        """Compute (N, T) log-probabilities of the answers' tokens."""
        inputs = self.inputs
        joined = self.model.encode_passages(
            batch.passages, batch.counts, tokens=inputs.max_tokens, recompute=inputs.recompute
        )
        return self.model.log_likelihoods(joined, batch.targets)


Objective = ReaderObjective
