"""Masked language models: an encoder, and a head that gives each token of the vocabulary a score at a place."""

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
    """The head of a Hugging Face masked language model without its encoder: token states to scores.

    The last matrix is that of `encoder`'s token embeddings, as it is in BERT and its relatives.
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
        """Return this head on another encoder, with its token embeddings. UserError if it does not fit."""
        shape, expected = ((config.hidden_size, config.vocab_size) for config in (self.model.config, encoder.config))
        if shape != expected:
            raise UserError(
                f"language_model: its head is for width and vocabulary {shape}, and the encoder has {expected}; "
                "accepted: a model of the same"
            )
        return LanguageModelHead(self.model, encoder)

    def forward(self, states: Tensor) -> Tensor:
        """Score states (M, h): (M, V)."""
        logits: Tensor = self.model(inputs_embeds=states.unsqueeze(0)).logits[0]
        return logits

    def log_likelihoods(self, states: Tensor, ids: Tensor) -> Tensor:
        """Return the log-probability (M,) in fp32 of the token `ids` (M,) at places with states (M, h).

        Scores are computed again for the gradient rather than kept.
        """
        pieces = zip(*_pieces(states, ids), strict=True)
        return torch.cat([checkpointed(self._log_likelihoods, *piece, recompute=True) for piece in pieces])

    def sample(self, states: Tensor, draws: Tensor) -> Tensor:
        """Draw a token for each place (M,) from the softmax of its scores, by a number from 0 to 1 in `draws` (M,)."""
        pieces = zip(*_pieces(states, draws), strict=True)
        return torch.cat([sampled(self(states), drawn) for states, drawn in pieces])

    def best(self, states: Tensor) -> Tensor:
        """Return the token with the highest score at each place (M,)."""
        return torch.cat([self(piece).argmax(-1) for piece in _pieces(states)[0]])

    def _log_likelihoods(self, states: Tensor, ids: Tensor) -> Tensor:
        return log_likelihoods(self(states), ids)


def _pieces(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Split each tensor into the pieces that are predicted together."""
    return [tensor.split(predicted_at_once(cuda=tensor.is_cuda)) for tensor in tensors]


class MaskedLanguageModel(nn.Module):
    """An encoder with its head, whose scores are computed at the places asked for alone."""

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
        """Return the number of tokens that the model can predict."""
        return int(self.encoder.config.vocab_size)

    def states(self, ids: Tensor, mask: Tensor, where: Tensor) -> Tensor:
        """Return the last states (M, h) of tokens of (N, L) texts at the M places where `where` is True."""
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states[where]

    def sampled(self, ids: Tensor, mask: Tensor, where: Tensor, draws: Tensor) -> Tensor:
        """Replace tokens of the texts `ids` (N, L) by samples at the places `where` (N, L), by a number from 0 to 1
        for each in `draws` (N, L).
        """
        return ids.masked_scatter(where, self.head.sample(self.states(ids, mask, where), draws[where]))

    def best(self, ids: Tensor, mask: Tensor, where: Tensor) -> Tensor:
        """Replace tokens of the texts `ids` (N, L) by the most probable tokens at the places `where` (N, L)."""
        return ids.masked_scatter(where, self.head.best(self.states(ids, mask, where)))

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it for this project, `AutoModelForMaskedLM` and `AutoModel`."""
        whole, name = self.head.model, self.head.model.base_model_prefix
        stand_in = getattr(whole, name)
        setattr(whole, name, self.encoder)
        try:
            saved.save_tower(whole, folder, tokenizer_from, self.config.document_tokens)
        finally:
            setattr(whole, name, stand_in)
        (folder / MODEL_CONFIG).write_text(self.config.model_dump_json(indent=1) + "\n")


class _StatesAsTheyAre(nn.Module):
    """Stands in a model where its encoder was, and gives back the states that it is handed."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)
