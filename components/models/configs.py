"""Configs of retrievers, rankers and masked language models.

They are separate from the models, so that loading a config does not import torch.
"""

import importlib.util
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, UserError

MODULES = "modules.json"
"""File in a folder of sentence-transformers that lists its modules."""
PAIR = "query: {query} document: {document}"
"""RankLLaMA's template of pairs (Ma et al., 2023, section 3.2)."""
BASE = "base.json"
"""File next to an adapter that names its base model."""
RANKER_CODE = "maxsim.py"
"""Code for sentence-transformers in the folder of a ranker with `pooling: maxsim`: a copy of the module here."""


class Pretrained(Config):
    """A pre-trained model that a model is made from."""

    model: str
    """Model: a directory, a model id of the Hugging Face hub, or `package:NAME` for a model in an installed package."""
    revision: str | None = None
    """Commit or tag of a hub model. For a directory it is any text. Change it when files in the directory change."""
    layers: int | list[int] | None = None
    """Layers to keep: the number of first layers, or a list of positions from 0. `null`: all layers."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of hidden states and attention. `null`: the model's own."""

    def files(self) -> dict[str, Path]:
        """List the files of a directory or package, including subfolders (towers, poolings, projections).

        Files of a hub model are not listed, because its revision identifies them.
        """
        try:
            folder = Path(locate_model(self.model))
        except UserError:  # the directory or package was removed
            return {}
        kinds = {".json", ".safetensors", ".bin", ".txt", ".model"}
        inside = sorted(folder.rglob("*")) if folder.is_dir() else []
        return {f"{self.model}/{path.relative_to(folder).as_posix()}": path for path in inside if path.suffix in kinds}


class Adapter(Config):
    """A low-rank adapter (LoRA, Hu et al., 2022).

    The weights W of a linear layer stay frozen. The product (alpha / rank) B A of two small matrices is added to them,
    and only A and B are trained.
    """

    rank: int = Field(16, ge=1)
    """Number of rows of A and of columns of B."""
    alpha: float = Field(32.0, gt=0)
    """Scale of the product. Its factor is alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the LoRA matrix A."""
    targets: list[str] | None = Field(None, min_length=1)
    """Linear layers that get an adapter, by the last part of their names, such as `query` and `value` in BERT, or
    `q_proj` and `v_proj` in causal language models. `null`: all linear layers in the model's layers."""


class Adaptable(Pretrained):
    """A pre-trained model that is trained as a whole, or frozen under an adapter."""

    adapter: Adapter | None = Field(None, exclude_if=lambda adapter: adapter is None)
    """Adapter to train instead of the model. New parts (a projection, a ranker's head) are still trained as a whole.
    Checkpoints and artifacts contain only the adapter and the new parts. They name the model, which must not move.
    `null`: all weights are trained."""


class Base(Adaptable):
    """The frozen base model of an adapter, as saved next to the adapter."""

    folder: str = ""
    """Folder of the encoder inside the model."""
    weights: Literal["pretrained", "random"] = "pretrained"
    seed: int = 0
    attention: Literal["causal", "bidirectional"] | None = None
    sha256: dict[str, str] = {}
    """Digests of the files with the weights. Empty for a hub model, which `revision` identifies."""


def locate_model(model: str) -> str:
    """Return the directory of a model, or its id on the hub. Raise UserError if the directory or package is missing."""
    if model.startswith("package:"):
        name = model.removeprefix("package:").replace("-", "_")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None  # `a.b` would import a
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"model: {model}: the package {name!r} is not installed here.", code="missing-package")
        folder = Path(next(iter(spec.submodule_search_locations))) / "model"
        if not (folder / "config.json").exists():
            raise UserError(f"model: {model}: the package has no model in {folder}.", code="no-model")
        return str(folder)
    if not is_directory(model):
        return model
    path = Path(model).expanduser()
    if not path.exists():
        raise UserError(f"model: {model}: there is no such directory", code="missing-folder")
    # A retriever with two towers has its config.json files in subfolders.
    if not any((path / name).exists() for name in ("config.json", MODULES)):
        raise UserError(
            f"model: {model}: the directory has no config.json. Use a directory with a saved model.", code="no-model"
        )
    return str(path.absolute())


