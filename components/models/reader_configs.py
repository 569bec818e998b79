"""Configs of readers and of reading. They are separate from the models, so that loading them does not import torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.data.reading import Template
from sparring.components.models.configs import Pretrained


class ReaderConfig(Pretrained):
    """A reader made from a pre-trained seq2seq model, such as T5 (as in the Fusion-in-Decoder paper) or BART."""

    kind: Literal["reader"] = "reader"
    template: Template | None = Field(None, exclude_if=lambda template: template is None)
    """Template of the input. `fid`: `question:Q title: T context: P`, as in Fusion-in-Decoder's released code. There is
    no space after the first colon. `null`: `question: Q context: T P`, from a token store that models with the same
    tokenizer can share."""
    passage_tokens: int = Field(250, ge=8)
    """Maximum length in tokens of a question with a passage, including special tokens. The longer of the two is cut.
    The default of the released code is 200, and its scripts use 250."""
    answer_tokens: int = Field(32, ge=2)
    """Maximum length in tokens of an answer that the reader is trained to write, including special tokens."""

    @model_validator(mode="after")
    def _keeps_all_layers(self) -> Self:
        if self.layers is not None:
            raise ValueError("layers: a reader always keeps all its layers. Remove this key.")
        return self


class ReadConfig(Config):
    """Reading: a reader answers the questions of a split."""

    passages: int = Field(100, ge=1)
    """Number of passages read per question, from the top of its ranking."""
    queries: int | None = Field(None, ge=1)
    """Number of the split's queries with an answer to read. Every ranking has the same sample. `null`: all queries."""
    new_tokens: int = Field(32, ge=1)
    """Maximum length of an answer in tokens. Answers are decoded greedily."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of the forward passes."""
    shard: int = Field(64, ge=1)
    """Number of questions per file. A worker that is interrupted loses at most this many."""
