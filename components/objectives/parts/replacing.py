"""Base of objectives that mask or replace tokens: masks, the generator, and losses over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer, word_starts
from sparring.components.data.word_masks import nested_word_masks
from sparring.components.models import layers
from sparring.components.models.masked_language_model import LanguageModelHead, MaskedLanguageModel
from sparring.components.objectives.parts.config import MaskConfig
from sparring.components.scores import Scores

GENERATOR = "generator"
"""Name of the generator among an objective's frozen models."""


class Masking:
    """Choice of masked tokens, and their replacement."""

    def __init__(self, config: MaskConfig, model: Path, template: Template) -> None:
        self.config, self.template = config, template
        self.starts = word_starts(model) if config.unit == "words" else None
        if template.mask is None:
            raise UserError(f"{model}: its tokenizer has no mask token; accepted: models that predict masked ones")

    def masks(
        self,
        texts: Batch,
        draws: tuple[np.ndarray, np.ndarray],
        rates: tuple[float, float],
        *,
        rate_of: Literal["text", "all"] = "all",
    ) -> tuple[Tensor, Tensor]:
        """Draw two masks (N, L) over texts. The second contains the first. Special tokens and padding are never masked.

        `draws` are two (N, L) random numbers from 0 to 1. `rates` are shares of a text's tokens. With `rate_of="all"`,
        special tokens are counted too, as in SimLM's public code.
        """
        ids = texts.ids.numpy()
        starts = np.ones_like(ids, bool) if self.starts is None else self.starts[ids]
        text = self.template.text_positions(texts)
        lengths = (text if rate_of == "text" else texts.mask).sum(-1)
        first, second = nested_word_masks(starts, text.numpy(), draws, lengths.numpy(), rates)
        return torch.from_numpy(first), torch.from_numpy(second)

    def masked(self, ids: Tensor, masked: Tensor, draws: Tensor, vocabulary: int) -> Tensor:
        """Replace masked tokens in (N, L) ids. `draws` has a random number for each place."""
        if self.config.masked_as == "mask":
            return self.with_mask_tokens(ids, masked)
        assert self.template.mask is not None
        random_ids = ((draws - 0.8) / 0.1 * vocabulary).long().clamp(0, vocabulary - 1)
        become = ids.where(draws >= 0.9, random_ids.where(draws >= 0.8, self.template.mask))
        return become.where(masked, ids)

    def with_mask_tokens(self, ids: Tensor, masked: Tensor) -> Tensor:
        """Replace tokens by the mask token where `masked`: (N, L)."""
        assert self.template.mask is not None
        return ids.masked_fill(masked, self.template.mask)


def token_scores(likelihoods: Tensor, where: Tensor, average: Literal["texts", "tokens"]) -> Scores:
    """Make scores of log-probabilities (N, L) at the places `where`, with a text as a row and a token as a candidate.
    If the average is over tokens, each token is a row."""
    if average == "tokens":
        likelihoods, where = likelihoods[where].unsqueeze(1), where[where].unsqueeze(1)
    return Scores(student=likelihoods, target=where.to(likelihoods.dtype), where=where)


def load_generator(artifact: Path, model: Path, tokens: int) -> MaskedLanguageModel:
    """Load the generator that replaces tokens of texts of at most `tokens` tokens. Raise UserError if its vocabulary
    differs from that of the retriever in the folder `model`, or if it reads fewer tokens."""
    generator = _of_the_same_tokens("generator", artifact, model)
    reads = generator.config.model_copy(update={"document_tokens": tokens})
    layers.check_length(generator, reads, "document_tokens")
    return generator


def language_model_head(encoder: Any, artifact: Path | None, model: Path) -> LanguageModelHead:
    """Return a new head for an encoder, or that of another masked language model. Raise UserError if that model's
    vocabulary differs from that of the retriever in the folder `model`."""
    if artifact is None:
        return LanguageModelHead.new(encoder)
    return _of_the_same_tokens("head", artifact, model).head.on(encoder)


def _of_the_same_tokens(key: str, artifact: Path, model: Path) -> MaskedLanguageModel:
    """Load a masked language model for a config's `key`. Raise UserError if the retriever has other tokens."""
    language_model = MaskedLanguageModel.load(artifact / "model")
    if load_tokenizer(artifact / "model").get_vocab() != load_tokenizer(model).get_vocab():
        raise UserError(
            f"{key}: {language_model.config.model}: its vocabulary is another than the retriever's; accepted: one "
            "with the same tokens",
            code="other-vocabulary",
        )
    return language_model


def placed(values: Tensor, where: Tensor, width: int) -> Tensor:
    """Spread the values (M,) over the M places of `where` (N, L): (N, width), 0 elsewhere."""
    full = values.new_zeros(len(where), width)
    return full.masked_scatter(functional.pad(where, (0, width - where.shape[1])), values)
