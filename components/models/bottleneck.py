"""Modules that pre-training adds after an encoder's vector and drops afterwards."""

from __future__ import annotations

import copy
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

from sparring.components.compute.gather import first_row, gather, of_workers
from sparring.components.config import UserError
from sparring.components.models.layers import keep_layers


class Decoder(nn.Module):
    """A shallow bidirectional Transformer that reads a text together with its vector (Wang et al., 2023, section 3.1).

    `weights` are its initial weights: copies of the encoder's `last` layers, or `random` numbers.
    """

    def __init__(self, encoder: Any, layers: int, weights: Literal["last", "random"]) -> None:
        super().__init__()
        config = encoder.config
        if not hasattr(encoder, "embeddings") or getattr(config, "embedding_size", None) not in (
            None,
            config.hidden_size,
        ):
            raise UserError(
                f"model: the decoder feeds token embeddings directly to the layers, which {config.model_type} models "
                "do not support. Use a BERT, RoBERTa, DistilBERT or MPNet model."
            )
        count = config.num_hidden_layers
        if weights == "last" and layers > count:
            raise UserError(
                f"decoder_layers: got {layers}, but the encoder whose last layers are copied has {count}. Use 1 to "
                f"{count}, or `decoder_weights: random`.",
                code="too-many-layers",
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
        """Compute the states (N, L, h) of tokens with embeddings `states` (N, L, h).

        `vectors` (N, h) replace the embeddings of the first tokens.
        """
        whole = torch.cat([vectors.unsqueeze(1), states[:, 1:]], 1)
        decoded: Tensor = self.layers(inputs_embeds=whole, attention_mask=mask).last_hidden_state
        return decoded


class Discriminator(nn.Module):
    """A second encoder that reads an edited text with the vector of the original text.

    Source: DiffCSE (Chuang et al., 2022, section 2.3). It starts as a copy of the encoder and shares no weights with
    it. As in the public code, the vector replaces the first token after the embeddings. It gets no position, LayerNorm
    or dropout before the layers.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.decoder = Decoder(encoder, self.config.num_hidden_layers, "last")
        self.embeddings = copy.deepcopy(encoder.embeddings)

    def forward(self, vectors: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Compute the states (N, L, h) of edited texts `ids` (N, L), given the originals' `vectors` (N, h)."""
        states: Tensor = self.decoder(vectors, self.embeddings(input_ids=ids), mask)
        return states

    def get_input_embeddings(self) -> Any:
        """Return the token embeddings. Hugging Face encoders have the same method."""
        return self.embeddings.word_embeddings


class Projector(nn.Module):
    """A projector of vectors for contrastive losses. It is used in training only.

    `batchnorm` is the two layers of DiffCSE (Chuang et al., 2022, Appendix A.1). Its statistics are over the rows of
    all workers. In evaluation they are running means. `tanh` is a layer like BERT's pooler
    with new weights, as in SimCSE (Gao et al., 2021). `none` does not change vectors.
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
        """Project this worker's vectors (N, h). Return (N, h) in fp32."""
        with torch.autocast(vectors.device.type, enabled=False):
            if not (self.training and self.kind == "batchnorm"):
                return cast(Tensor, self.layers(vectors))
            counts = of_workers(len(vectors))
            projected: Tensor = self.layers(gather(vectors, counts))
            return projected[first_row(counts) :][: len(vectors)]


class DetectionHead(nn.Module):
    """A classifier of token states: was the token replaced?

    It has ELECTRA's two layers (Clark et al., 2020). Without `hidden` it has only the second, as in DiffCSE's public
    code. The public code has two logits. The single score here is their difference.
    """

    def __init__(self, width: int, *, hidden: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width) if hidden else None
        self.score = nn.Linear(width, 1)

    def log_likelihoods(self, states: Tensor, replaced: Tensor) -> Tensor:
        """Compute the log-probability (M,) in fp32 of the labels `replaced` (M,) for tokens with states (M, h)."""
        if self.hidden is not None:
            states = functional.gelu(self.hidden(states))
        logits = self.score(states).squeeze(-1).float()
        return functional.logsigmoid(torch.where(replaced, logits, -logits))


class _EmbeddingsAsTheyAre(nn.Module):
    """A replacement of an encoder's embeddings that returns its input embeddings unchanged."""

    def forward(self, input_ids: None = None, inputs_embeds: Tensor | None = None, *_: Any, **__: Any) -> Any:
        return inputs_embeds
