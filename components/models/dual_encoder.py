"""The retriever: queries and documents are encoded independently and compared by inner product (Zhang et al., 2022, Eq.
1 and 4)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from components.data.batches import Batch
from components.data.tokenizers import MODEL_CONFIG
from components.files import write_json
from components.models import pretrained
from components.models.configs import DualEncoderConfig

Side = Literal["query", "document"]


class DualEncoder(nn.Module):
    """One or two encoders ("towers"), pooling, and optionally projections and normalization.

    The three of Moiseev et al. (2023) are `towers: shared` (SDE), `separate` (ADE), and `separate` with
    `share: [projection]` (ADE-SPL).
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
        owners = ["shared"] if "projection" in config.share else list(towers)
        self.width = next(iter(towers.values())).config.hidden_size
        layers = {}
        if config.projection is not None:
            with pretrained.seeded(config.seed):
                layers = {name: nn.Linear(self.width, config.projection, bias=False) for name in owners}
            if config.projections == "alike":
                first, *others = layers.values()
                for layer in others:
                    layer.load_state_dict(first.state_dict())
        self.projections = nn.ModuleDict(layers)

    @classmethod
    def start(cls, config: DualEncoderConfig) -> tuple[Self, Any]:
        """A new retriever made from a pre-trained encoder, and its tokenizer."""
        sides = ["shared"] if config.towers == "shared" else ["query", "document"]
        towers = {side: pretrained.encoder(config) for side in sides}
        for tower in towers.values():
            pretrained.check_length(tower, config, "query_tokens", "document_tokens")
        return cls(config, towers), pretrained.tokenizer(config)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a retriever that `save` wrote."""
        config = DualEncoderConfig.model_validate_json((folder / MODEL_CONFIG).read_text())
        folders = {"shared": folder} if config.towers == "shared" else {s: folder / s for s in ("query", "document")}
        model = cls(config, {side: pretrained.load_encoder(path) for side, path in folders.items()})
        for name, layer in model.projections.items():
            pretrained.load_weights(layer, folder / model._projection_folder(name) / _WEIGHTS, prefix="linear.")
        return model

    def forward(self, batch: Batch, side: Side) -> Tensor:
        """(N, d) fp32 vectors of a batch of queries or documents."""
        hidden = self.tower(side)(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        vectors = pool(hidden, batch.mask, self.config.pooling)
        if self.projections:
            with torch.autocast(vectors.device.type, enabled=False):
                vectors = _for_side(self.projections, side)(vectors)
        return functional.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors

    def tower(self, side: Side) -> Any:
        """The encoder of a side."""
        return _for_side(self.towers, side)

    @property
    def base_model(self) -> Any:
        """One of the encoders, for what depends on their shape alone: all have the same."""
        return self.tower("document")

    def to_dtype(self, dtype: torch.dtype) -> Self:
        """Convert the towers to another precision; pooling and projections stay in fp32."""
        self.towers.to(dtype)
        return self

    def with_separate_towers(self) -> Self:
        """This retriever with an encoder and projection for each side; those that were shared become equal copies."""
        config = self.config.model_copy(update={"towers": "separate", "share": type(self.config.share)()})
        towers = {"query": copy.deepcopy(self.tower("query")), "document": self.tower("document")}
        model = type(self)(config, towers)
        sides: list[Side] = ["query", "document"] if len(model.projections) else []
        for side in sides:
            model.projections[side].load_state_dict(_for_side(self.projections, side).state_dict())
        return model

    def max_tokens(self, side: Side) -> int:
        """Maximum length of a side's texts in tokens, special tokens included."""
        return self.config.query_tokens if side == "query" else self.config.document_tokens

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it for this project, `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)`.

        Separate towers are in `folder/query` and `folder/document`, under a Router of sentence-transformers; a shared
        projection comes after the Router.
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
            _save_dense(folder / self._projection_folder(name), layer)
            if name == "shared":
                modules += [(self._projection_folder(name), "models.Dense")]
        if self.config.similarity == "cosine":
            normalize = f"{len(modules)}_Normalize"
            (folder / normalize).mkdir(exist_ok=True)
            modules += [(normalize, "models.Normalize")]
        prompts = {"query": self.config.query_prompt, "document": self.config.document_prompt}
        about = {"model_type": "SentenceTransformer", "similarity_fn_name": self.config.similarity, "prompts": prompts}
        pretrained.save_modules(folder, modules, about, self.config)

    def _projection_folder(self, name: str) -> str:
        if name != "shared":
            return f"{name}_dense"
        return "2_Dense" if self.config.towers == "shared" else "1_Dense"


_WEIGHTS = "model.safetensors"


def _for_side(modules: nn.ModuleDict, side: Side) -> Any:
    return modules["shared" if "shared" in modules else side]


def _router(*, dense: bool) -> dict[str, Any]:
    """The config of sentence-transformers' Router; `dense` says whether each side has its own projection."""
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
    """(N, L, h) token states to (N, h) fp32 vectors: the first token's, or the mean over all but padding."""
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
