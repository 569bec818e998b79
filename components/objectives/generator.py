"""Train a language model to write what expands a query: one text for each group (GAR; paper 002, section 3.2.1)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from components.chunked import is_whole, kept, pieces
from components.generator import Generator
from components.groups import Groups
from components.objectives.terms import Term
from components.objectives.writing import Writing
from components.text import Batch, TokenStore


class GeneratorBatch(NamedTuple):
    """What is read, and what is to be written: the first candidate of each group."""

    inputs: Batch
    targets: Batch


class GeneratorObjective(Writing):
    """The objective: log-probabilities of the tokens of a target, under the losses asked for."""

    who = "a generator"

    def __init__(
        self, model: Path, *, rows: Path, data: Path, tokens: Path, losses: list[Term], piece: int, recompute: bool
    ) -> None:
        loaded = Generator.load(model)
        sides = ["get_encoder", "get_decoder"] if loaded.seq2seq else [None]
        parts = [getattr(loaded.model, side)() if side else loaded.model for side in sides]
        super().__init__(parts, model, losses, piece, recompute)
        self.model = loaded
        self._groups = Groups(rows, data)
        self._tokens = TokenStore(tokens, model, pairs=False)
        self._end = self.model.tokenizer.eos_token_id

    def collate(self, rows: list[int]) -> GeneratorBatch:
        """The batch of some groups; a target ends with the special tokens that end a text."""
        groups, tokens, config = [self._groups[row] for row in rows], self._tokens, self.model.config
        asked = np.asarray([group.query for group in groups])
        wanted = np.asarray([group.documents[0] for group in groups])
        reads = writes = tokens.template
        if not self.model.seq2seq:  # it goes on where the input is, and ends what it wrote
            reads, writes = reads._replace(after=[]), writes._replace(before=[], after=[self._end])
        inputs = reads.texts(tokens.queries, asked, config.query_tokens)
        return GeneratorBatch(inputs, writes.texts(tokens.documents, wanted, config.target_tokens))

    def operations(self, batch: GeneratorBatch) -> float:
        """Of reading the inputs and writing the targets; 0 for an architecture whose products are not known."""
        if not self._known:  # GPT-2's layers are of a kind of its own
            return 0.0
        read, written = (part.mask.sum(-1).numpy() for part in batch)
        if self.model.seq2seq:
            encoder, decoder = self._products
            return encoder.operations(read) + decoder.operations(np.minimum(read, written))
        return self._products[0].operations(read + written)

    def encode(self, batch: GeneratorBatch) -> Tensor:
        """(N, T) log-probabilities of the targets' tokens, in pieces of similar length."""
        inputs, targets = batch
        whole = (inputs.ids, inputs.mask, targets.ids, targets.mask)
        if is_whole():
            return self._likelihoods(*whole)
        cuts = pieces(inputs.mask.sum(-1) + targets.mask.sum(-1), self._piece)
        found = [
            kept(self._likelihoods, *(tensor[rows] for tensor in whole), recompute=self._recompute) for rows in cuts
        ]
        return torch.cat(found)[torch.argsort(torch.cat(cuts))]

    def _likelihoods(self, ids: Tensor, mask: Tensor, wanted: Tensor, there: Tensor) -> Tensor:
        return self.model.log_likelihoods((ids, mask), (wanted, there))


Objective = GeneratorObjective
