"""Masked language modelling on a collection's documents (Devlin et al., 2019).

It is a baseline of pre-training. It also trains a generator for SimLM if there is no ready-made one.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sparring.components.compute.roofline import MatrixProducts, head_operations
from sparring.components.models.masked_language_model import MaskedLanguageModel
from sparring.components.objectives.parts.config import MaskedLanguageModelingConfig
from sparring.components.objectives.parts.replacing import placed
from sparring.components.objectives.parts.token_prediction import TokenPrediction
from sparring.components.training.objective import ObjectiveInputs, Visit


class MaskedBatch(NamedTuple):
    """Some documents with masked tokens."""

    ids: Tensor
    """Tokens that the encoder reads, after masking: (N, L)."""
    mask: Tensor
    wanted: Tensor
    """Original tokens: (N, L)."""
    masked: Tensor
    """True at masked tokens, which are predicted: (N, L)."""


class MLM(TokenPrediction):
    """Log-probabilities of masked tokens. The model is saved as a masked language model, with its head."""

    views = ("tokens",)
    scores_of: ClassVar[dict[str, str]] = {"tokens": "tokens"}
    predicts = 0.2

    def __init__(self, inputs: ObjectiveInputs, *, masking: MaskedLanguageModelingConfig | None = None) -> None:
        masking = masking or MaskedLanguageModelingConfig()
        super().__init__(inputs, masking)
        self.model = MaskedLanguageModel.load(inputs.model)
        self._rate, self.products = masking.rate, [MatrixProducts(self.model.encoder)]

    def collate(self, visits: list[Visit]) -> MaskedBatch:
        """Collate documents into a batch."""
        texts = self.documents(visits, self.model.config.document_tokens)
        masked, _ = self.masks(visits, texts, (self._rate, self._rate))
        draws = torch.from_numpy(self.draws(visits, "masked as", masked.shape[1]))
        ids = self.masking.masked(texts.ids, masked, draws, self.model.vocabulary)
        return MaskedBatch(ids, texts.mask, texts.ids, masked)

    def predicted(self, batch: MaskedBatch) -> dict[str, Tensor]:
        """Return the mask of predicted tokens, by view: only masked tokens are predicted."""
        return {"tokens": batch.masked}

    def operations(self, batch: MaskedBatch) -> float:
        """Count the operations of the encoder, and of its head at masked tokens."""
        heads = 3 * head_operations(self.model.head, int(batch.masked.sum()))
        return self.products[0].training_operations(batch.mask.sum(-1).numpy()) + heads

    def encode(self, batch: MaskedBatch) -> Tensor:
        """Compute log-probabilities of the masked tokens: (N, 1, L), and 0 elsewhere."""
        width = batch.ids.shape[1]

        def likelihoods(part: MaskedBatch) -> Tensor:
            states = self.model.states(part.ids, part.mask, part.masked)
            values = self.model.head.log_likelihoods(states, part.wanted[part.masked])
            return placed(values, part.masked, width).unsqueeze(1)

        return self.in_chunks(likelihoods, batch)


Objective = MLM