def is_directory(model: str) -> bool:
    """Return True if a model is named by a directory, which may be missing, and not by a package or a hub id."""
    if model.startswith("package:"):
        return False
    return Path(model).expanduser().exists() or model.startswith((".", "/", "~")) or model.count("/") > 1


class TextEncoderConfig(Adaptable):
    """The base of retriever configs, which each kind extends. The dense kind does not use it, because its values may
    come from a folder."""

    query_tokens: int = Field(32, ge=3)
    """Maximum length of a query in tokens, including special tokens."""
    document_tokens: int = Field(128, ge=3)
    """Maximum length of a document in tokens, including special tokens."""
    query_prompt: str = ""
    """Text before every query. Its tokens count towards `query_tokens`."""
    document_prompt: str = ""
    """Text before every document. Its tokens count towards `document_tokens`."""
    seed: int = 0
    """Random seed of new weights."""


class DualEncoderConfig(Adaptable):
    """A retriever made from a pre-trained model.

    The model is an encoder, or a retriever in the format of sentence-transformers and `export`. Keys that are `null`
    have the value of the retriever's folder. If the model is only an encoder, they have the defaults of
    `ResolvedDualEncoderConfig`.
    """

    kind: Literal["dense"] = "dense"
    towers: Literal["shared", "separate"] | None = None
    """Encoders. `shared`: one encoder for queries and documents. `separate`: an encoder for each side. They have equal
    initial weights, unless the folder has two encoders."""
    pooling: Literal["cls", "mean", "last", "first_last"] | None = None
    """Pooling of token states into the vector of a text. `cls`: the first token's state. `mean`: the mean over tokens.
    `last`: the last token's state. `first_last`: the mean over tokens of the first and the last layer's states, a
    baseline of SimCSE and DiffCSE (Gao et al., 2021; Chuang et al., 2022, Table 2.1), which needs `towers: shared`. For
    a causal language model, `null` means `last`, and `cls` is refused, because its first token sees no other token."""
    attention: Literal["causal", "bidirectional"] | None = Field(None, exclude_if=lambda attention: attention is None)
    """Attention of a causal language model. `causal`: a token sees the tokens before it. `bidirectional`: a token sees
    all tokens (LLM2Vec; BehnamGhader et al., 2024, section 2.1), and `pooling: null` then means `mean`. `null`: as the
    model's config says."""
    end_token: str | None = Field(None, exclude_if=lambda token: token is None)
    """Token of the vocabulary to add after every text. `pooling: last` then takes its state. For example `</s>` for
    RepLLaMA (Ma et al., 2023, section 3.1), or `<|endoftext|>` for Qwen3-Embedding, whose tokenizer already adds it.
    `null`: only the tokenizer's own special tokens."""
    similarity: Literal["dot", "cosine"] | None = None
    """Comparison of vectors. `dot`: inner product. `cosine`: inner product after normalizing vectors to length 1."""
    query_tokens: int | None = Field(None, ge=3)
    """Maximum length of a query in tokens, including special tokens."""
    document_tokens: int | None = Field(None, ge=3)
    """Maximum length of a document in tokens, including special tokens."""
    query_prompt: str = ""
    """Text before every query. Its tokens count towards `query_tokens`. For example `"query: "` for the E5 models, or
    `"Instruct: TASK\\nQuery:"` for Qwen3-Embedding. If the model's folder has a prompt, repeat it here, because models
    with different prompts need different token stores."""
    document_prompt: str = ""
    """Text before every document. Its tokens count towards `document_tokens`. For example `"passage: "` for the E5
    models. If the model's folder has a prompt, repeat it here."""
    projection: int | None = Field(None, ge=1)
    """Width of the vectors after a linear layer without bias that follows pooling (Moiseev et al., 2023, section 2).
    Each tower has its own. `null`: as in the folder. If the folder has no projection, vectors have the encoder's
    width."""
    projection_norm: bool | None = Field(None, exclude_if=lambda norm: not norm)
    """Bias of the projection, and layer normalization after it, as in ANCE (Xiong et al., 2021). `null`: as in the
    folder. If the folder does not say, neither is added."""
    projection_bias: bool | None = Field(None, exclude_if=lambda bias: not bias)
    """Bias of the projection without layer normalization, as in a whitening. `null`: as in the folder. If the folder
    does not say, there is no bias."""
    projections: Literal["apart", "alike"] = "apart"
    """Initial weights of the projections of separate towers. `apart`: different random weights. Vectors of queries and
    documents are then unrelated before training, which must be long, such as the paper's 20,000 updates. `alike`: the
    same random weights for both, which short trainings need. The paper does not say which it uses."""
    truncate: int | None = Field(None, ge=1, exclude_if=lambda truncate: truncate is None)
    """Number of first dimensions to which vectors are cut, in training too. Cosines are those of the shorter vectors.
    Use it with models that were trained for truncation (Kusupati et al., 2022; `dimensions` of a loss). `null`: as in
    the folder. If the folder does not say, vectors are not cut."""
    share: list[Literal["projection", "embedder"]] = []
    """Parts that separate towers share. `projection`: the projection (ADE-SPL; Moiseev et al., 2023, Figure 2).
    `embedder`: the token embeddings."""
    freeze: list[Literal["embedder"]] = []
    """Parts that are not trained. `embedder`: the token embeddings."""
    weights: Literal["pretrained", "random"] = Field("pretrained", exclude_if=lambda weights: weights == "pretrained")
    """Initial weights. `random`: an untrained encoder of the same shape."""
    seed: int = 0
    """Random seed of new weights: of the projections, or of all weights with `weights: random`."""

    @model_validator(mode="after")
    def _shared_parts_exist(self) -> Self:
        if self.share and self.towers != "separate":
            raise ValueError("share: `towers: shared` shares everything already. Use `share` with `towers: separate`.")
        if "projection" in self.share and self.projection is None:
            raise ValueError("share: there is no projection to share. Set its width in `projection`.")
        for key in ("projection_norm", "projection_bias"):
            if getattr(self, key) and self.projection is None:
                raise ValueError(f"{key}: there is no projection. Set its width in `projection`.")
        if self.pooling == "first_last" and self.towers == "separate":
            raise ValueError(
                "pooling: first_last needs `towers: shared`. With `towers: separate` use cls, mean or last."
            )
        if self.projections == "alike" and self.projection is None:
            raise ValueError("projections: there is no projection. Set its width in `projection`.")
        return self


