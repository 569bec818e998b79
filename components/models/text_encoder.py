"""The base class of retriever models. They represent queries and documents independently and compare them."""

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
    """The comparison of representations. By default they are vectors and compared by inner product.

    Representations are a single tensor (N, ...). They are gathered from all workers before they are scored.
    """

    def score(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Score queries (Q, ...) against every document (N, ...): (Q, N)."""
        return queries @ documents.T

    def score_lists(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Score queries (Q, ...) against their own documents (Q, C, ...): (Q, C)."""
        return torch.einsum("qd,qcd->qc", queries, documents)


def represent(model: TextEncoder, folder: Path, texts: list[str], side: Side, limit: int | None = None) -> Tensor:
    """Represent plain texts with a saved model: (N, ...). `limit` is the maximum length. If None, it is the model's."""
    tokenizer, prompt = load_tokenizer(folder), getattr(model.config, f"{side}_prompt")
    tokens = Tokens.of(tokenizer([prompt + text for text in texts], add_special_tokens=False)["input_ids"])
    batch = Template.of(tokenizer).texts(tokens, np.arange(len(texts)), limit or model.max_tokens(side))
    with torch.inference_mode():
        result: Tensor = model(batch, side)
    return result


class TextEncoder(nn.Module, Similarity, ABC):
    """The model of a retriever kind (`components.retrieval.kind`)."""

    config: Any
    """Config that `save` writes as `sparring.json`. It has `kind`, `query_tokens`, `document_tokens`, `query_prompt`
    and `document_prompt`."""
    dimensions: Any = None
    """Number of dimensions of a text's vector. If None, representations cannot be cut to their first dimensions."""

    @classmethod
    @abstractmethod
    def start(cls, config: Any) -> tuple[Self, Any]:
        """Make a model from the pre-trained model that a config names. Return it with its tokenizer."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, *, frozen: bool = False) -> Self:
        """Load a model that `save` wrote. A `frozen` model is used for inference only."""

    @abstractmethod
    def forward(self, batch: Batch, side: Side) -> Tensor:
        """Represent a batch of texts: (N, ...). The sizes after N must not depend on the batch."""

    @abstractmethod
    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the model in the format of the library that users load it with, and its config."""

    @abstractmethod
    def tower(self, side: Side) -> Any:
        """Return the Hugging Face encoder of a side."""

    @property
    def base_model(self) -> Any:
        """An encoder with the shape that all encoders of the model have."""
        return self.tower("document")

    def max_tokens(self, side: Side) -> int:
        """Return the maximum length of a side's texts in tokens, including special tokens."""
        return int(self.config.query_tokens if side == "query" else self.config.document_tokens)

    def cut(self, representations: Tensor, dimensions: int | None) -> Tensor:
        """Cut representations to their first dimensions. If `dimensions` is None, keep all."""
        if dimensions is not None:
            raise NotImplementedError("These representations cannot be cut to their first dimensions.")
        return representations

    def to_dtype(self, dtype: torch.dtype) -> Self:
        """Convert the encoders to another precision. Their outputs are processed in fp32."""
        for side in get_args(Side):
            self.tower(side).to(dtype)
        return self
