"""Configs of retrievers, rankers and masked language models. They lie apart from the models, so that reading a config
does not import torch."""

import importlib.util
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, UserError

MODULES = "modules.json"
"""The file in a folder of sentence-transformers that lists its modules."""
PAIR = "query: {query} document: {document}"
"""A template of pairs: RankLLaMA's (Ma et al., 2023, section 3.2)."""
BASE = "base.json"
"""The file beside an adapter that says what model it belongs to."""
RANKER_CODE = "maxsim.py"
"""The code in the folder of a ranker with `pooling: maxsim`, for sentence-transformers: a copy of the module here."""


class Pretrained(Config):
    """The pre-trained model that a model is made from."""

    model: str
    """A directory, a model id of the Hugging Face hub, or `package:NAME` for a model inside an installed package."""
    revision: str | None = None
    """The hub's commit or tag. For a directory, any text: change it when the files in the directory change."""
    layers: int | list[int] | None = None
    """Keep the first N layers, or the layers listed (from 0); null keeps all."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of hidden states and attention; null keeps the model's own."""

    def files(self) -> dict[str, Path]:
        """The files of a directory or package, also of the folders in it: of towers, poolings, projections. The hub's
        are not listed: its revision identifies them."""
        try:
            folder = Path(locate_model(self.model))
        except UserError:  # the directory or package was removed
            return {}
        kinds = {".json", ".safetensors", ".bin", ".txt", ".model"}
        inside = sorted(folder.rglob("*")) if folder.is_dir() else []
        return {f"{self.model}/{path.relative_to(folder).as_posix()}": path for path in inside if path.suffix in kinds}


class Adapter(Config):
    """A low-rank adapter (LoRA, Hu et al., 2022): the weights W of a linear layer stay as they are, and a product
    (alpha / rank) B A of two small matrices is added to them, which alone is trained."""

    rank: int = Field(16, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(32.0, gt=0)
    """The product's factor is alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of what A reads."""
    targets: list[str] | None = Field(None, min_length=1)
    """Linear layers by the last part of their names, such as `query` and `value` in BERT, `q_proj` and `v_proj` in
    causal language models. Null for all that the model's layers have."""


class Adaptable(Pretrained):
    """A pre-trained model that is trained as a whole, or frozen under an adapter."""

    adapter: Adapter | None = Field(None, exclude_if=lambda adapter: adapter is None)
    """Train an adapter alone: what is new (a projection, a ranker's head) is trained as a whole and kept beside it.
    Checkpoints and artifacts have no more than that, and name the model, which must stay where it is. Null trains all
    weights."""


class Base(Adaptable):
    """The frozen model that an adapter belongs to, as it lies beside the adapter."""

    folder: str = ""
    """Where the encoder lies inside the model."""
    weights: Literal["pretrained", "random"] = "pretrained"
    seed: int = 0
    attention: Literal["causal", "bidirectional"] | None = None
    sha256: dict[str, str] = {}
    """The digests of the files with its weights; empty for a model of the hub, which `revision` identifies."""


def locate_model(model: str) -> str:
    """The directory of a model, or its id on the hub. UserError if a directory or package does not exist."""
    if model.startswith("package:"):
        name = model.removeprefix("package:").replace("-", "_")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None  # `a.b` would import a
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"model: {model}: no package {name!r} is installed here", code="missing-package")
        folder = Path(next(iter(spec.submodule_search_locations))) / "model"
        if not (folder / "config.json").exists():
            raise UserError(f"model: {model}: the package has no model in {folder}")
        return str(folder)
    if not is_directory(model):
        return model
    path = Path(model).expanduser()
    if not path.exists():
        raise UserError(f"model: {model}: there is no such directory", code="missing-folder")
    # A retriever with two towers has its config.json files in folders of their own.
    if not any((path / name).exists() for name in ("config.json", MODULES)):
        raise UserError(f"model: {model}: the directory has no config.json")
    return str(path.absolute())


def is_directory(model: str) -> bool:
    """Whether a model is named by a directory, which need not be there, and not by a package or an id of the hub."""
    if model.startswith("package:"):
        return False
    return Path(model).expanduser().exists() or model.startswith((".", "/", "~")) or model.count("/") > 1


class TextEncoderConfig(Adaptable):
    """A retriever's config as its kind extends it: how texts are read. The dense kind has a config of its own, whose
    values may be those of a folder."""

    query_tokens: int = Field(32, ge=3)
    """Maximum length of a query in tokens, special tokens included."""
    document_tokens: int = Field(128, ge=3)
    """Maximum length of a document in tokens, special tokens included."""
    query_prompt: str = ""
    """Text put before every query. Its tokens count."""
    document_prompt: str = ""
    """Text put before every document. Its tokens count."""
    seed: int = 0
    """Random seed of new weights."""


