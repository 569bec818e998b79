"""Masked language models: an encoder with a head that scores every token of the vocabulary at a place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput

from sparring.components.compute.chunking import checkpointed
from sparring.components.compute.vocabulary import log_likelihoods, sampled
from sparring.components.config import UserError
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.models import layers, pretrained, saved
from sparring.components.models.configs import MaskedLanguageModelConfig
from sparring.components.models.shape import predicted_at_once


class LanguageModelHead(nn.Module):
    """The head of a Hugging Face masked language model without its encoder. It maps token states to scores.

    Its last matrix is the matrix of `encoder`'s token embeddings, as in BERT and its relatives.
    """

    def __init__(self, model: Any, encoder: Any) -> None:
        super().__init__()
        setattr(model, model.base_model_prefix, _StatesAsTheyAre())
        model.get_output_embeddings().weight = encoder.get_input_embeddings().weight
        self.model = model

    @classmethod
    def new(cls, encoder: Any) -> Self:
        """Make a head with random weights for an encoder without a head."""
        return cls(AutoModelForMaskedLM.from_config(encoder.config), encoder)

    def on(self, encoder: Any) -> LanguageModelHead:
        """Return this head on a different encoder, with its token embeddings. Raise UserError if it does not fit."""
        shape, expected = ((config.hidden_size, config.vocab_size) for config in (self.model.config, encoder.config))
        if shape != expected:
            raise UserError(
                f"language_model: its head has the width and vocabulary {shape}, but the encoder has {expected}. Use a "
                "language model with the encoder's width and vocabulary."
            )
        return LanguageModelHead(self.model, encoder)

    def forward(self, states: Tensor) -> Tensor:
        """Score states (M, h): (M, V)."""
        logits: Tensor = self.model(inputs_embeds=states.unsqueeze(0)).logits[0]
        return logits

    def log_likelihoods(self, states: Tensor, ids: Tensor) -> Tensor:
        """Compute the log-probabilities of the tokens `ids` (M,) at places with states (M, h): (M,) in fp32.

        Scores are not kept, but computed again for the gradient.
        """
        pieces = zip(*_pieces(states, ids), strict=True)
        return torch.cat([checkpointed(self._log_likelihoods, *piece, recompute=True) for piece in pieces])

    def sample(self, states: Tensor, draws: Tensor) -> Tensor:
        """Sample a token for each place from the softmax of its scores: (M,). `draws` (M,) are numbers from 0 to 1."""
        pieces = zip(*_pieces(states, draws), strict=True)
        return torch.cat([sampled(self(states), drawn) for states, drawn in pieces])

    def best(self, states: Tensor) -> Tensor:
        """Return the token with the highest score at each place: (M,)."""
        return torch.cat([self(piece).argmax(-1) for piece in _pieces(states)[0]])

    def _log_likelihoods(self, states: Tensor, ids: Tensor) -> Tensor:
        return log_likelihoods(self(states), ids)


def _pieces(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Split each tensor into the pieces that are predicted together."""
    return [tensor.split(predicted_at_once(cuda=tensor.is_cuda)) for tensor in tensors]


class MaskedLanguageModel(nn.Module):
    """An encoder with its head. Scores are computed only at the places where they are needed."""

    def __init__(self, config: MaskedLanguageModelConfig, model: Any) -> None:
        super().__init__()
        self.config = config
        self.encoder = model.base_model
        self.head = LanguageModelHead(model, self.encoder)

    @classmethod
    def start(cls, config: MaskedLanguageModelConfig) -> tuple[Self, Any]:
        """Make a masked language model from a pre-trained model or an encoder. Return it with its tokenizer."""
        model = pretrained.masked_language_model(config)
        layers.check_length(model, config, "document_tokens")
        return cls(config, model), pretrained.tokenizer(config)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a masked language model that `save` wrote."""
        config = saved.load_config(MaskedLanguageModelConfig, folder)
        return cls(config, saved.load_masked_language_model(folder))

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model can predict."""
        return int(self.encoder.config.vocab_size)

    def states(self, ids: Tensor, mask: Tensor, where: Tensor) -> Tensor:
        """Compute the last states (M, h) of texts (N, L) at the M places where `where` is True."""
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states[where]

    def sampled(self, ids: Tensor, mask: Tensor, where: Tensor, draws: Tensor) -> Tensor:
        """Replace tokens of the texts `ids` (N, L) by samples at the places `where` (N, L).

        `draws` (N, L) are random numbers from 0 to 1.
        """
        return ids.masked_scatter(where, self.head.sample(self.states(ids, mask, where), draws[where]))

    def best(self, ids: Tensor, mask: Tensor, where: Tensor) -> Tensor:
        """Replace tokens of the texts `ids` (N, L) by the most probable tokens at the places `where` (N, L)."""
        return ids.masked_scatter(where, self.head.best(self.states(ids, mask, where)))

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the model for this project, `AutoModelForMaskedLM` and `AutoModel`."""
        whole, name = self.head.model, self.head.model.base_model_prefix
        stand_in = getattr(whole, name)
        setattr(whole, name, self.encoder)
        try:
            saved.save_tower(whole, folder, tokenizer_from, self.config.document_tokens)
        finally:
            setattr(whole, name, stand_in)
        (folder / MODEL_CONFIG).write_text(self.config.model_dump_json(indent=1) + "\n")


class _StatesAsTheyAre(nn.Module):
    """A replacement of a model's encoder that returns its input states unchanged."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)
