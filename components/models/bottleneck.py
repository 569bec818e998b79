"""What pre-training puts behind an encoder's vector, and throws away afterwards."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

from components.config import UserError
from components.models import pretrained


class Decoder(nn.Module):
    """A shallow Transformer with bidirectional attention that reads a text behind its vector (Wang et al., 2023,
    section 3.1).

    `weights` says what it begins from: the encoder's `last` layers, which it does not share, or `random` numbers.
    """

    def __init__(self, encoder: Any, layers: int, weights: Literal["last", "random"]) -> None:
        super().__init__()
        config = encoder.config
        if not hasattr(encoder, "embeddings") or getattr(config, "embedding_size", None) not in (
            None,
            config.hidden_size,
        ):
            raise UserError(
                f"model: a {config.model_type} model has no token embeddings that its layers could read as they are; "
                "accepted: BERT, RoBERTa, DistilBERT, MPNet"
            )
        count = config.num_hidden_layers
        if weights == "last":
            self.layers = pretrained.keep_layers(copy.deepcopy(encoder), list(range(count - layers, count)))
        else:
            shape = copy.deepcopy(config)
            shape.num_hidden_layers = layers
            self.layers = AutoModel.from_config(shape)
            self.layers.pooler = None
        self.layers.embeddings = _EmbeddingsAsTheyAre()

    def forward(self, vectors: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """(N, L, h) states of the tokens whose embeddings are `states` (N, L, h), with `vectors` (N, h) in place of the
        first."""
        whole = torch.cat([vectors.unsqueeze(1), states[:, 1:]], 1)
        decoded: Tensor = self.layers(inputs_embeds=whole, attention_mask=mask).last_hidden_state
        return decoded


class DetectionHead(nn.Module):
    """Whether a token was replaced, from its state: ELECTRA's two layers (Clark et al., 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(width, width), nn.Linear(width, 1)

    def log_likelihoods(self, states: Tensor, replaced: Tensor) -> Tensor:
        """(M,) fp32 log-probability of what is true of tokens with these states (M, h): `replaced` (M,), or not."""
        logits = self.score(functional.gelu(self.hidden(states))).squeeze(-1).float()
        return functional.logsigmoid(torch.where(replaced, logits, -logits))


class _EmbeddingsAsTheyAre(nn.Module):
    """Stands in an encoder where its embeddings were, and gives back those that it is handed."""

    def forward(self, input_ids: None = None, inputs_embeds: Tensor | None = None, *_: Any, **__: Any) -> Any:
        return inputs_embeds
