"""What retrievers and rankers begin from. Apart from the models themselves, so that reading a config is quick."""

from typing import Literal

from components.config import Config


class DualEncoderConfig(Config):
    """A retriever to begin from."""

    kind: Literal["dual_encoder"] = "dual_encoder"
    model: str
    """A directory, a model hub's id, or `package:NAME` for a model that an installed package carries."""
    revision: str | None = None
    """The hub's commit or tag."""
    layers: int | list[int] | None = None
    """Keep the first so many layers, or just those listed; null for all."""
    towers: Literal["shared", "separate"] = "shared"
    """One encoder for both sides, or one each that begin alike."""
    pooling: Literal["cls", "mean"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    """Cosine makes vectors of length 1."""
    query_tokens: int = 32
    document_tokens: int = 128
    dropout: float | None = None
    """Dropout of hidden states and attention; null for the model's own."""


class CrossEncoderConfig(Config):
    """A ranker to begin from."""

    kind: Literal["cross_encoder"] = "cross_encoder"
    model: str
    """A directory, a model hub's id, or `package:NAME` for a model that an installed package carries."""
    revision: str | None = None
    """The hub's commit or tag."""
    layers: int | list[int] | None = None
    """Keep the first so many layers, or just those listed; null for all."""
    pooling: Literal["cls", "mean"] = "cls"
    """`cls` is the model's own classification head on the first token; `mean` a linear layer on the mean."""
    pair_tokens: int = 160
    """The longest pair, special tokens included."""
    dropout: float | None = None
    """Dropout of hidden states and attention; null for the model's own."""
    seed: int = 0
    """Of the new head's weights."""
