"""Configs of generators and of generation.

They are separate from the models, so that loading a config does not import torch.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.models.configs import Adaptable


class GeneratorConfig(Adaptable):
    """A generator made from a Hugging Face language model: seq2seq (BART, T5) or causal (GPT-2, Llama).

    For seq2seq an encoder (BERT, MiniLM) is accepted too. Its layers are the initial weights of both encoder and
    decoder. Such a model writes nothing useful before training.
    """

    kind: Literal["generator"] = "generator"
    architecture: Literal["seq2seq", "causal"] = "seq2seq"
    """Architecture. `seq2seq`: an encoder reads the input and a decoder writes. `causal`: the model continues its
    input."""
    query_tokens: int = Field(64, ge=3)
    """Maximum length of the input in tokens, including special tokens. Longer inputs are cut."""
    target_tokens: int = Field(64, ge=2)
    """Maximum length in tokens of a text that the generator is trained to write, including special tokens."""

    @model_validator(mode="after")
    def _keeps_all_layers(self) -> Self:
        if self.layers is not None:
            raise ValueError("layers: a generator always keeps all its layers. Remove this key.")
        return self


class GenerateConfig(Config):
    """Generation of query expansions.

    The defaults are those of Chuang et al. (2023) for training data: one greedy text, and the rest sampled from the 50
    most probable tokens.
    """

    prompt: str = "{query}"
    """Input of the model, with `{query}` in the place of the query. Chuang et al. (2023, section 3.4.2) use `{query} ?
    To answer this question, we need to know` for an untrained T0."""
    number: int = Field(20, ge=1)
    """Number of expansions per query, before duplicates are removed."""
    method: Literal["sample", "beam"] = "sample"
    """Decoding method. `sample`: one greedy text and `number` - 1 sampled texts. `beam`: the best texts of a beam
    search."""
    beams: int | None = Field(None, ge=1)
    """Width of the beam search. `null`: the same as `number`."""
    temperature: float = Field(1.0, gt=0)
    """Divisor of the logits before sampling."""
    top_k: int | None = Field(50, ge=1)
    """Number of the most probable tokens to sample from. `null`: all tokens."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Total probability of the most probable tokens to sample from. `null`: all tokens."""
    new_tokens: int = Field(64, ge=1)
    """Maximum length of an expansion in tokens."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of the forward passes."""

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        if "{query}" not in self.prompt:
            raise ValueError("prompt: it does not contain {query}. Write {query} in the place of the query.")
        if self.beams is not None and self.method != "beam":
            raise ValueError("beams: this key needs `method: beam`. Set it, or remove `beams`.")
        if self.beams is not None and self.beams < self.number:
            raise ValueError(
                f"beams: {self.beams} beams cannot give {self.number} expansions. Use at least {self.number}."
            )
        return self
