"""What retrievers and rankers begin from. Apart from the models themselves, so that reading a config is quick."""

from typing import Literal

from pydantic import Field

from components.config import Config


class Pretrained(Config):
    """Where a model begins."""

    model: str
    """A directory, a model hub's id, or `package:NAME` for a model that an installed package carries."""
    revision: str | None = None
    """The hub's commit or tag."""
    layers: int | list[int] | None = None
    """Keep the first so many layers, or just those listed; null for all."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of hidden states and attention; null for the model's own."""


class DualEncoderConfig(Pretrained):
    """A retriever to begin from."""

    kind: Literal["dual_encoder"] = "dual_encoder"
    towers: Literal["shared", "separate"] = "shared"
    """One encoder for both sides, or one each that begin alike."""
    pooling: Literal["cls", "mean"] = "cls"
    """A text's vector: that of its first token, or the mean over its tokens."""
    similarity: Literal["dot", "cosine"] = "dot"
    """Cosine makes vectors of length 1."""
    query_tokens: int = Field(32, ge=3)
    """The longest query, special tokens included."""
    document_tokens: int = Field(128, ge=3)
    """The longest document, special tokens included."""


class CrossEncoderConfig(Pretrained):
    """A ranker to begin from."""

    kind: Literal["cross_encoder"] = "cross_encoder"
    pooling: Literal["cls", "mean"] = "cls"
    """`cls` is the model's own classification head on the first token; `mean` a linear layer on the mean."""
    pair_tokens: int = Field(160, ge=6)
    """The longest pair, special tokens included."""
    seed: int = 0
    """Of the new head's weights."""
