"""Parts of objectives that mask or replace tokens: masks, the generator, and scores over tokens."""

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
    """A chooser of masked tokens and their replacements."""

    def __init__(self, config: MaskConfig, model: Path, template: Template) -> None:
        self.config, self.template = config, template
        self.starts = word_starts(model) if config.unit == "words" else None
        if template.mask is None:
            raise UserError(
                f"{model}: the tokenizer has no mask token. Use a model that was trained to predict masked tokens."
            )

    def masks(
        self,
        texts: Batch,
        draws: tuple[np.ndarray, np.ndarray],
        rates: tuple[float, float],
        *,
        rate_of: Literal["text", "all"] = "all",
    ) -> tuple[Tensor, Tensor]:
        """Draw two masks (N, L) over texts. The second contains the first.

        Special tokens and padding are never masked. `draws` are two arrays of random numbers from 0 to 1, each (N, L).
        `rates` are shares of a text's tokens. With `rate_of="all"`, special tokens are included in this count, as in
        SimLM's public code.
        """
        ids = texts.ids.numpy()
        starts = np.ones_like(ids, bool) if self.starts is None else self.starts[ids]
        text = self.template.text_positions(texts)
        lengths = (text if rate_of == "text" else texts.mask).sum(-1)
        first, second = nested_word_masks(starts, text.numpy(), draws, lengths.numpy(), rates)
        return torch.from_numpy(first), torch.from_numpy(second)

    def masked(self, ids: Tensor, masked: Tensor, draws: Tensor, vocabulary: int) -> Tensor:
        """Replace masked tokens in ids (N, L), as the config's `masked_as` says. `draws` (N, L) are from 0 to 1."""
        if self.config.masked_as == "mask":
            return self.with_mask_tokens(ids, masked)
        assert self.template.mask is not None
        random_ids = ((draws - 0.8) / 0.1 * vocabulary).long().clamp(0, vocabulary - 1)
        become = ids.where(draws >= 0.9, random_ids.where(draws >= 0.8, self.template.mask))
        return become.where(masked, ids)

    def with_mask_tokens(self, ids: Tensor, masked: Tensor) -> Tensor:
        """Replace tokens by the mask token where `masked` (N, L) is True."""
        assert self.template.mask is not None
        return ids.masked_fill(masked, self.template.mask)


def token_scores(likelihoods: Tensor, where: Tensor, average: Literal["texts", "tokens"]) -> Scores:
    """Make `Scores` from log-probabilities (N, L) at the places `where`.

    A text is a row, and a token is a candidate. If the average is over tokens, each token is a row.
    """
    if average == "tokens":
        likelihoods, where = likelihoods[where].unsqueeze(1), where[where].unsqueeze(1)
    return Scores(student=likelihoods, target=where.to(likelihoods.dtype), where=where)


def load_generator(artifact: Path, model: Path, tokens: int) -> MaskedLanguageModel:
    """Load the generator that replaces tokens.

    Raise UserError if its vocabulary differs from that of the retriever in the folder `model`, or if it reads fewer
    than `tokens` tokens.
    """
    generator = _of_the_same_tokens("generator", artifact, model)
    reads = generator.config.model_copy(update={"document_tokens": tokens})
    layers.check_length(generator, reads, "document_tokens")
    return generator


def language_model_head(encoder: Any, artifact: Path | None, model: Path) -> LanguageModelHead:
    """Return a head for an encoder. If `artifact` is None, it is new; else it comes from that masked language model.

    Raise UserError if the masked language model's vocabulary differs from that of the retriever in the folder `model`.
    """
    if artifact is None:
        return LanguageModelHead.new(encoder)
    return _of_the_same_tokens("head", artifact, model).head.on(encoder)


def _of_the_same_tokens(key: str, artifact: Path, model: Path) -> MaskedLanguageModel:
    """Load a masked language model for a config's `key`. Raise UserError if its vocabulary is not the retriever's."""
    language_model = MaskedLanguageModel.load(artifact / "model")
    if load_tokenizer(artifact / "model").get_vocab() != load_tokenizer(model).get_vocab():
        raise UserError(
            f"{key}: the vocabulary of {language_model.config.model} differs from the retriever's. Use a masked "
            "language model with the retriever's tokenizer.",
            code="other-vocabulary",
        )
    return language_model


def placed(values: Tensor, where: Tensor, width: int) -> Tensor:
    """Put values (M,) at the M places of `where` (N, L). Return (N, width), with 0 elsewhere."""
    full = values.new_zeros(len(where), width)
    return full.masked_scatter(functional.pad(where, (0, width - where.shape[1])), values)
