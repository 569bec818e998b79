"""The retriever: queries and documents encoded apart, compared by inner product (paper 004, Eq. 1 and 4)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from components import pretrained
from components.files import write_json
from components.model_configs import DualEncoderConfig
from components.text import Batch

Side = Literal["query", "document"]


class DualEncoder(nn.Module):
    """One or two towers, pooling, and perhaps vectors of length 1."""

    def __init__(self, config: DualEncoderConfig, towers: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.towers = nn.ModuleDict(towers)

    @classmethod
    def start(cls, config: DualEncoderConfig) -> tuple[Self, Any]:
        """A retriever made from a pre-trained encoder, and the tokenizer."""
        sides = ["shared"] if config.towers == "shared" else ["query", "document"]
        towers = {side: pretrained.encoder(config) for side in sides}
        for tower in towers.values():
            pretrained.check_length(tower, config, "query_tokens", "document_tokens")
        return cls(config, towers), pretrained.tokenizer(config)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """A retriever that `save` wrote."""
        config = DualEncoderConfig.model_validate_json((folder / pretrained.OWN).read_text())
        places = {"shared": folder} if config.towers == "shared" else {s: folder / s for s in ("query", "document")}
        return cls(config, {side: pretrained.load_encoder(place) for side, place in places.items()})

    def forward(self, batch: Batch, side: Side) -> Tensor:
        """(N, d) fp32 vectors of a batch of queries or documents."""
        hidden = self.tower(side)(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        return pool(hidden, batch.mask, self.config.pooling, self.config.similarity == "cosine")

    def tower(self, side: Side) -> Any:
        """The encoder of a side."""
        return self.towers["shared" if "shared" in self.towers else side]

    def encoder(self) -> Any:
        """The encoder that stands for both sides where only its shape counts."""
        return self.tower("document")

    def lowered(self, dtype: torch.dtype) -> Self:
        """This retriever with its towers in another precision; what makes a vector of their states stays in fp32."""
        self.towers.to(dtype)
        return self

    def apart(self) -> Self:
        """This retriever with a tower for each side; of a shared one they are alike until one of them is trained."""
        if self.config.towers == "separate":
            return self
        tower = self.towers["shared"]
        towers = {"query": copy.deepcopy(tower), "document": tower}
        return type(self)(self.config.model_copy(update={"towers": "separate"}), towers)

    def tokens(self, side: Side) -> int:
        """The longest text of a side, special tokens included."""
        return self.config.query_tokens if side == "query" else self.config.document_tokens

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it so that `SentenceTransformer(folder)` and `AutoModel.from_pretrained` load it.

        Two towers lie in `folder/query` and `folder/document`, joined by sentence-transformers' Router.
        """
        folder.mkdir(parents=True, exist_ok=True)
        towers: dict[str, Any] = dict(self.towers.items())
        width = next(iter(towers.values())).config.hidden_size
        modules = []
        if self.config.towers == "shared":
            pretrained.save_tower(self.towers["shared"], folder, tokenizer_from, self.config.document_tokens)
            _save_pooling(folder / "1_Pooling", width, self.config.pooling)
            modules += [("", "models.Transformer"), ("1_Pooling", "models.Pooling")]
        else:
            for side, tower in towers.items():
                limit = self.config.query_tokens if side == "query" else self.config.document_tokens
                pretrained.save_tower(tower, folder / side, tokenizer_from, limit)
                _save_pooling(folder / f"{side}_pooling", width, self.config.pooling)
            write_json(folder / "router_config.json", _ROUTER)
            modules += [("", "models.Router")]
        if self.config.similarity == "cosine":
            (folder / "2_Normalize").mkdir(exist_ok=True)
            modules += [("2_Normalize", "models.Normalize")]
        about = {"model_type": "SentenceTransformer", "similarity_fn_name": self.config.similarity}
        pretrained.save_modules(folder, modules, about, self.config)


_ROUTER = {
    "types": {
        f"{side}{part}": f"sentence_transformers.models.{kind}"
        for side in ("query", "document")
        for part, kind in (("", "Transformer"), ("_pooling", "Pooling"))
    },
    "structure": {side: [side, f"{side}_pooling"] for side in ("query", "document")},
    "parameters": {"default_route": "document", "allow_empty_key": True},
}


def pool(hidden: Tensor, mask: Tensor, pooling: str, normalise: bool) -> Tensor:
    """(N, L, h) token states to (N, h) fp32 vectors: the first token's, or the mean over real tokens."""
    hidden = hidden.float()
    if pooling == "cls":
        vectors = hidden[:, 0]
    else:
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        vectors = (hidden * weights).sum(1) / weights.sum(1).clamp_min(1e-9)
    return torch.nn.functional.normalize(vectors, dim=-1) if normalise else vectors


def _save_pooling(folder: Path, width: int, pooling: str) -> None:
    folder.mkdir(exist_ok=True)
    write_json(
        folder / "config.json",
        {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        },
    )