class DualEncoderConfig(Adaptable):
    """A retriever made from a pre-trained model: an encoder, or a retriever as sentence-transformers and `export` write
    it.

    What is null is as the retriever's folder has it; of an encoder alone, as `ResolvedDualEncoderConfig` has it.
    """

    kind: Literal["dense"] = "dense"
    towers: Literal["shared", "separate"] | None = None
    """`shared`: one encoder for queries and documents. `separate`: one encoder each, with the same initial weights
    unless the folder has two."""
    pooling: Literal["cls", "mean", "last", "first_last"] | None = None
    """The vector of a text: `cls` takes its first token's, `mean` the mean over its tokens, `last` its last token's.
    `first_last` takes the mean over its tokens of the mean of the first and the last layer's states, a baseline of
    SimCSE and DiffCSE (Gao et al., 2021; Chuang et al., 2022, Table 2.1), with `towers: shared`. Of a causal language
    model, whose tokens see only those before them, null is `last` and `cls` is refused."""
    attention: Literal["causal", "bidirectional"] | None = Field(None, exclude_if=lambda attention: attention is None)
    """Which tokens a token of a causal language model sees: those before it, or all (BehnamGhader et al., 2024,
    LLM2Vec, section 2.1; null `pooling` is then `mean`). Null for what the model's own config says."""
    end_token: str | None = Field(None, exclude_if=lambda token: token is None)
    """A token of the vocabulary put behind every text, whose state `last` then takes: `</s>` for RepLLaMA (Ma et al.,
    2023, section 3.1), `<|endoftext|>` for Qwen3-Embedding, whose tokenizer puts it there already. Null for none but
    the tokenizer's own."""
    similarity: Literal["dot", "cosine"] | None = None
    """How vectors are compared; `cosine` normalizes them to length 1."""
    query_tokens: int | None = Field(None, ge=3)
    """Maximum length of a query in tokens, special tokens included."""
    document_tokens: int | None = Field(None, ge=3)
    """Maximum length of a document in tokens, special tokens included."""
    query_prompt: str = ""
    """Text put before every query (its tokens count): `"query: "` for the E5 models, `"Instruct: TASK\\nQuery:"` for
    Qwen3-Embedding. Must be given where the folder has one: models with other prompts need other token stores."""
    document_prompt: str = ""
    """Text put before every document (its tokens count): `"passage: "` for the E5 models. Must be given where the
    folder has one."""
    projection: int | None = Field(None, ge=1)
    """Width of the vectors, made by a linear layer without bias after pooling (Moiseev et al., 2023, section 2), one
    for each tower. Null for the folder's; where it has none, for the encoder's own width and no such layer."""
    projection_norm: bool | None = Field(None, exclude_if=lambda norm: not norm)
    """Whether the projection has a bias, and layer normalization after it, as ANCE's has (Xiong et al., 2021). Null for
    the folder's; where it says nothing for neither."""
    projection_bias: bool | None = Field(None, exclude_if=lambda bias: not bias)
    """Whether the projection has a bias without layer normalization, as a whitening has. Null for the folder's; where
    it says nothing for none."""
    projections: Literal["apart", "alike"] = "apart"
    """Initial weights of separate towers' projections. `apart`: a random draw each, as layers made one by one have; the
    paper does not say. Queries and documents are then unrelated before training, and it takes a long one to bring them
    together, such as the paper's 20,000 updates. `alike`: the same draw for both, as the encoders too are equal; short
    trainings need it."""
    truncate: int | None = Field(None, ge=1, exclude_if=lambda truncate: truncate is None)
    """Vectors are their first so many dimensions, in training too; cosines are those of the shorter vectors. For models
    that learnt so (Kusupati et al., 2022; `dimensions` of a loss), where a size is settled. Null for the folder's, and
    where it says nothing for whole vectors."""
    share: list[Literal["projection", "embedder"]] = []
    """What separate towers share: the projection (ADE-SPL, Moiseev et al., 2023, Figure 2), the token embeddings."""
    freeze: list[Literal["embedder"]] = []
    """What is not trained: the token embeddings."""
    weights: Literal["pretrained", "random"] = Field("pretrained", exclude_if=lambda weights: weights == "pretrained")
    """`random`: an untrained encoder of the same shape."""
    seed: int = 0
    """Random seed of new weights: the projections', or all."""

    @model_validator(mode="after")
    def _shared_parts_exist(self) -> Self:
        if self.share and self.towers != "separate":
            raise ValueError("share: shared towers share everything already; accepted only with `towers: separate`")
        if "projection" in self.share and self.projection is None:
            raise ValueError("share: there is no projection to share; set its width in `projection`")
        for key in ("projection_norm", "projection_bias"):
            if getattr(self, key) and self.projection is None:
                raise ValueError(f"{key}: there is no projection; set its width in `projection`")
        if self.pooling == "first_last" and self.towers == "separate":
            raise ValueError(
                "pooling: first_last: it is of one encoder; accepted with towers: separate: cls, mean, last"
            )
        if self.projections == "alike" and self.projection is None:
            raise ValueError("projections: there are none; set their width in `projection`")
        return self


