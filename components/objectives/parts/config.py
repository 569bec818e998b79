"""Configs of pre-training on documents. They are separate from the objectives because these import torch."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.models.configs import DualEncoderConfig


class MaskConfig(Config):
    """Masking of a text's tokens."""

    unit: Literal["words", "tokens"] = "words"
    """Unit of masking. `words`: whole words, which needs a WordPiece tokenizer. `tokens`: each token by itself."""
    masked_as: Literal["mask", "bert"] = "mask"
    """Replacement of masked tokens. `mask`: always the mask token, as in SimLM's released script. `bert`: 80 % become
    the mask token, 10 % become a random token, and 10 % stay (Devlin et al., 2019). This is the default of SimLM's and
    Condenser's code."""


class TokenPredictionConfig(MaskConfig):
    """Masking of a text's tokens, and averaging of the loss."""

    average: Literal["texts", "tokens"] = "texts"
    """Averaging of the loss. `texts`: the mean over each text's tokens, and then over texts (Wang et al., 2023, Eq. 2).
    `tokens`: the mean over all tokens of the batch, so that long texts have more weight, as in the public code. If
    `accumulate` splits the batch into parts, `tokens` takes the mean of each part, and then over parts."""


class MaskedLanguageModelingConfig(TokenPredictionConfig):
    """Masked language modelling (Devlin et al., 2019)."""

    rate: float = Field(0.3, gt=0, le=1)
    """Share of a text's tokens that are masked. 30 % in Wang et al. (2023, Table 7)."""


class BottleneckConfig(TokenPredictionConfig):
    """Pre-training of an encoder with a bottleneck. The defaults are SimLM's (Wang et al., 2023).

    The variants of the paper's Table 7 are these options and losses:

    - SimLM: the defaults; losses over `encoder` and `decoder`, and over `generator` to train it too (Table 12)
    - Enc-Dec MLM: `task: masked`; losses over `encoder` and `decoder`
    - Condenser: `task: masked, masked_as: bert, decoder_rate: 0.3, decoder_reads: states, decoder_weights: random`;
      losses over `encoder` and `decoder`
    - MLM: `task: masked, masked_as: bert`; a loss over `encoder` (or the objective `mlm`)
    - Enc-Dec RTD: `task: detection`; losses over `encoder` and `decoder`
    - AutoEncoder: `task: masked, encoder_rate: 0, decoder_rate: 1`; a loss over `decoder`
    """

    task: Literal["replaced", "masked", "detection"] = "replaced"
    """Prediction task. `replaced`: a generator replaces masked tokens by samples, and the original tokens are predicted
    at all places. `masked`: masked tokens become mask tokens and are predicted, without a generator. `detection`: as
    `replaced`, but the prediction is whether a token was replaced (Clark et al., 2020)."""
    encoder_rate: float = Field(0.3, ge=0, le=1)
    """Share of the tokens that are masked for the encoder."""
    decoder_rate: float = Field(0.5, ge=0, le=1)
    """Share of the tokens that are masked for the decoder. These include all tokens masked for the encoder."""
    decoder_layers: int = Field(2, ge=1)
    """Number of layers of the decoder."""
    decoder_weights: Literal["last", "random"] = "last"
    """Initial weights of the decoder. `last`: the encoder's last layers. `random`: random, as in Condenser's head."""
    decoder_reads: Literal["tokens", "states"] = "tokens"
    """Inputs of the decoder, in addition to the vector. `tokens`: the embeddings of its own masked text. `states`: the
    states of the encoder's middle layer (Gao and Callan, 2021)."""
    generator_dropout: bool = False
    """Dropout of a frozen generator while it samples. The public code leaves it on."""

    @property
    def generates(self) -> bool:
        """True if a generator is needed."""
        return self.task != "masked"

    def unmasked(self, view: str) -> str:
        """Describe why a loss over a view without predictions is wrong. Return "" if the view has predictions."""
        rate = {"encoder": self.encoder_rate, "decoder": self.decoder_rate}.get(view)
        if self.task == "masked" and rate == 0:
            return f"over: {view}: no tokens are masked for this view. Set `{view}_rate` above 0, or remove the loss."
        return ""

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        if self.decoder_rate < self.encoder_rate:
            raise ValueError(
                f"decoder_rate: {self.decoder_rate:g} is below encoder_rate ({self.encoder_rate:g}), but tokens that "
                "are masked for the encoder are masked for the decoder too. Use at least the encoder_rate."
            )
        if self.decoder_reads == "states" and (self.task != "masked" or self.decoder_rate != self.encoder_rate):
            raise ValueError(
                "decoder_reads: the encoder's states need `task: masked` and a decoder_rate equal to encoder_rate. Set "
                "both, or use `decoder_reads: tokens`."
            )
        if self.generator_dropout and not self.generates:
            raise ValueError("generator_dropout: `task: masked` uses no generator. Set `generator_dropout: false`.")
        if self.task != "masked" and self.masked_as != "mask":
            raise ValueError(
                "masked_as: the generator samples at mask tokens. Use `masked_as: mask`, or `task: masked`."
            )
        return self


