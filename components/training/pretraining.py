"""What a config says of pre-training on documents. Apart from the objectives, which import torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config


class MaskConfig(Config):
    """Which tokens of a text are masked, and how predictions are averaged."""

    unit: Literal["words", "tokens"] = "words"
    """What is masked as a whole. `words` needs a WordPiece tokenizer; `tokens` takes each token by itself."""
    masked_as: Literal["mask", "bert"] = "mask"
    """What masked tokens become. `mask`: all become the mask token, as SimLM's released script has it. `bert`: 80 %
    become the mask token, 10 % a random token, and 10 % stay (Devlin et al., 2019), the default of its code and of
    Condenser's."""
    average: Literal["texts", "tokens"] = "texts"
    """What counts alike. `texts`: the mean over a text's tokens, then over texts (Wang et al., 2023, Eq. 2). `tokens`:
    the mean over all tokens of the batch, as in the public code, where a long text weighs more."""


class MaskedLanguageModelingConfig(MaskConfig):
    """Masked language modelling (Devlin et al., 2019)."""

    rate: float = Field(0.3, gt=0, le=1)
    """Share of a text's tokens that are masked; 30 % in Wang et al. (2023), Table 7."""


class BottleneckConfig(MaskConfig):
    """Pre-training an encoder whose vector a shallow decoder needs. The defaults are SimLM's (Wang et al., 2023).

    The variants of its Table 7, beside the views of their losses:

    - SimLM: the defaults; `encoder`, `decoder`, and `generator` too to train the generator (Table 12)
    - Enc-Dec MLM: `task: masked`; `encoder`, `decoder`
    - Condenser: `task: masked, decoder_rate: 0.3, decoder_reads: states, decoder_weights: random`; `encoder`, `decoder`
    - MLM: `task: masked`; `encoder` (or the objective `mlm`)
    - Enc-Dec RTD: `task: detection`; `encoder`, `decoder`
    - AutoEncoder: `task: masked, encoder_rate: 0, decoder_rate: 1`; `decoder`
    """

    task: Literal["replaced", "masked", "detection"] = "replaced"
    """`replaced`: masked tokens become samples of the generator, and the tokens before that are predicted at all
    places. `masked`: they become mask tokens, and are predicted at their places (without a generator). `detection`: as
    `replaced`, but predicted is whether a token is another than before (Clark et al., 2020)."""
    encoder_rate: float = Field(0.3, ge=0, le=1)
    """Share of the tokens that are masked in what the encoder reads."""
    decoder_rate: float = Field(0.5, ge=0, le=1)
    """Share of the tokens that are masked in what the decoder reads; what is masked for the encoder is among them."""
    decoder_layers: int = Field(2, ge=1)
    """Layers of the decoder."""
    decoder_weights: Literal["last", "random"] = "last"
    """What the decoder begins from: the encoder's `last` layers, or `random` weights, as Condenser's head."""
    decoder_reads: Literal["tokens", "states"] = "tokens"
    """What the decoder reads beside the vector. `tokens`: the embeddings of its own text. `states`: the states of the
    encoder's middle layer (Gao and Callan, 2021)."""
    generator_dropout: bool = False
    """Whether a frozen generator has dropout while it samples, as in the public code, which leaves it on."""

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        if self.decoder_rate < self.encoder_rate:
            raise ValueError("decoder_rate: what is masked for the encoder is for the decoder too; accepted: at least "
                             "encoder_rate")  # fmt: skip
        if self.decoder_reads == "states" and (self.task != "masked" or self.decoder_rate != self.encoder_rate):
            raise ValueError("decoder_reads: states: they are of what the encoder reads; accepted only with `task: "
                             "masked` and decoder_rate as encoder_rate")  # fmt: skip
        if self.task != "masked" and self.masked_as != "mask":
            raise ValueError("masked_as: the generator samples at mask tokens; accepted: mask, or `task: masked`")
        return self


class SpanConfig(Config):
    """Two spans of each document (coCondenser; Gao and Callan, 2022)."""

    tokens: int = Field(128, ge=1)
    """Tokens of a span, special tokens left out. A document of fewer than twice as many is cut in half."""


class ClozeConfig(Config):
    """The inverse cloze task (Lee et al., 2019)."""

    keep: float = Field(0.1, ge=0, le=1)
    """How often the document still contains the sentence that asks for it: .1 in Lee et al. (2019), who remove it from
    90 % of the examples."""
