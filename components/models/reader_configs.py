"""Configs of readers and of reading. They lie apart from the models, so that reading one does not import torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.data.reading import Template
from sparring.components.models.configs import Pretrained


class ReaderConfig(Pretrained):
    """A reader made from a pre-trained seq2seq model, such as T5 (as in the Fusion-in-Decoder paper) or BART."""

    kind: Literal["reader"] = "reader"
    template: Template | None = Field(None, exclude_if=lambda template: template is None)
    """What it reads. `fid`: `question:Q title: T context: P`, as the released code of Fusion-in-Decoder has it, without
    a space behind the first colon. Null: `question: Q context: T P`, from the tokens that models with the same
    tokenizer share."""
    passage_tokens: int = Field(250, ge=8)
    """Maximum length of a question with one passage in tokens, special tokens included; the longer of the two is cut.
    The released code's default is 200; its scripts use 250."""
    answer_tokens: int = Field(32, ge=2)
    """Maximum length in tokens of an answer that the reader is trained to write, special tokens included."""

    @model_validator(mode="after")
    def _keeps_all_layers(self) -> Self:
        if self.layers is not None:
            raise ValueError("layers: a reader keeps all its layers; leave the key out")
        return self


class ReadConfig(Config):
    """How a reader answers questions."""

    passages: int = Field(100, ge=1)
    """Passages read for a question: the first of its ranking."""
    queries: int | None = Field(None, ge=1)
    """Read only this many of the split's queries that have an answer, the same for every ranking; null for all."""
    new_tokens: int = Field(32, ge=1)
    """Maximum length of an answer in tokens. Answers are decoded greedily."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of the forward passes."""
    shard: int = Field(64, ge=1)
    """Questions in one file. A worker that is interrupted loses at most this many."""
