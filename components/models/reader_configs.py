"""Readers, and how they are asked. Apart from the models, so that reading a config is quick."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config
from components.model_configs import Pretrained


class ReaderConfig(Pretrained):
    """A seq2seq model to begin a reader from: T5 in Fusion-in-Decoder's paper, BART or another alike."""

    kind: Literal["reader"] = "reader"
    passage_tokens: int = Field(250, ge=8)
    """The longest question with one passage, special tokens included; the longer of the two is cut. The released code's
    default is 200, its scripts' 250."""
    answer_tokens: int = Field(32, ge=2)
    """The longest answer that it is trained to write, special tokens included."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.layers is not None:
            raise ValueError("layers: a reader is not cut; leave it out")
        return self


class ReadConfig(Config):
    """How questions are read."""

    passages: int = Field(100, ge=1)
    """The first so many of a ranking are read together; of a shorter ranking what there is."""
    queries: int | None = Field(None, ge=1)
    """Only so many of the split's queries with an answer, the same of every ranking; null for all."""
    new_tokens: int = Field(32, ge=1)
    """The longest answer in tokens. It is written greedily."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the forward passes."""
    shard: int = Field(64, ge=1)
    """Questions in one file; what an interrupted reading loses at most, for each worker."""
