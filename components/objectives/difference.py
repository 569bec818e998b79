"""Difference prediction: a discriminator that sees the vector of a text tells where an edited copy differs from it
(DiffCSE; Chuang et al., 2022, section 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from components.compute.roofline import MatrixProducts
from components.config import UserError
from components.data.batches import Batch
from components.data.template import Template
from components.models.bottleneck import DetectionHead, Discriminator
from components.objectives.replacing import GENERATOR, Masking, language_model_head, load_generator, placed
from components.scores import Scores
from components.training.objective import Objective, ObjectiveInputs
from components.training.pretraining import DifferenceConfig

Draws = Callable[[str, int], np.ndarray]
"""From a purpose and a width, (N, width) random numbers from 0 to 1 for the places of each text."""


class Edits(NamedTuple):
    """Some texts, and what is edited in them."""

    ids: Tensor
    """(N, L) as they are in the collection."""
    mask: Tensor
    """(N, L) 1 where something is read or predicted."""
    attention: Tensor
    """(N, L) 1 for a token, 0 for padding."""
    text: Tensor
    """(N, L) False for special tokens and padding."""
    masked: Tensor
    """(N, L)."""
    read: Tensor
    """(N, L) the texts with what masked tokens become."""
    draws: Tensor
    """(N, L) a random number for what the generator puts at each place."""
    vector: Tensor
    """(N,) which vector is that of each text."""
    edited: Tensor | None = None
    """(N, L) what the discriminator reads; None where the generator is to be asked."""


class DifferencePrediction(nn.Module):
    """Log-probabilities of what an edited text was before, given the vector of the text before.

    The discriminator begins as the encoder, and its head anew, or for tasks over the vocabulary as that of the artifact
    `language_model`. The generator is frozen, and kept with the frozen models of `owner`.
    """

    def __init__(
        self, owner: Objective, encoder: Any, template: Template, config: DifferenceConfig, *, tokens: int,
        generator: Path | None, language_model: Path | None,
    ) -> None:  # fmt: skip
        super().__init__()
        inputs: ObjectiveInputs = owner.inputs
        if not template.before:
            raise UserError("model: its tokenizer puts no token before a text for the vector to take the place of")
        if (generator is None) != (config.task == "masked"):
            raise UserError("generator: `task: masked` has none, and the others need one; accepted: a masked language "
                            "model, or `task: masked`")  # fmt: skip
        self.config, self.template = config, template
        self.masking = Masking(config, inputs.model, template)
        self.discriminator = Discriminator(encoder)
        self.head: Any = (
            DetectionHead(encoder.config.hidden_size, hidden=False)
            if config.task == "detection"
            else language_model_head(self.discriminator, language_model)
        )
        if generator is not None:
            owner.add_frozen(GENERATOR, load_generator(generator, inputs.model, tokens))
        self._products = MatrixProducts(self.discriminator.decoder.layers)

    def collate(self, texts: Batch, draws: Draws, vector: Tensor) -> Edits:
        """Texts with what is masked in them. `vector` (N,) says which vector is that of each."""
        width = texts.ids.shape[1]
        rate = self.config.rate
        masked, _ = self.masking.masks(texts, (draws("mask", width), draws("further mask", width)), (rate, rate))
        become, replacing = (torch.from_numpy(draws(purpose, width)) for purpose in ("masked as", "replaced by"))
        read = self.masking.masked(texts.ids, masked, become, self.discriminator.config.vocab_size)
        everywhere = torch.ones_like(texts.mask)
        return Edits(
            texts.ids, everywhere if self.config.places == "all" else texts.mask, texts.mask,
            self.template.text_positions(texts), masked, read, replacing, vector,
            edited=read if self.config.task == "masked" else None,
        )  # fmt: skip

    def operations(self, edits: Edits) -> float:
        """Of the discriminator's layers; the generator's and the head's are left out."""
        return self._products.operations(edits.attention.sum(-1).numpy())

    def predicted(self, edits: Edits) -> Tensor:
        """(N, L) where something is predicted."""
        if self.config.task == "masked":
            return edits.masked
        return edits.mask.bool() if self.config.places == "all" else edits.text

    def edit(self, owner: Objective, edits: Edits) -> Edits:
        """The texts as the generator edits them."""
        if edits.edited is not None:
            return edits
        generator, width = owner.frozen(GENERATOR), edits.ids.shape[1]
        generator.train(self.training and self.config.generator_dropout)

        def edited(part: Edits) -> Tensor:
            if self.config.replaced_by == "samples":
                found = generator.sampled(part.read, part.attention, part.masked, part.draws)
            else:
                places = part.attention.bool()
                places[:, 0] = False
                found = generator.best(part.read, part.attention, places)
            return functional.pad(found, (0, width - found.shape[1]), value=self.template.pad)

        with torch.no_grad():
            return edits._replace(edited=owner.in_chunks(edited, edits))

    def likelihoods(self, owner: Objective, edits: Edits, vectors: Tensor) -> Tensor:
        """(N, L) log-probabilities given the vectors (V, h) of the texts; 0 where nothing is predicted."""
        width = edits.ids.shape[1]

        def found(part: Edits) -> Tensor:
            assert part.edited is not None
            where = self.predicted(part)
            states = self.discriminator(vectors[part.vector], part.edited, part.attention)[where]
            before = part.ids[where]
            wanted = part.edited[where] != before if self.config.task == "detection" else before
            return placed(self.head.log_likelihoods(states, wanted), where, width)

        return owner.in_chunks(found, self.edit(owner, edits))

    def scores(self, likelihoods: Tensor, edits: Edits) -> Scores:
        """What a loss sees of log-probabilities (N, L)."""
        return self.masking.scores(likelihoods, self.predicted(edits))