class ResolvedDualEncoderConfig(DualEncoderConfig):
    """A retriever's config with a value for whatever was null, as it lies in the retriever's folder."""

    towers: Literal["shared", "separate"] = "shared"
    pooling: Literal["cls", "mean", "last", "first_last"] = "cls"
    similarity: Literal["dot", "cosine"] = "dot"
    query_tokens: int = Field(32, ge=3)
    document_tokens: int = Field(128, ge=3)
    projection_norm: bool = Field(False, exclude_if=lambda norm: not norm)
    projection_bias: bool = Field(False, exclude_if=lambda bias: not bias)


class CrossEncoderConfig(Adaptable):
    """A ranker made from a pre-trained model: an encoder, which gets a new head, or a ranker as sentence-transformers
    and `export` write it, which keeps its own.

    What is null is as the ranker's folder has it; of an encoder alone, as `ResolvedCrossEncoderConfig` has it.
    """

    kind: Literal["cross_encoder"] = "cross_encoder"
    pooling: Literal["cls", "first", "mean", "last", "token", "maxsim"] | None = None
    """What the score is made of. `cls`: the first token's last state, through the model's own classification head
    (BERT's, DeBERTa's and others' have a dense layer before the linear one). `first`: the same state, through a linear
    layer alone. `mean`: the mean over the tokens, through a linear layer. `last`: the last token's state, through a
    linear layer, for causal language models (RankLLaMA; Ma et al., 2023, section 3.2). `token`: how much a causal
    language model expects `true_token` as the next one. `maxsim`: the mean over the query's tokens of the highest
    cosine with a token of the document (Khattab and Zaharia, 2020, but query and document are read together); a
    retriever's encoder scores well so before it has learnt anything as a ranker. Null is `last` for a causal language
    model."""
    true_token: str | None = Field(None, exclude_if=lambda token: token is None)
    """With `pooling: token`, the token whose logit is the score: "yes" for Qwen3-Reranker (its model card), "true" for
    monoT5 (Nogueira et al., 2020)."""
    false_token: str | None = Field(None, exclude_if=lambda token: token is None)
    """With `pooling: token`, the token whose logit is subtracted: "no", "false"; null for none. The difference is the
    log-odds between the two, whose softmax those papers rank by."""
    template: str | None = Field(None, exclude_if=lambda template: template is None)
    """What the model reads of a pair, special tokens written out: `"query: {query} document: {document}</s>"` for
    RankLLaMA. What the tokenizer puts before every text comes before it. Null for the pairs of the tokenizer; those of
    causal language models say nothing of where a query ends."""
    pair_tokens: int | None = Field(None, ge=6)
    """Maximum length of a query with its document in tokens, special tokens and the template's included."""
    seed: int = 0
    """Random seed of a new head's weights."""

    @model_validator(mode="after")
    def _token_and_template(self) -> Self:
        if self.pooling == "token" and self.true_token is None:
            raise ValueError("true_token: the token whose logit is the score must be named with `pooling: token`")
        if self.pooling not in ("token", None) and (self.true_token or self.false_token) is not None:
            raise ValueError("true_token, false_token: accepted only with `pooling: token`")
        fields = re.findall(r"\{\w*\}", self.template or "{query}{document}")
        if fields != ["{query}", "{document}"]:
            raise ValueError(
                f"template: {self.template!r}; accepted: a text with one {{query}} and then one {{document}}"
            )
        return self


class ResolvedCrossEncoderConfig(CrossEncoderConfig):
    """A ranker's config with a value for whatever was null, as it lies in the ranker's folder."""

    pooling: Literal["cls", "first", "mean", "last", "token", "maxsim"] = "cls"
    pair_tokens: int = Field(160, ge=6)


class MaskedLanguageModelConfig(Pretrained):
    """A masked language model: an encoder with a head that predicts tokens (Devlin et al., 2019).

    Pre-training takes it as the generator, or its head as the encoder's. A model without such a head gets a new one.
    """

    kind: Literal["masked_language_model"] = "masked_language_model"
    weights: Literal["pretrained", "random"] = "pretrained"
    """`random`: an untrained model of the same shape."""
    document_tokens: int = Field(128, ge=3)
    """Maximum length of a document in tokens, special tokens included."""
    document_prompt: str = ""
    """Text put before every document: that of the retriever whose token store the model shares. Where the model learns
    from that store, a recipe fills it in."""
    query_prompt: str = ""
    """Text put before every query, likewise."""
    seed: int = 0
    """Random seed of new weights."""