class SpanConfig(Config):
    """Two spans of each document (coCondenser; Gao and Callan, 2022)."""

    tokens: int = Field(128, ge=1)
    """Number of tokens in a span, without special tokens. `document_tokens` limits it too. A document shorter than two
    spans is cut in half."""


class ClozeConfig(Config):
    """Pairs of a query and a document to retrieve, both made from one document."""

    pairs: Literal["sentences", "crops"] = Field("sentences", exclude_if=lambda pairs: pairs == "sentences")
    """Kind of pairs. `sentences`: a sentence is the query for the rest of its document, the inverse cloze task (Lee et
    al., 2019). `crops`: two random spans of the document, which may overlap, each 5 to 50 % of its length (Contriever;
    Izacard et al., 2022)."""
    keep: float = Field(0.1, ge=0, le=1)
    """Share of the examples whose document keeps the query's sentence. Lee et al. (2019) remove it from 90 %, which is
    .1 here. `crops` ignore this key."""


class ProjectorConfig(Config):
    """A projector of vectors before the contrastive loss. It is used in training only."""

    kind: Literal["batchnorm", "tanh", "none"]
    """Layers of the projector. `batchnorm`: two layers with BatchNorm over the batches of all workers (DiffCSE; Chuang
    et al., 2022, Appendix A.1). `tanh`: one layer, as in SimCSE (Gao et al., 2021) and in DiffCSE without BatchNorm
    (Table 2.5). `none`: no projector."""


Edit = Literal["replace", "insert", "delete"]


class EditConfig(MaskConfig):
    """Editing of a text's copy (Chuang et al., 2022, sections 2.3 and 2.5.4).

    `unit` and `masked_as` apply to replaced tokens. Inserted tokens start as mask tokens.
    """

    # Defaults are excluded so that the fingerprints of trainings from before these keys stay the same.
    edits: list[Edit] = Field(["replace"], min_length=1, exclude_if=lambda edits: edits == ["replace"])
    """Kinds of edits. `replace`: a generator replaces masked tokens. `insert`: mask tokens are inserted at random
    places, and the generator replaces them. A text that becomes too long loses tokens at its end. `delete`: random
    tokens are deleted, but never all. If there are several kinds, each copy has one of them, drawn with equal
    probability at each visit. The paper combines all three (Table 2.4), but does not say how."""
    rate: float = Field(0.3, gt=0, le=1)
    """Share of the tokens that are masked for the generator to replace. Exactly this share of each text is masked,
    rounded to whole tokens. The released code masks each token independently with this probability."""
    rate_of: Literal["text", "all"] = "text"
    """Tokens that `rate` is a share of. `text`: the tokens of the text, as in the paper and the released code. `all`:
    the special tokens too, as in SimLM's code. Special tokens are never masked."""
    insertion_rate: float = Field(0.15, gt=0, le=1, exclude_if=lambda rate: rate == 0.15)
    """Number of inserted tokens, as a share of the text's tokens."""
    deletion_rate: float = Field(0.15, gt=0, lt=1, exclude_if=lambda rate: rate == 0.15)
    """Share of the text's tokens that are deleted."""
    replaced_by: Literal["samples", "argmax"] = "samples"
    """The generator's choice of tokens. `samples`: samples from its softmax, at masked tokens. `argmax`: its most
    probable token, at every place except the first, whether masked or not, and including special tokens at the end, as
    in the released code."""
    generator_dropout: bool = False
    """Dropout of the generator while it chooses tokens. The released code leaves it on."""

    @property
    def generates(self) -> bool:
        """True if a generator is needed. Deletions alone need none."""
        return self.edits != ["delete"]

    @model_validator(mode="after")
    def _edits_differ(self) -> Self:
        if len(set(self.edits)) < len(self.edits):
            raise ValueError(f"edits: got {self.edits}, in which a kind is repeated. Name each kind once.")
        return self


