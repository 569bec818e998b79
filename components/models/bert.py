"""BERT (Devlin et al., 2019) as a model that is only asked. Its folder is read without transformers' model classes,
whose import takes longer than all else that a search on the command line does.

Modules have the names that transformers' have, and compute what those do.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.models.configs import BASE

WEIGHTS = "model.safetensors"


class Embeddings(nn.Module):
    """Of tokens, of their positions, and of the text of a pair that they are in."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = _embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = _embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """(N, L, h) of (N, L) tokens."""
        places = torch.arange(ids.shape[1], device=ids.device)
        states = self.word_embeddings(ids) + self.token_type_embeddings(segments)
        return self.LayerNorm(states + self.position_embeddings(places))


class SelfAttention(nn.Module):
    """Attention of several heads."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, config.hidden_size) for _ in range(3))

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """(N, L, h) states to what each takes from those under the mask."""
        shape = (*states.shape[:2], self.num_attention_heads, -1)
        query, key, value = (part(states).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return mixed.transpose(1, 2).reshape(states.shape)


class Output(nn.Module):
    """A linear layer whose result is added to what it stands beside."""

    def __init__(self, config: Any, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, beside: Tensor) -> Tensor:
        """(N, L, width) states and (N, L, h) others to (N, L, h)."""
        return self.LayerNorm(self.dense(states) + beside)


class Attention(nn.Module):
    """The first half of a layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self, self.output = SelfAttention(config), Output(config, config.hidden_size)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """(N, L, h) states to (N, L, h)."""
        return self.output(self.self(states, mask), states)


class Intermediate(nn.Module):
    """The wide part of a layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(config.hidden_size, config.intermediate_size), functional.gelu

    def forward(self, states: Tensor) -> Tensor:
        """(N, L, h) states to (N, L, intermediate size)."""
        return self.intermediate_act_fn(self.dense(states))


class Layer(nn.Module):
    """One layer."""

    is_decoder = add_cross_attention = False

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention, self.intermediate = Attention(config), Intermediate(config)
        self.output = Output(config, config.intermediate_size)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """(N, L, h) states to (N, L, h)."""
        states = self.attention(states, mask)
        return self.output(self.intermediate(states), states)


class Encoder(nn.Module):
    """All layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))


class Bert(nn.Module):
    """The encoder."""

    pooler: Pooler
    """A classifier's has one."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings, self.encoder = Embeddings(config), Encoder(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """`last_hidden_state`: (N, L, h) of (N, L) tokens."""
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        states, length = self.embeddings(input_ids, segments), input_ids.shape[1]
        # Without padding there is no mask: torch's attention is faster then.
        padded = not bool(attention_mask.all())
        mask = attention_mask.bool()[:, None, None, :].expand(-1, 1, length, -1) if padded else None
        for layer in self.encoder.layer:
            states = layer(states, mask)
        return SimpleNamespace(last_hidden_state=states)

    @property
    def base_model(self) -> Bert:
        """Itself, as a classifier has it."""
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, embeddings: nn.Embedding) -> None:
        """Take another model's token embeddings."""
        self.embeddings.word_embeddings = embeddings


class Pooler(nn.Module):
    """What a classifier reads: a layer on the state of the first token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        """(N, L, h) states to (N, h)."""
        return self.dense(states[:, 0]).tanh()


class Classifier(nn.Module):
    """The encoder with a classification head of one label."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.bert, self.classifier = config, Bert(config), nn.Linear(config.hidden_size, 1)
        self.bert.pooler = Pooler(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """`logits`: (N, 1) scores."""
        states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        return SimpleNamespace(logits=self.classifier(self.bert.pooler(states)))

    @property
    def base_model(self) -> Bert:
        """The encoder."""
        return self.bert


def _embedding(count: int, width: int) -> nn.Embedding:
    """Embeddings that nothing is drawn for: on the device `meta` that would import torch's compiler."""
    return nn.Embedding.from_pretrained(torch.empty(count, width))


def encoder(folder: Path) -> Bert | None:
    """The encoder that was saved in a folder; None where it is another model."""
    return _read(Bert, folder, "BertModel")


def classifier(folder: Path) -> Classifier | None:
    """The classifier that was saved in a folder; None where it is another model."""
    return _read(Classifier, folder, "BertForSequenceClassification")


def _read(kind: Any, folder: Path, saved_as: str) -> Any:
    """A model in evaluation mode; None where the folder's is not what `kind` computes, or stands over a base."""
    tree = json.loads((folder / "config.json").read_text()) if (folder / "config.json").is_file() else {}
    others = tree.get("is_decoder") or tree.get("add_cross_attention") or tree.get("hidden_act") != "gelu"
    named = tree.get("architectures") == [saved_as] and tree.get("position_embedding_type", "absolute") == "absolute"
    if others or not named or (folder / BASE).exists() or not (folder / WEIGHTS).is_file():
        return None
    with torch.device("meta"):
        model = kind(SimpleNamespace(**tree))
    model.load_state_dict({name: weight.float() for name, weight in load_file(folder / WEIGHTS).items()}, assign=True)
    return model.eval()
