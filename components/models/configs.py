"""What retrievers and rankers begin from. Apart from the models themselves, so that reading a config is quick."""

import importlib.util
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from components.config import Config, UserError

OWN = "sparring.json"
"""Beside a saved model: the config it was begun from."""


class Pretrained(Config):
    """Where a model begins."""

    model: str
    """A directory, a model hub's id, or `package:NAME` for a model that an installed package carries."""
    revision: str | None = None
    """The hub's commit or tag. Of a directory any word: another one where what is in it has changed."""
    layers: int | list[int] | None = None
    """Keep the first so many layers, or just those listed; null for all."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of hidden states and attention; null for the model's own."""

    def files(self) -> dict[str, Path]:
        """Those of a directory or package; what a hub keeps is pinned by its revision."""
        try:
            folder = Path(place(self.model))
        except UserError:  # there is none any more
            return {}
        kinds = {".json", ".safetensors", ".bin", ".txt", ".model"}
        inside = sorted(folder.iterdir()) if folder.is_dir() else []
        return {f"{self.model}/{path.name}": path for path in inside if path.suffix in kinds}


def place(model: str) -> str:
    """Where a model is: a directory, or a hub's id. UserError where a directory or package is not there."""
    if model.startswith("package:"):
        name = model.removeprefix("package:").replace("-", "_")
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"model: {model}: no package {name!r} is installed here")
        folder = Path(next(iter(spec.submodule_search_locations))) / "model"
        if not (folder / "config.json").exists():
            raise UserError(f"model: {model}: the package has no model in {folder}")
        return str(folder)
    path = Path(model).expanduser()
    if path.exists():
        if not (path / "config.json").exists():
            raise UserError(f"model: {model}: the directory has no config.json")
        return str(path.absolute())
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise UserError(f"model: {model}: there is no such directory")
    return model


class DualEncoderConfig(Pretrained):
    """A retriever to begin from."""

    kind: Literal["dual_encoder"] = "dual_encoder"
    towers: Literal["shared", "separate"] = "shared"
    """One encoder for both sides, or one each that begin alike."""
    pooling: Literal["cls", "mean"] = "cls"
    """A text's vector: that of its first token, or the mean over its tokens."""
    similarity: Literal["dot", "cosine"] = "dot"
    """Cosine makes vectors of length 1."""
    query_tokens: int = Field(32, ge=3)
    """The longest query, special tokens included."""
    document_tokens: int = Field(128, ge=3)
    """The longest document, special tokens included."""
    query_prompt: str = ""
    """What stands before every query and counts among its tokens: `"query: "` for the E5 models."""
    document_prompt: str = ""
    """What stands before every document: `"passage: "` for the E5 models."""
    projection: int | None = Field(None, ge=1)
    """Width of the vectors, made by a linear layer without bias on what pooling gives (paper 000, section 2); null for
    the encoder's own width and no such layer. One layer for each tower."""
    projections: Literal["apart", "alike"] = "apart"
    """How those of separate towers begin: each from a draw of its own, so that a query and a document have nothing in
    common until the towers learn, or both from one draw, as their encoders are alike too. The paper does not say."""
    share: list[Literal["projection", "embedder"]] = []
    """What separate towers have in common: the projection (ADE-SPL, paper 000's Figure 2), the token embeddings."""
    freeze: list[Literal["embedder"]] = []
    """What is not trained: the token embeddings."""
    seed: int = 0
    """Of the projections, of which each has a draw of its own."""

    @model_validator(mode="after")
    def _shares_what_there_is(self) -> Self:
        if self.share and self.towers == "shared":
            raise ValueError("share: towers that are one have all in common; accepted with `towers: separate`")
        if "projection" in self.share and self.projection is None:
            raise ValueError("share: there is no projection to share; say its width in `projection`")
        if self.projections == "alike" and self.projection is None:
            raise ValueError("projections: there are none that could begin alike; say their width in `projection`")
        return self


class CrossEncoderConfig(Pretrained):
    """A ranker to begin from."""

    kind: Literal["cross_encoder"] = "cross_encoder"
    pooling: Literal["cls", "mean"] = "cls"
    """`cls` is the model's own classification head on the first token; `mean` a linear layer on the mean."""
    pair_tokens: int = Field(160, ge=6)
    """The longest pair, special tokens included."""
    seed: int = 0
    """Of the new head's weights."""