class AugmentationConfig(EditConfig):
    """Edited copies of the texts as additional examples of SimCSE (Chuang et al., 2022, section 2.8).

    Each text has one copy. All texts of the batch are compared with the second views and with the copies. Table 2.13
    has `edits: [replace]`, `[insert]` and `[delete]`, each in both roles.
    """

    role: Literal["positive", "negative"]
    """Role of a copy for its own text. `positive`: a second positive, with the weight of the second view. `negative`: a
    hard negative. For the remaining texts of the batch a copy is always a negative."""
    rate: float = Field(0.15, gt=0, le=1)
    """Share of the tokens that are masked for the generator to replace."""


class DifferenceConfig(EditConfig):
    """Difference prediction: given a text's vector, a discriminator tells where an edited copy differs from the text.

    The defaults are those of DiffCSE's paper (Chuang et al., 2022, section 2.3). For the released code set `unit:
    tokens, replaced_by: argmax, places: all, masked_as: bert, generator_dropout: true`.

    The paper's lambda is the weight of the loss term: .005 for similarity and .05 for transfer (Tables A.1 and A.2).
    These values were found with the released mean over all positions, including padding, where the loss is soon near 0.
    The mean over a text's tokens is larger. So multiply lambda by the share of positions that hold text: lambda .005
    becomes .003 for texts of 20 tokens in batches 32 wide.

    The paper's equation is a sum over all tokens of the batch. To get it, set `average: texts`, and for the loss `over:
    sum` and `reduce: sum`, and divide the weight by the number of tokens in a batch.
    """

    task: Literal["detection", "masked", "replaced"] = "detection"
    """Prediction task. `detection`: tell, for each token of the copy, whether it was replaced, was inserted, or follows
    a deleted token. The alternatives of Table 2.3: `masked` predicts the tokens at mask tokens (conditional MLM,
    without a generator). `replaced` predicts the original token at all places of the copy (conditional corrective LM,
    without COCO-LM's copy mechanism)."""
    edits_of: Literal["same", "next", "both"] = Field("same", exclude_if=lambda edits_of: edits_of == "same")
    """Text whose edited copy is read with a text's vector (Table 2.3). `same`: the text itself. `next`: the next text
    of the collection, and the first after the last. `both`: each of the two separately with the same vector, and the
    tokens of both in one loss. The paper has no equation for this."""
    average: Literal["texts", "tokens"] = "tokens"
    """Averaging of the loss. `texts`: over each text's tokens, and then over texts. `tokens`: over all tokens of the
    batch."""
    places: Literal["text", "all"] = "text"
    """Places of `detection`. `text`: tokens of the text. `all`: also special tokens, and padding up to the batch's
    longest text. Both count as not replaced. This is the released mean, which depends on that length."""

    @property
    def generates(self) -> bool:
        """True if a generator is needed."""
        return self.task != "masked" and super().generates

    @model_validator(mode="after")
    def _task_fits(self) -> Self:
        if self.places == "all" and (self.task, self.average) != ("detection", "tokens"):
            raise ValueError(
                "places: got all, which needs `task: detection` and `average: tokens`. Set both, or use `places: text`."
            )
        if self.task != "detection" and self.edits != ["replace"]:
            raise ValueError(
                f"edits: got {self.edits}, but inserted tokens have no original token to predict. Use `edits: "
                "[replace]`, or `task: detection`."
            )
        return self


def not_one_encoder(retriever: DualEncoderConfig) -> str:
    """Describe why a retriever cannot be trained as a sentence encoder. Return "" if it can."""
    for key, accepted in {"towers": "shared", "projection": None}.items():
        if (value := getattr(retriever, key)) not in (None, accepted):  # null means as in the model
            return (
                f"{key}: got {value}, but a sentence encoder is one tower without a projection. Use `{key}: "
                f"{accepted or 'null'}`."
            )
    return ""
