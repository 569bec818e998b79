"""Training of a language model that writes query expansions (GAR; Chuang et al., 2023, section 3.2.1).

A group is a query and the text to be written for it.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparring.components.compute.chunking import checkpointed, chunk_rows, is_unchunked
from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.token_store import TokenStore
from sparring.components.models.generator import Generator
from sparring.components.objectives.parts.writing import Writing
from sparring.components.training.objective import ObjectiveInputs, Visit


class GeneratorBatch(NamedTuple):
    """Inputs and targets. The target of a group is its first candidate."""

    inputs: Batch
    targets: Batch


class GeneratorObjective(Writing):
    """Log-probabilities of the tokens of each group's target."""

    views = ("group",)
    scores_of: ClassVar[dict[str, str]] = {"group": "tokens"}
    shards = False

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.model = Generator.load(inputs.model)
        sides = ["get_encoder", "get_decoder"] if self.model.seq2seq else [None]
        self.measure_products([getattr(self.model.model, side)() if side else self.model.model for side in sides])
        self._tokens = TokenStore(inputs.tokens, inputs.model, pairs=False)
        self._end = self.model.tokenizer.eos_token_id
        if not self.model.seq2seq and self._end is None:
            raise UserError(
                f"{self.model.config.model}: the tokenizer has no token that ends a text (eos_token). Use a model "
                "whose tokenizer has this token."
            )

    def collate(self, visits: list[Visit]) -> GeneratorBatch:
        """Collate groups into a batch. Each target ends with the model's end-of-text tokens."""
        groups, tokens, config = self.groups(visits), self._tokens, self.model.config
        queries = np.asarray([group.query for group in groups])
        targets = np.asarray([group.documents[0] for group in groups])
        reads = writes = tokens.template
        if not self.model.seq2seq:  # a decoder continues the input, and ends its own text
            reads, writes = reads._replace(after=[]), writes._replace(before=[], after=[self._end])
        inputs = reads.texts(tokens.queries, queries, config.query_tokens)
        return GeneratorBatch(inputs, writes.texts(tokens.documents, targets, config.target_tokens))

    def operations(self, batch: GeneratorBatch) -> float | None:
        """Count the operations of reading the inputs and writing the targets."""
        if not self.products:
            return None
        read, written = (part.mask.sum(-1).numpy() for part in batch)
        if self.model.seq2seq:
            encoder, decoder = self.products
            return encoder.training_operations(read) + decoder.training_operations(np.minimum(read, written))
        return self.products[0].training_operations(read + written)

    def encode(self, batch: GeneratorBatch) -> Tensor:
        """Compute log-probabilities of the targets' tokens, in chunks of similar length: (N, T)."""
        inputs, targets = batch
        whole = (inputs.ids, inputs.mask, targets.ids, targets.mask)
        if is_unchunked():
            return self._likelihoods(*whole)
        cuts = chunk_rows(inputs.mask.sum(-1) + targets.mask.sum(-1), self.inputs.max_tokens)
        recompute = self.inputs.recompute
        texts = [tuple(tensor[rows] for tensor in whole) for rows in cuts]
        parts = [checkpointed(self._likelihoods, *text, recompute=recompute) for text in texts]
        return torch.cat(parts)[torch.argsort(torch.cat(cuts))]

    def _likelihoods(self, ids: Tensor, mask: Tensor, targets: Tensor, real: Tensor) -> Tensor:
        return self.model.log_likelihoods((ids, mask), (targets, real))


Objective = GeneratorObjective
