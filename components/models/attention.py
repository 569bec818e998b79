"""Attention of pre-trained models: causal (a token sees the tokens before it) or bidirectional (it sees all tokens)."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from sparring.components.config import UserError
from sparring.components.models.configs import Base, DualEncoderConfig


def is_decoder(config: Any) -> bool:
    """Return True if a Hugging Face config is that of a decoder without an encoder, such as Qwen3, Mistral or Llama."""
    kind = type(config)
    masked = kind in MODEL_FOR_MASKED_LM_MAPPING
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING and not masked and not getattr(config, "is_encoder_decoder", False)


def is_causal(config: Any) -> bool:
    """Return True if tokens see only the tokens before them."""
    both_ways = getattr(config, "use_bidirectional_attention", None) is True or not getattr(config, "is_causal", True)
    return is_decoder(config) and not both_ways


def for_reading(model: Any) -> Any:
    """Prepare a model for reading texts instead of writing. A causal model then keeps no keys and values."""
    if is_decoder(model.config):
        model.config.use_cache = False
        _tell_attention(model)
    return model


def with_attention(model: Any, source: DualEncoderConfig | Base) -> Any:
    """Set causal or bidirectional attention, as `source.attention` says. Raise UserError if the model lacks it."""
    if source.attention is None:
        return model
    if not is_decoder(model.config):
        raise UserError(
            f"attention: got {source.attention}, but {source.model} is not a causal language model. Use "
            "`attention: null`."
        )
    model.config.is_causal = source.attention == "causal"
    _tell_attention(model)
    ids = torch.tensor([[1, 2], [1, 3]])
    was, _ = model.training, model.eval()
    with torch.no_grad():
        first, second = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0]
    model.train(was)
    if torch.allclose(first, second, rtol=1e-4, atol=1e-5) != model.config.is_causal:
        raise UserError(
            f"attention: got {source.attention}, but {model.config.model_type} models do not support this. Use "
            "`attention: null`."
        )
    return model


def _tell_attention(model: Any) -> None:
    """Copy the config's `is_causal` to the layers. Flash attention reads it there, because it gets no mask."""
    if hasattr(model.config, "is_causal"):
        for module in model.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = model.config.is_causal
