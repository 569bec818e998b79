"""Configs of pre-training on documents. They are apart from the objectives, which import torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.models.configs import DualEncoderConfig


class MaskConfig(Config):
    """Masking of a text's tokens."""

    unit: Literal["words", "tokens"] = "words"
    """What is masked as a whole. `words` needs a WordPiece tokenizer; `tokens` takes each token by itself."""
    masked_as: Literal["mask", "bert"] = "mask"
    """What masked tokens become. `mask`: all become the mask token, as SimLM's released script has it. `bert`: 80 %
    become the mask token, 10 % a random token, and 10 % stay (Devlin et al., 2019), the default of its code and of
    Condenser's."""


class TokenPredictionConfig(MaskConfig):
    """Masking of a text's tokens, and averaging of predictions."""

    average: Literal["texts", "tokens"] = "texts"
    """What counts alike. `texts`: the mean over a text's tokens, then over texts (Wang et al., 2023, Eq. 2). `tokens`:
    the mean over all tokens of the batch, as in the public code, where a long text weighs more; of a batch that is
    worked on in parts (`accumulate`) of each part by itself, and then over the parts."""


class MaskedLanguageModelingConfig(TokenPredictionConfig):
    """Masked language modelling (Devlin et al., 2019)."""

    rate: float = Field(0.3, gt=0, le=1)
    """Share of a text's tokens that are masked; 30 % in Wang et al. (2023), Table 7."""


class BottleneckConfig(TokenPredictionConfig):
    """Pre-training an encoder whose vector a shallow decoder needs. The defaults are SimLM's (Wang et al., 2023).

    The variants of its Table 7, beside the views of their losses:

    - SimLM: the defaults; `encoder`, `decoder`, and `generator` too to train the generator (Table 12)
    - Enc-Dec MLM: `task: masked`; `encoder`, `decoder`
    - Condenser: `task: masked, masked_as: bert, decoder_rate: 0.3, decoder_reads: states, decoder_weights: random`;
      `encoder`, `decoder`
    - MLM: `task: masked, masked_as: bert`; `encoder` (or the objective `mlm`)
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

    @property
    def generates(self) -> bool:
        """Whether a generator is asked."""
        return self.task != "masked"

    def unmasked(self, view: str) -> str:
        """Describe why a loss over a view without predictions is wrong. Return "" if the view has predictions."""
        rate = {"encoder": self.encoder_rate, "decoder": self.decoder_rate}.get(view)
        if self.task == "masked" and rate == 0:
            return f"over: {view}: nothing is masked there; accepted: a higher {view}_rate"
        return ""

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        if self.decoder_rate < self.encoder_rate:
            raise ValueError(
                "decoder_rate: what is masked for the encoder is for the decoder too; accepted: at least encoder_rate"
            )
        if self.decoder_reads == "states" and (self.task != "masked" or self.decoder_rate != self.encoder_rate):
            raise ValueError(
                "decoder_reads: states: they are of what the encoder reads; accepted only with `task: "
                "masked` and decoder_rate as encoder_rate"
            )
        if self.generator_dropout and not self.generates:
            raise ValueError("generator_dropout: no generator is asked with `task: masked`; accepted: false")
        if self.task != "masked" and self.masked_as != "mask":
            raise ValueError("masked_as: the generator samples at mask tokens; accepted: mask, or `task: masked`")
        return self


class SpanConfig(Config):
    """Two spans of each document (coCondenser; Gao and Callan, 2022)."""

    tokens: int = Field(128, ge=1)
    """Tokens of a span, special tokens left out, and at most what `document_tokens` reads. A document of fewer than
    twice as many is cut in half."""


class ClozeConfig(Config):
    """Pairs that are made of a document: what asks for it, and what is to be found."""

    pairs: Literal["sentences", "crops"] = Field("sentences", exclude_if=lambda pairs: pairs == "sentences")
    """`sentences`: a sentence asks for the rest of its document, the inverse cloze task (Lee et al., 2019). `crops`:
    two random spans of it, which may overlap, each of 5 to 50 % of its length (Contriever; Izacard et al., 2022)."""
    keep: float = Field(0.1, ge=0, le=1)
    """How often the document still contains the sentence that asks for it: .1 in Lee et al. (2019), who remove it from
    90 % of the examples. `crops` do not read it."""


class ProjectorConfig(Config):
    """What vectors pass before a contrastive loss compares them, in training alone."""

    kind: Literal["batchnorm", "tanh", "none"]
    """`batchnorm`: two layers with BatchNorm over the batch of all workers (DiffCSE; Chuang et al., 2022, Appendix
    A.1). `tanh`: one layer, as SimCSE's (Gao et al., 2021), and DiffCSE's without BatchNorm (Table 2.5). `none`:
    nothing."""


Edit = Literal["replace", "insert", "delete"]


class EditConfig(MaskConfig):
    """How a copy of a text is edited (Chuang et al., 2022, sections 2.3 and 2.5.4). `unit` and `masked_as` are for
    tokens that are replaced; those that are inserted begin as mask tokens."""

    # What is left as it was before there were other edits leaves trainings of then what they are.
    edits: list[Edit] = Field(["replace"], min_length=1, exclude_if=lambda edits: edits == ["replace"])
    """`replace`: a generator replaces masked tokens. `insert`: mask tokens are put in at random places, and the
    generator makes tokens of them; a text that gets too long loses tokens at its end. `delete`: random tokens are taken
    out, but never all. Of several kinds each copy has one, drawn with equal chance for each visit; the paper combines
    all three (Table 2.4) and does not say how."""
    rate: float = Field(0.3, gt=0, le=1)
    """Share of the tokens that are masked for the generator to replace. Of each text so many are, rounded, where the
    released code masks each token by itself with this probability."""
    rate_of: Literal["text", "all"] = "text"
    """What `rate` is a share of. `text`: the tokens of the text, as in the paper and the released code. `all`: the
    special tokens too, as in SimLM's. Special tokens are never masked."""
    insertion_rate: float = Field(0.15, gt=0, le=1, exclude_if=lambda rate: rate == 0.15)
    """Tokens that are put in, as a share of the text's."""
    deletion_rate: float = Field(0.15, gt=0, lt=1, exclude_if=lambda rate: rate == 0.15)
    """Share of the text's tokens that are taken out."""
    replaced_by: Literal["samples", "argmax"] = "samples"
    """What the generator puts in. `samples`: draws from its softmax at masked tokens. `argmax`: its most probable
    token; where tokens are replaced at every place but the first, masked or not, special tokens at the end included, as
    in the released code."""
    generator_dropout: bool = False
    """Whether the generator has dropout, which the released code leaves on."""

    @property
    def generates(self) -> bool:
        """Whether a generator is needed: tokens are taken out without one."""
        return self.edits != ["delete"]

    @model_validator(mode="after")
    def _edits_differ(self) -> Self:
        if len(set(self.edits)) < len(self.edits):
            raise ValueError(f"edits: {self.edits}: one is there twice; accepted: each kind once")
        return self


