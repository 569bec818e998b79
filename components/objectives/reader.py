"""Train a reader to write an answer out of a question's passages (Fusion-in-Decoder; paper 002, section 3.4.6)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from components.groups import Groups
from components.objectives.terms import Term
from components.objectives.writing import Writing
from components.reader import Reader, Readings
from components.text import Batch, Template, Tokens, TokenStore


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

    who = "a reader"

    def __init__(
        self, model: Path, *, rows: Path, data: Path, tokens: Path, losses: list[Term], piece: int, recompute: bool,
        answer_tokens: Path,
    ) -> None:  # fmt: skip
        reader = Reader.load(model)
        super().__init__([reader.model.get_encoder(), reader.model.get_decoder()], model, losses, piece, recompute)
        self.model = reader
        self._groups = Groups(rows, data)
        store = TokenStore(tokens, model, pairs=False)
        self._template: Template = store.template
        self._readings = Readings(reader, store)
        self._answers: Tokens = TokenStore(answer_tokens, model, pairs=False).documents
        if len(self._answers) != len(self._groups):
            raise ValueError(f"{answer_tokens}: {len(self._answers)} answers to {len(self._groups)} groups")

    def collate(self, rows: list[int]) -> ReaderBatch:
        """The batch of some groups; an answer ends with the special tokens that end a text."""
        groups = [self._groups[row] for row in rows]
        counts = np.asarray([len(group.documents) for group in groups])
        pairs = np.stack([
            np.repeat([group.query for group in groups], counts), np.concatenate([g.documents for g in groups])
        ], 1)  # fmt: skip
        targets = self._template.texts(self._answers, np.asarray(rows), self.model.config.answer_tokens)
        return ReaderBatch(self._readings.batch(pairs), torch.from_numpy(counts), targets)

    def operations(self, batch: ReaderBatch) -> float:
        """Of reading all passages and writing the answers."""
        if not self._known:
            return 0.0
        encoder, decoder = self._products
        read, written = (part.mask.sum(-1).numpy() for part in (batch.passages, batch.targets))
        return encoder.operations(read) + decoder.operations(written)

    def encode(self, batch: ReaderBatch) -> Tensor:
        """(N, T) log-probabilities of the answers' tokens."""
        joined = self.model.joined(batch.passages, batch.counts, tokens=self._piece, recompute=self._recompute)
        return self.model.log_likelihoods(joined, batch.targets)


Objective = ReaderObjective
