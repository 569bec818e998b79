"""The retriever: queries and documents encoded apart, compared by inner product (paper 004, Eq. 1 and 4)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from components import pretrained
from components.files import write_json
from components.model_configs import OWN, DualEncoderConfig
from components.text import Batch

Side = Literal["query", "document"]


class DualEncoder(nn.Module):
    """One or two towers, pooling, perhaps a projection of each tower or of both, and perhaps vectors of length 1.

    Paper 000's three are `towers: shared` (SDE), `separate` (ADE), and `separate` with `share: [projection]` (ADE-SPL).
    """

    def __init__(self, config: DualEncoderConfig, towers: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.towers = nn.ModuleDict(towers)
        if "embedder" in config.share:
            towers["document"].set_input_embeddings(towers["query"].get_input_embeddings())
        if "embedder" in config.freeze:
            for tower in towers.values():
                tower.get_input_embeddings().requires_grad_(False)
        whose = ["shared"] if "projection" in config.share else list(towers)
        self.width = next(iter(towers.values())).config.hidden_size
        layers = {}
        if config.projection is not None:
            with pretrained.seeded(config.seed):
                layers = {name: nn.Linear(self.width, config.projection, bias=False) for name in whose}
            if config.projections == "alike":
                first, *others = layers.values()
                for layer in others:
                    layer.load_state_dict(first.state_dict())
        self.projections = nn.ModuleDict(layers)

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
        config = DualEncoderConfig.model_validate_json((folder / OWN).read_text())
        places = {"shared": folder} if config.towers == "shared" else {s: folder / s for s in ("query", "document")}
        model = cls(config, {side: pretrained.load_encoder(place) for side, place in places.items()})
        for name, layer in model.projections.items():
            pretrained.load_weights(layer, folder / model._dense(name) / _WEIGHTS, prefix="linear.")
        return model

    def forward(self, batch: Batch, side: Side) -> Tensor:
        """(N, d) fp32 vectors of a batch of queries or documents."""
        hidden = self.tower(side)(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        vectors = pool(hidden, batch.mask, self.config.pooling)
        if self.projections:
            with torch.autocast(vectors.device.type, enabled=False):
                vectors = _of_side(self.projections, side)(vectors)
        return functional.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors

    def tower(self, side: Side) -> Any:
        """The encoder of a side."""
        return _of_side(self.towers, side)

    def encoder(self) -> Any:
        """The encoder that stands for both sides where only its shape counts."""
        return self.tower("document")

    def lowered(self, dtype: torch.dtype) -> Self:
        """This retriever with its towers in another precision; what makes a vector of their states stays in fp32."""
        self.towers.to(dtype)
        return self

    def apart(self) -> Self:
        """This retriever with all that makes a vector for each side alone; what was shared is alike until it learns."""
        config = self.config.model_copy(update={"towers": "separate", "share": type(self.config.share)()})
        towers = {"query": copy.deepcopy(self.tower("query")), "document": self.tower("document")}
        model = type(self)(config, towers)
        sides: list[Side] = ["query", "document"] if len(model.projections) else []
        for side in sides:
            model.projections[side].load_state_dict(_of_side(self.projections, side).state_dict())
        return model

    def tokens(self, side: Side) -> int:
        """The longest text of a side, special tokens included."""
        return self.config.query_tokens if side == "query" else self.config.document_tokens

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it so that `SentenceTransformer(folder)` and `AutoModel.from_pretrained` load it.

        Two towers lie in `folder/query` and `folder/document`, joined by sentence-transformers' Router; a projection
        that both have in common stands behind it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        modules = []
        if self.config.towers == "shared":
            pretrained.save_tower(self.towers["shared"], folder, tokenizer_from, self.config.document_tokens)
            _save_pooling(folder / "1_Pooling", self.width, self.config.pooling)
            modules += [("", "models.Transformer"), ("1_Pooling", "models.Pooling")]
        else:
            for side, tower in self.towers.items():
                limit = self.config.query_tokens if side == "query" else self.config.document_tokens
                pretrained.save_tower(tower, folder / side, tokenizer_from, limit)
                _save_pooling(folder / f"{side}_pooling", self.width, self.config.pooling)
            write_json(folder / "router_config.json", _router(dense="query" in self.projections))
            modules += [("", "models.Router")]
        for name, layer in self.projections.items():
            _save_dense(folder / self._dense(name), layer)
            if name == "shared":
                modules += [(self._dense(name), "models.Dense")]
        if self.config.similarity == "cosine":
            place = f"{len(modules)}_Normalize"
            (folder / place).mkdir(exist_ok=True)
            modules += [(place, "models.Normalize")]
        prompts = {"query": self.config.query_prompt, "document": self.config.document_prompt}
        about = {"model_type": "SentenceTransformer", "similarity_fn_name": self.config.similarity, "prompts": prompts}
        pretrained.save_modules(folder, modules, about, self.config)

    def _dense(self, name: str) -> str:
        """The folder of a projection."""
        if name != "shared":
            return f"{name}_dense"
        return "2_Dense" if self.config.towers == "shared" else "1_Dense"


_WEIGHTS = "model.safetensors"


def _of_side(modules: nn.ModuleDict, side: Side) -> Any:
    return modules["shared" if "shared" in modules else side]


def _router(*, dense: bool) -> dict[str, Any]:
    """What sentence-transformers does with each side, `dense` saying whether each has a projection of its own."""
    kinds = {"": "Transformer", "_pooling": "Pooling", **({"_dense": "Dense"} if dense else {})}
    sides = ("query", "document")
    return {
        "types": {
            f"{side}{part}": f"sentence_transformers.models.{kind}" for side in sides for part, kind in kinds.items()
        },
        "structure": {side: [f"{side}{part}" for part in kinds] for side in sides},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """(N, L, h) token states to (N, h) fp32 vectors: the first token's, or the mean over real tokens."""
    hidden = hidden.float()
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1e-9)


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


def _save_dense(folder: Path, layer: Any) -> None:
    folder.mkdir(exist_ok=True)
    pretrained.save_weights(layer, folder / _WEIGHTS, prefix="linear.")
    write_json(
        folder / "config.json",
        {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
