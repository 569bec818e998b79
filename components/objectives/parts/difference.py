"""Difference prediction (DiffCSE; Chuang et al., 2022, section 2.3).

A discriminator sees the vector of a text and an edited copy, and tells where the copy differs from the text.
"""

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
    """Log-probabilities of the changes in an edited text, or of its original tokens, given a text's vector.

    The discriminator starts as a copy of the encoder. Its head is new. For tasks over the vocabulary the head can come
    from the artifact `language_model`. The generator is one of the frozen models of `owner`.
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
            raise UserError(
                "model: the discriminator reads the vector in place of the text's first special token, and this "
                "tokenizer adds none. Use a model whose tokenizer puts a token such as [CLS] before a text."
            )
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
        """Choose the edits of texts. `vector` (N,) is the position of the vector that each text is read with."""
        edits = self.editing.collate(texts, draws)._replace(vector=vector)
        if self.config.places == "text":
            return edits
        # Batches are padded to a width that suits the processor. The released mean is over the longest text only.
        within = torch.arange(edits.mask.shape[1]) < edits.attention.sum(-1).max()
        return edits._replace(mask=within.long().repeat(len(edits.mask), 1))

    def operations(self, edits: Edits) -> float:
        """Count the operations of the discriminator's layers, without the generator and the head."""
        return self._products.training_operations(edits.attention.sum(-1).numpy())

    def predicted(self, edits: Edits) -> Tensor:
        """Return the mask of predicted tokens: (N, L)."""
        if self.config.task == "masked":
            return edits.masked
        return edits.mask.bool() if self.config.places == "all" else edits.text

    def likelihoods(self, owner: Objective, edits: Edits, vectors: Tensor) -> Tensor:
        """Compute log-probabilities (N, L) from vectors (V, h) of the texts. Tokens that are not predicted get 0."""
        width = edits.ids.shape[1]

        def found(part: Edits) -> Tensor:
            where = self.predicted(part)
            states = self.discriminator(vectors[part.vector], part.edited, part.attention)[where]
            wanted = (part.changed if self.config.task == "detection" else part.ids)[where]
            return placed(self.head.log_likelihoods(states, wanted), where, width)

        return owner.in_chunks(found, self.editing.edit(owner, edits))

    def scores(self, likelihoods: Tensor, edits: Edits) -> Scores:
        """Make `Scores` from log-probabilities (N, L)."""
        return token_scores(likelihoods, self.predicted(edits), self.config.average)
