"""Configs of generators and of generating. They lie apart from the models, so that reading one does not import
torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.models.configs import Adaptable


class GeneratorConfig(Adaptable):
    """A generator made from a pre-trained language model: a Hugging Face seq2seq (BART, T5) or causal (GPT-2, Llama)
    model.

    An encoder (BERT, MiniLM) is accepted for seq2seq: its layers are then the initial weights of both encoder and
    decoder. It writes nothing useful before it is trained.
    """

    kind: Literal["generator"] = "generator"
    architecture: Literal["seq2seq", "causal"] = "seq2seq"
    """`seq2seq`: an encoder reads the input and a decoder writes. `causal`: the model continues its input."""
    query_tokens: int = Field(64, ge=3)
    """Maximum length of the input in tokens, special tokens included; the rest is cut."""
    target_tokens: int = Field(64, ge=2)
    """Maximum length in tokens of a text that the generator is trained to write, special tokens included."""

    @model_validator(mode="after")
    def _keeps_all_layers(self) -> Self:
        if self.layers is not None:
            raise ValueError("layers: a generator keeps all its layers; leave the key out")
        return self


class GenerateConfig(Config):
    """How expansions are generated. By default as Chuang et al. (2023) generates for training: one greedy text and the
    others sampled from the 50 likeliest tokens."""

    prompt: str = "{query}"
    """The model's input, with `{query}` where the query goes. Chuang et al. (2023), section 3.4.2, for T0 without
    training: `{query} ? To answer this question, we need to know`."""
    number: int = Field(20, ge=1)
    """Expansions for each query, before duplicates are removed."""
    method: Literal["sample", "beam"] = "sample"
    """`sample`: one greedy text, then `number` - 1 sampled ones. `beam`: the best texts of a beam search."""
    beams: int | None = Field(None, ge=1)
    """Width of the beam search; null for `number`."""
    temperature: float = Field(1.0, gt=0)
    """Logits are divided by this before sampling."""
    top_k: int | None = Field(50, ge=1)
    """Sample from this many of the likeliest tokens; null for all."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Sample from the likeliest tokens that together have this probability; null for all."""
    new_tokens: int = Field(64, ge=1)
    """Maximum length of an expansion in tokens."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of the forward passes."""

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        if "{query}" not in self.prompt:
            raise ValueError("prompt: {query} is missing in it")
        if self.beams is not None and self.method != "beam":
            raise ValueError("beams: accepted only with `method: beam`")
        if self.beams is not None and self.beams < self.number:
            raise ValueError(f"beams: {self.beams} beams cannot give {self.number} expansions; accepted: at least that")
        return self