class AugmentationConfig(EditConfig):
    """Edited copies of the texts as further examples in the batch of SimCSE (Chuang et al., 2022, section 2.8).

    Each text has one copy, which all texts of the batch see beside its second view. Table 2.13 has `edits: [replace]`,
    `[insert]` and `[delete]`, each as either.
    """

    role: Literal["positive", "negative"]
    """What a copy is to its own text. `positive`: a further positive, of equal weight with the second view.
    `negative`: a hard negative. To the other texts it is a negative."""
    rate: float = Field(0.15, gt=0, le=1)
    """Share of the tokens that are masked for the generator to replace."""


class DifferenceConfig(EditConfig):
    """A discriminator that sees a text's vector, and tells where an edited copy of the text differs from it. The
    defaults are those of DiffCSE's paper (Chuang et al., 2022, section 2.3).

    As released: `unit: tokens, replaced_by: argmax, places: all, masked_as: bert, generator_dropout: true`.

    The paper's lambda is the weight of the loss term, .005 for similarity and .05 for transfer (Tables A.1 and A.2).
    These numbers were found with the released mean over all positions, padding included, whose loss is soon near 0. The
    mean over tokens of the text is larger by the number of positions over that of tokens, so that the weight here is
    lambda times the share of positions that hold text: .003 for .005 and texts of 20 tokens in batches 32 wide. The
    paper's equation has a sum over all tokens of the batch: `average: texts`, and for the loss `over: sum` and
    `reduce: sum`, with this weight divided by the number of tokens in a batch.
    """

    task: Literal["detection", "masked", "replaced"] = "detection"
    """`detection`: whether each token of the edited text is another than before; whether it was inserted; whether the
    token before it was taken out. Table 2.3's rivals: `masked`, the tokens at mask tokens (conditional MLM; no
    generator); `replaced`, the tokens before at all places of the edited text (conditional corrective LM, without the
    copy mechanism of COCO-LM)."""
    edits_of: Literal["same", "next", "both"] = Field("same", exclude_if=lambda edits_of: edits_of == "same")
    """Whose edited copy is read behind a text's vector (Table 2.3). `same`: the text's own. `next`: that of the next
    text of the collection; after the last comes the first. `both`: either one by itself, behind the same vector, with
    the tokens of both in one loss. The paper has no equation for this."""
    average: Literal["texts", "tokens"] = "tokens"
    """What counts alike: `texts`, or `tokens`, the mean over all tokens of the batch."""
    places: Literal["text", "all"] = "text"
    """Where `detection` is asked for. `text`: at tokens of the text. `all`: at special tokens and at padding up to
    the batch's longest text too, which count as not replaced; the released mean, that depends on that length."""

    @property
    def generates(self) -> bool:
        """Whether a generator is needed."""
        return self.task != "masked" and super().generates

    @model_validator(mode="after")
    def _task_fits(self) -> Self:
        if self.places == "all" and (self.task, self.average) != ("detection", "tokens"):
            raise ValueError("places: all: the released mean; accepted only with `task: detection, average: tokens`")
        if self.task != "detection" and self.edits != ["replace"]:
            raise ValueError(
                f"edits: {self.edits}: what is inserted was nothing before; accepted: [replace], or `task: detection`"
            )
        return self


def not_one_encoder(retriever: DualEncoderConfig) -> str:
    """Describe why a retriever is no encoder of sentences. Return "" if it is one."""
    for key, accepted in {"towers": "shared", "projection": None}.items():
        if (value := getattr(retriever, key)) not in (None, accepted):  # null is what the model has
            return (
                f"{key}: {value}: one encoder of sentences is trained, without a projection; accepted: "
                f"{accepted or 'null'}"
            )
    return ""
