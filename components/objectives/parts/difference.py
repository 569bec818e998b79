"""Difference prediction: a discriminator that sees the vector of a text tells where an edited copy differs from it
(DiffCSE; Chuang et al., 2022, section 2.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparring.components.compute.roofline import MatrixProducts
from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.template import Template
from sparring.components.models.bottleneck import DetectionHead, Discriminator
from sparring.components.objectives.parts.config import DifferenceConfig
from sparring.components.objectives.parts.editing import Draws, Editing, Edits
from sparring.components.objectives.parts.replacing import language_model_head, placed, token_scores
from sparring.components.scores import Scores
from sparring.components.training.objective import Objective


class DifferencePrediction(nn.Module):
    """Log-probabilities of what an edited text was before, given the vector of a text.

    The discriminator begins as the encoder, and its head anew, or for tasks over the vocabulary as that of the artifact
    `language_model`. The generator is frozen, and kept with the frozen models of `owner`.
    """

    def __init__(
        self,
        owner: Objective,
        encoder: Any,
        template: Template,
        config: DifferenceConfig,
        *,
        tokens: int,
        generator: Path | None,
        language_model: Path | None,
    ) -> None:
        super().__init__()
        if not template.before:
            raise UserError("model: its tokenizer puts no token before a text for the vector to take the place of")
        self.config = config
        self.editing = Editing(
            owner, config, template, tokens=tokens, vocabulary=encoder.config.vocab_size, generator=generator
        )
        self.discriminator = Discriminator(encoder)
        self.head: Any = (
            DetectionHead(encoder.config.hidden_size, hidden=False)
            if config.task == "detection"
            else language_model_head(self.discriminator, language_model, owner.inputs.model)
        )
        self._products = MatrixProducts(self.discriminator.decoder.layers)

    def collate(self, texts: Batch, draws: Draws, vector: Tensor) -> Edits:
        """Texts with what is to be edited in them. `vector` (N,) says which vector each is read behind."""
        edits = self.editing.collate(texts, draws)._replace(vector=vector)
        if self.config.places == "text":
            return edits
        # Batches are as wide as suits a processor; the released mean is over places up to the longest text.
        within = torch.arange(edits.mask.shape[1]) < edits.attention.sum(-1).max()
        return edits._replace(mask=within.long().repeat(len(edits.mask), 1))

    def operations(self, edits: Edits) -> float:
        """Count the operations of the discriminator's layers, without the generator and the head."""
        return self._products.training_operations(edits.attention.sum(-1).numpy())

    def predicted(self, edits: Edits) -> Tensor:
        """Return (N, L) True at predicted tokens."""
        if self.config.task == "masked":
            return edits.masked
        return edits.mask.bool() if self.config.places == "all" else edits.text

    def likelihoods(self, owner: Objective, edits: Edits, vectors: Tensor) -> Tensor:
        """Compute (N, L) log-probabilities, given vectors (V, h) of the texts. Tokens that are not predicted have 0."""
        width = edits.ids.shape[1]

        def found(part: Edits) -> Tensor:
            where = self.predicted(part)
            states = self.discriminator(vectors[part.vector], part.edited, part.attention)[where]
            wanted = (part.changed if self.config.task == "detection" else part.ids)[where]
            return placed(self.head.log_likelihoods(states, wanted), where, width)

        return owner.in_chunks(found, self.editing.edit(owner, edits))

    def scores(self, likelihoods: Tensor, edits: Edits) -> Scores:
        """Make scores of log-probabilities (N, L)."""
        return token_scores(likelihoods, self.predicted(edits), self.config.average)
