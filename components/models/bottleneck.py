"""What pre-training puts behind an encoder's vector, and throws away afterwards."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

from sparring.components.compute.gather import gather, rank
from sparring.components.config import UserError
from sparring.components.models.layers import keep_layers


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
        if weights == "last" and layers > count:
            raise UserError(
                f"decoder_layers: {layers}: they begin as the last of the encoder's {count} layers; "
                f"accepted: 1 to {count}, or `decoder_weights: random`"
            )
        if weights == "last":
            self.layers = keep_layers(copy.deepcopy(encoder), list(range(count - layers, count)))
        else:
            shape = copy.deepcopy(config)
            shape.num_hidden_layers = layers
            self.layers = AutoModel.from_config(shape)
            self.layers.pooler = None
        self.layers.embeddings = _EmbeddingsAsTheyAre()

    def forward(self, vectors: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Return the states (N, L, h) of tokens with embeddings `states` (N, L, h), with `vectors` (N, h) in place
        of the first.
        """
        whole = torch.cat([vectors.unsqueeze(1), states[:, 1:]], 1)
        decoded: Tensor = self.layers(inputs_embeds=whole, attention_mask=mask).last_hidden_state
        return decoded


class Discriminator(nn.Module):
    """A second encoder that reads an edited text behind the vector of the original one (DiffCSE; Chuang et al., 2022,
    section 2.3).

    It begins as the encoder and shares nothing with it. As in the public code, the vector takes the place of the first
    token after embeddings: it has no position, and no LayerNorm or dropout before the layers.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.decoder = Decoder(encoder, self.config.num_hidden_layers, "last")
        self.embeddings = copy.deepcopy(encoder.embeddings)

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the states (N, L, h) of tokens of edited texts `ids` (N, L), given the originals' `vectors` (N, h)."""
        states: Tensor = self.decoder(vectors, self.embeddings(input_ids=ids), mask)
        return states

    def get_input_embeddings(self) -> Any:
        """Return the token embeddings, as a Hugging Face encoder does."""
        return self.embeddings.word_embeddings


class Projector(nn.Module):
    """What vectors pass in training alone: contrastive losses compare what comes out of it.

    `batchnorm` is the two layers of DiffCSE (Chuang et al., 2022, Appendix A.1); statistics are over the rows of all
    workers, who have equally many, and in evaluation running means. `tanh` is the layer of BERT's pooler, as in SimCSE
    (Gao et al., 2021), with new weights. `none` leaves vectors as they are.
    """

    def __init__(self, width: int, kind: Literal["batchnorm", "tanh", "none"]) -> None:
        super().__init__()
        self.kind = kind
        if kind == "batchnorm":
            self.layers = nn.Sequential(
                nn.Linear(width, 2 * width, bias=False),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width, bias=False),
                nn.BatchNorm1d(width, affine=False),
            )
        else:
            self.layers = nn.Sequential(*([nn.Linear(width, width), nn.Tanh()] if kind == "tanh" else []))

    def forward(self, vectors: Tensor) -> Tensor:
        """Project this worker's vectors (N, h): (N, h) in fp32."""
        with torch.autocast(vectors.device.type, enabled=False):
            count, together = len(vectors), self.training and self.kind == "batchnorm"
            projected: Tensor = self.layers(gather(vectors, rows=count) if together else vectors)
            return projected[rank() * count :][:count] if together else projected


class DetectionHead(nn.Module):
    """Whether a token was replaced, from its state: ELECTRA's two layers (Clark et al., 2020), or without `hidden` the
    second alone, as in DiffCSE's public code. One score stands for the difference of its two."""

    def __init__(self, width: int, *, hidden: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width) if hidden else None
        self.score = nn.Linear(width, 1)

    def log_likelihoods(self, states: Tensor, replaced: Tensor) -> Tensor:
        """Return the log-probability (M,) in fp32 of `replaced` (M,) for tokens with states (M, h)."""
        if self.hidden is not None:
            states = functional.gelu(self.hidden(states))
        logits = self.score(states).squeeze(-1).float()
        return functional.logsigmoid(torch.where(replaced, logits, -logits))


class _EmbeddingsAsTheyAre(nn.Module):
    """Stands in an encoder where its embeddings were, and gives back those that it is handed."""

    def forward(self, input_ids: None = None, inputs_embeds: Tensor | None = None, *_: Any, **__: Any) -> Any:
        return inputs_embeds
