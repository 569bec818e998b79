"""The model of a retriever: it represents queries and documents independently, and scores them by what it made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from sparring.components.data.batches import Batch
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens

Side = Literal["query", "document"]


class Similarity:
    """How representations of texts are compared. By default they are vectors, compared by inner product.

    Representations are one tensor (N, ...). They are gathered from all workers before they are scored.
    """

    def score(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Score (Q, ...) queries against each of (N, ...) documents: (Q, N)."""
        return queries @ documents.T

    def score_lists(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Score (Q, ...) queries against their own (Q, C, ...) documents: (Q, C)."""
        return torch.einsum("qd,qcd->qc", queries, documents)


def represent(model: TextEncoder, folder: Path, texts: list[str], side: Side, limit: int | None = None) -> Tensor:
    """Represent plain texts with a saved model: (N, ...). `limit` is the maximum length, if not the model's own."""
    tokenizer, prompt = load_tokenizer(folder), getattr(model.config, f"{side}_prompt")
    tokens = Tokens.of(tokenizer([prompt + text for text in texts], add_special_tokens=False)["input_ids"])
    batch = Template.of(tokenizer).texts(tokens, np.arange(len(texts)), limit or model.max_tokens(side))
    with torch.inference_mode():
        result: Tensor = model(batch, side)
    return result


class TextEncoder(nn.Module, Similarity, ABC):
    """The model of one retriever kind (`components.retrieval.kind`)."""

    config: Any
    """The config that `save` writes as `sparring.json`. It has `kind`, `query_tokens`, `document_tokens`,
    `query_prompt` and `document_prompt`."""
    dimensions: Any = None
    """Number of dimensions of a text's vector. None for representations that cannot be cut to their first
    dimensions."""

    @classmethod
    @abstractmethod
    def start(cls, config: Any) -> tuple[Self, Any]:
        """Make a model from the pre-trained one that a config names; the model and its tokenizer."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, *, frozen: bool = False) -> Self:
        """Load what `save` wrote. A frozen model is used for inference only."""

    @abstractmethod
    def forward(self, batch: Batch, side: Side) -> Tensor:
        """Represent a batch of texts as (N, ...). The dimensions after the first do not depend on the batch."""

    @abstractmethod
    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the model in the format of the library that its users load it with, and its config."""

    @abstractmethod
    def tower(self, side: Side) -> Any:
        """Return the Hugging Face encoder of a side."""

    @property
    def base_model(self) -> Any:
        """An encoder whose shape is that of all encoders of the model."""
        return self.tower("document")

    def max_tokens(self, side: Side) -> int:
        """Return the maximum length of a side's texts in tokens, special tokens included."""
        return int(self.config.query_tokens if side == "query" else self.config.document_tokens)

    def cut(self, representations: Tensor, dimensions: int | None) -> Tensor:
        """Represent texts by the first dimensions alone. None keeps all."""
        if dimensions is not None:
            raise NotImplementedError("these representations cannot be cut to their first dimensions")
        return representations

    def to_dtype(self, dtype: torch.dtype) -> Self:
        """Convert the encoders to another precision. Their outputs are processed in fp32."""
        for side in get_args(Side):
            self.tower(side).to(dtype)
        return self