class ResolvedDualEncoderConfig(DualEncoderConfig):
    """A retriever's config in which all null keys are resolved, as saved in the retriever's folder."""

    towers: Literal["shared", "separate"] = "shared"
    pooling: Literal["cls", "mean", "last", "first_last"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    query_tokens: int = Field(32, ge=3)
    document_tokens: int = Field(128, ge=3)
    projection_norm: bool = Field(False, exclude_if=lambda norm: not norm)
    projection_bias: bool = Field(False, exclude_if=lambda bias: not bias)
    matryoshka: list[int] | None = Field(None, exclude_if=lambda sizes: sizes is None)
    """Sizes that vectors can be cut to, because the last training's losses had them as `dimensions`. If None, the model
    was not trained to be cut."""


class CrossEncoderConfig(Adaptable):
    """A ranker made from a pre-trained model.

    The model is an encoder, which gets a new head, or a ranker in the format of sentence-transformers and `export`,
    which keeps its head. Keys that are `null` have the value of the ranker's folder. If the model is only an encoder,
    they have the defaults of `ResolvedCrossEncoderConfig`.
    """

    kind: Literal["cross_encoder"] = "cross_encoder"
    pooling: Literal["cls", "first", "mean", "last", "token", "maxsim"] | None = None
    """Computation of the score. `cls`: the first token's last state, through the model's classification head, which in
    BERT, DeBERTa and others has a dense layer before the linear one. `first`: the first token's last state, through a
    linear layer. `mean`: the mean over tokens, through a linear layer. `last`: the last token's state, through a linear
    layer, for causal language models (RankLLaMA; Ma et al., 2023, section 3.2). `token`: the logit of `true_token` as
    the next token, for causal language models. `maxsim`: the mean over the query's tokens of the highest cosine with a
    token of the document (Khattab and Zaharia, 2020, but query and document are read together). A retriever's encoder
    scores well in this way even before it is trained as a ranker. `null`: `last` for a causal language model."""
    true_token: str | None = Field(None, exclude_if=lambda token: token is None)
    """Token whose logit is the score, with `pooling: token`. For example "yes" for Qwen3-Reranker (its model card), or
    "true" for monoT5 (Nogueira et al., 2020)."""
    false_token: str | None = Field(None, exclude_if=lambda token: token is None)
    """Token whose logit is subtracted, with `pooling: token`. For example "no" or "false". The difference is the
    log-odds of the two tokens. It ranks like the softmax over both in those papers. `null`: nothing is subtracted."""
    label: int | str | None = Field(None, exclude_if=lambda label: label is None)
    """Label whose logit is the score, for a classifier with several labels: its number from 0, or its name in the
    model's config. `null`: the classifier has one label."""
    other_label: int | str | None = Field(None, exclude_if=lambda label: label is None)
    """Label whose logit is subtracted. With two labels, the difference ranks like the softmax over both. `null`:
    nothing is subtracted."""
    template: str | None = Field(None, exclude_if=lambda template: template is None)
    """Template of a pair, including special tokens. For example `"query: {query} document: {document}</s>"` for
    RankLLaMA. Tokens that the tokenizer puts before every text are added before it. `null`: the tokenizer's own form of
    pairs. For causal language models this form does not mark the end of the query."""
    pair_tokens: int | None = Field(None, ge=6)
    """Maximum length of a query with its document in tokens, including special tokens and the template."""
    seed: int = 0
    """Random seed of a new head's weights."""

    @model_validator(mode="after")
    def _token_and_template(self) -> Self:
        if self.pooling == "token" and self.true_token is None:
            raise ValueError("true_token: `pooling: token` needs it. Set it to the token whose logit is the score.")
        if self.pooling not in ("token", None) and (self.true_token or self.false_token) is not None:
            raise ValueError("true_token and false_token need `pooling: token`. Set it, or remove them.")
        if self.label is not None and (self.pooling not in ("cls", "last", None) or self.adapter is not None):
            raise ValueError("label: only a classifier has labels. Use `pooling: null` and `adapter: null`.")
        if self.other_label is not None and self.label in (None, self.other_label):
            raise ValueError("other_label: it is subtracted from the logit of `label`. Set `label` to another label.")
        fields = re.findall(r"\{\w*\}", self.template or "{query}{document}")
        if fields != ["{query}", "{document}"]:
            raise ValueError(
                f"template: got {self.template!r}. Write a text with one {{query}} followed by one {{document}}."
            )
        return self


class ResolvedCrossEncoderConfig(CrossEncoderConfig):
    """A ranker's config in which all null keys are resolved, as saved in the ranker's folder."""

    pooling: Literal["cls", "first", "mean", "last", "token", "maxsim"] = "cls"
    pair_tokens: int = Field(160, ge=6)


class MaskedLanguageModelConfig(Pretrained):
    """A masked language model: an encoder with a head that predicts tokens (Devlin et al., 2019).

    Pre-training uses it as the generator, or its head as the encoder's head. A model without a head gets a new one.
    """

    kind: Literal["masked_language_model"] = "masked_language_model"
    weights: Literal["pretrained", "random"] = "pretrained"
    """Initial weights. `random`: an untrained model of the same shape."""
    document_tokens: int = Field(128, ge=3)
    """Maximum length of a document in tokens, including special tokens."""
    document_prompt: str = ""
    """Text before every document. It must be the prompt of the retriever whose token store the model reads. If the
    model is trained on that store, the recipe sets the prompt."""
    query_prompt: str = ""
    """Text before every query. The same rule applies."""
    seed: int = 0
    """Random seed of new weights."""
