"""Language models that write, and how they are asked. Apart from the models, so that reading a config is quick."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config
from components.model_configs import Pretrained


class GeneratorConfig(Pretrained):
    """A language model to begin from: any of Hugging Face's seq2seq (BART, T5) or causal (GPT-2, Llama) models.

    An encoder (BERT, MiniLM) is taken for seq2seq too: its layers then begin both the side that reads and the one that
    writes. It writes nothing of sense until it is trained.
    """

    kind: Literal["generator"] = "generator"
    architecture: Literal["seq2seq", "causal"] = "seq2seq"
    """`seq2seq` writes an answer to its input; `causal` goes on where its input ends."""
    query_tokens: int = Field(64, ge=3)
    """The longest input, special tokens included; what is beyond is cut."""
    target_tokens: int = Field(64, ge=2)
    """The longest text that it is trained to write, special tokens included."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.layers is not None:
            raise ValueError("layers: a generator is not cut; leave it out")
        return self


class GenerateConfig(Config):
    """How expansions are generated. As paper 002 trains on: one greedy and 49 draws among the 50 likeliest tokens."""

    prompt: str = "{query}"
    """What the model reads: `{query}` stands for the query. T0, without training (paper 002, section 3.4.2):
    `{query} ? To answer this question, we need to know`."""
    number: int = Field(20, ge=1)
    """Expansions a query, before those that say the same are dropped."""
    method: Literal["sample", "beam"] = "sample"
    """`sample` draws tokens, after one expansion that takes the likeliest each time (greedy); with a number of 1 that
    is all. `beam` gives the best beams."""
    beams: int | None = Field(None, ge=1)
    """Beams that are looked along; null for as many as expansions."""
    temperature: float = Field(1.0, gt=0)
    """Logits are divided by it before a draw."""
    top_k: int | None = Field(50, ge=1)
    """A draw is among so many of the likeliest tokens; null for all."""
    top_p: float | None = Field(None, gt=0, le=1)
    """A draw is among the likeliest tokens that have this probability together; null for all."""
    new_tokens: int = Field(64, ge=1)
    """The longest expansion in tokens."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the forward passes."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if "{query}" not in self.prompt:
            raise ValueError("prompt: there is no {query} in it")
        if self.beams is not None and self.method != "beam":
            raise ValueError("beams: only with method: beam")
        if self.beams is not None and self.beams < self.number:
            raise ValueError(f"beams: {self.beams} beams give no {self.number} expansions")
        return self
