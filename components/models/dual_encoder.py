"""The dense retriever (Zhang et al., 2022, Eq. 1 and 4).

It encodes queries and documents independently and compares their vectors by inner product.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.files import write_json
from sparring.components.models import (
    adapters,
    attention,
    layers,
    pretrained,
    saved,
    seeding,
    sentence_modules,
    special_tokens,
)
from sparring.components.models.configs import DualEncoderConfig, ResolvedDualEncoderConfig
from sparring.components.models.sentence_modules import SIDES, WEIGHTS, Found
from sparring.components.models.text_encoder import Side, TextEncoder

_Place = TypeVar("_Place")


class DualEncoder(TextEncoder):
    """One or two encoders ("towers") with pooling, and optionally projections and normalization.

    The three architectures of Moiseev et al. (2023) are `towers: shared` (SDE), `towers: separate` (ADE), and `towers:
    separate` with `share: [projection]` (ADE-SPL).
    """

    def __init__(self, config: ResolvedDualEncoderConfig, towers: dict[str, Any]) -> None:
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
            with seeding.seeded(config.seed):
                layers = {name: _projection(self.width, config) for name in owners}
            if config.projections == "alike":
                first, *rest = layers.values()
                for layer in rest:
                    layer.load_state_dict(first.state_dict())
        self.projections = nn.ModuleDict(layers)
        if (cut := config.truncate) is not None and cut > (whole := config.projection or self.width):
            raise UserError(
                f"truncate: got {cut}, but the vectors of {config.model} have {whole} dimensions. Use at most {whole}."
            )

    @classmethod
    def start(cls, config: DualEncoderConfig) -> tuple[Self, Any]:
        """Make a retriever from a pre-trained encoder, or read a retriever of sentence-transformers.

        Return it with its tokenizer. Raise UserError if the model in the folder contradicts the config, or has an
        unsupported form.
        """
        content = sentence_modules.retriever(config) or Found({"shared": ""}, {}, {})
        whole = _resolved(config, content, pretrained.huggingface_config(config, next(iter(content.encoders.values()))))
        towers = {
            side: pretrained.encoder(config, content.encoders.get(side) or content.encoders.get("shared", ""))
            for side in (["shared"] if whole.towers == "shared" else SIDES)
        }
        for tower in towers.values():
            layers.check_length(tower, whole, "query_tokens", "document_tokens")
            layers.check_padding(tower, whole)
        tokenizers = [pretrained.tokenizer(config, folder) for folder in content.encoders.values()]
        if len(content.encoders) > 1:
            _check_alike(whole, towers, tokenizers)
        if whole.end_token is not None:
            tokenizers[0] = special_tokens.ended_by(tokenizers[0], whole.end_token)
        model = cls(whole, towers)
        for name, layer in model.projections.items():
            for files, part, prefix in _parts(layer, content.projections, content.norms):
                file = files.get(name) or files.get("shared")
                weights = pretrained.file_of(config, file) if file else None
                if weights is not None:
                    saved.load_weights(part, weights, prefix=prefix)
        return model, tokenizers[0]

    @classmethod
    def load(cls, folder: Path, *, frozen: bool = False) -> Self:
        """Load a retriever that `save` wrote. A `frozen` retriever is used for inference only."""
        config = saved.load_config(ResolvedDualEncoderConfig, folder)
        folders = {"shared": folder} if config.towers == "shared" else {side: folder / side for side in SIDES}
        model = cls(config, {side: saved.load_encoder(path, frozen=frozen) for side, path in folders.items()})
        for name, layer in model.projections.items():
            for place, part, prefix in _parts(layer, model._projection_folder(name), model._norm_folder(name)):
                saved.load_weights(part, folder / place / WEIGHTS, prefix=prefix)
        return model

    def forward(self, batch: Batch, side: Side) -> Tensor:
        """Encode a batch of queries or documents as vectors (N, d) in fp32."""
        return self.compared(self.pooled(batch, side), side)

    def pooled(self, batch: Batch, side: Side) -> Tensor:
        """Compute the encoder's pooled states (N, h) in fp32, before projection and normalization."""
        tower, inputs = self.tower(side), {"input_ids": batch.ids, "attention_mask": batch.mask}
        if self.config.pooling != "first_last":
            return pool(tower(**inputs).last_hidden_state, batch.mask, self.config.pooling)
        with layers.states_of(layers.first_layer(tower)) as first:
            last = tower(**inputs).last_hidden_state
        return pool((first[0].float() + last.float()) / 2, batch.mask, "mean")

    def compared(self, vectors: Tensor, side: Side) -> Tensor:
        """Project, truncate and normalize pooled states (N, h) to the vectors (N, d) that are compared."""
        if self.projections:
            with torch.autocast(vectors.device.type, enabled=False):
                vectors = _for_side(self.projections, side)(vectors)
        return self.cut(vectors, self.config.truncate)

    def cut(self, vectors: Tensor, dimensions: int | None) -> Tensor:
        """Truncate vectors to their first `dimensions`. If None, keep all. With cosine similarity, normalize them."""
        vectors = vectors[..., :dimensions]
        return functional.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the vectors that are compared."""
        return self.config.truncate or self.config.projection or self.width

    def tower(self, side: Side) -> Any:
        """Return the encoder of a side."""
        return _for_side(self.towers, side)

    def with_separate_towers(self) -> Self:
        """Return this retriever with an encoder and a projection for each side. Shared parts become equal copies."""
        config = self.config.model_copy(update={"towers": "separate", "share": type(self.config.share)()})
        towers = {"query": adapters.copied(self.tower("query")), "document": self.tower("document")}
        model = type(self)(config, towers)
        sides: list[Side] = ["query", "document"] if len(model.projections) else []
        for side in sides:
            model.projections[side].load_state_dict(_for_side(self.projections, side).state_dict())
        return model

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the retriever for this project, `SentenceTransformer(folder)` and `AutoModel.from_pretrained(folder)`.

        sentence-transformers truncates vectors after it normalizes them. To get vectors of length 1 for cosine
        similarity, call its `encode(..., normalize_embeddings=True)`.

        Separate towers are in `folder/query` and `folder/document`, under a Router of sentence-transformers. A shared
        projection comes after the Router.
        """
        folder.mkdir(parents=True, exist_ok=True)
        modules = []
        configs: list[Any] = [tower.config for tower in self.towers.values()]
        for encoder in configs:
            if self.config.matryoshka != getattr(encoder, "matryoshka_dimensions", None):
                encoder.matryoshka_dimensions = self.config.matryoshka  # vLLM reads it there
        if self.config.towers == "shared":
            tower, averaged = self.tower("document"), self.config.pooling == "first_last"
            if averaged:  # sentence-transformers then reads the states of all layers
                tower.config.output_hidden_states = True
            saved.save_tower(tower, folder, tokenizer_from, self.config.document_tokens)
            modules += [("", "sentence_transformers.models.Transformer")]
            if averaged:
                _save_first_last(folder / "1_WeightedLayerPooling", tower.config)
                modules += [("1_WeightedLayerPooling", "sentence_transformers.models.WeightedLayerPooling")]
            _save_pooling(folder / "1_Pooling", self.width, "mean" if averaged else self.config.pooling)
            modules += [("1_Pooling", "sentence_transformers.models.Pooling")]
        else:
            for side, tower in self.towers.items():
                limit = self.config.query_tokens if side == "query" else self.config.document_tokens
                saved.save_tower(tower, folder / side, tokenizer_from, limit)
                _save_pooling(folder / f"{side}_pooling", self.width, self.config.pooling)
            projected = "query" in self.projections
            write_json(
                folder / "router_config.json", _router(dense=projected, norm=projected and self.config.projection_norm)
            )
            modules += [("", "sentence_transformers.models.Router")]
        for name, layer in self.projections.items():
            for place, part, _ in _parts(layer, self._projection_folder(name), self._norm_folder(name)):
                kind = "LayerNorm" if isinstance(part, nn.LayerNorm) else "Dense"
                (_save_norm if kind == "LayerNorm" else _save_dense)(folder / place, part)
                if name == "shared":
                    modules += [(place, f"sentence_transformers.models.{kind}")]
        if self.config.similarity == "cosine":
            normalize = f"{len(modules)}_Normalize"
            (folder / normalize).mkdir(exist_ok=True)
            modules += [(normalize, "sentence_transformers.models.Normalize")]
        prompts = {"query": self.config.query_prompt, "document": self.config.document_prompt}
        description: dict[str, Any] = {
            "model_type": "SentenceTransformer",
            "similarity_fn_name": self.config.similarity,
            "prompts": prompts,
        }
        if self.config.truncate is not None:
            description["truncate_dim"] = self.config.truncate
        saved.save_modules(folder, modules, description, self.config)

    def _projection_folder(self, name: str) -> str:
        if name != "shared":
            return f"{name}_dense"
        return "2_Dense" if self.config.towers == "shared" else "1_Dense"

    def _norm_folder(self, name: str) -> str:
        if name != "shared":
            return f"{name}_norm"
        return "3_LayerNorm" if self.config.towers == "shared" else "2_LayerNorm"


def _projection(width: int, config: ResolvedDualEncoderConfig) -> nn.Module:
    """Make a linear layer, with a bias or with a bias and layer normalization if the config says so."""
    assert config.projection is not None
    linear = nn.Linear(width, config.projection, bias=config.projection_norm or config.projection_bias)
    if not config.projection_norm:
        return linear
    return nn.Sequential(OrderedDict(linear=linear, norm=nn.LayerNorm(config.projection)))


def _parts(layer: Any, dense: _Place, norm: _Place) -> list[tuple[_Place, Any, str]]:
    """List the modules of a projection in sentence-transformers' terms: place, module and prefix of the weights."""
    if isinstance(layer, nn.Sequential):
        return [(dense, layer.linear, "linear."), (norm, layer.norm, "norm.")]
    return [(dense, layer, "linear.")]


def _resolved(config: DualEncoderConfig, content: Found, encoder: Any) -> ResolvedDualEncoderConfig:
    """Complete the config with the folder's values. `encoder` is the Hugging Face config."""
    stored = {key: value for key, value in content.values.items() if value is not None}
    stated = {key: value for key, value in config.model_dump().items() if value is not None}
    causal = attention.is_causal(encoder) if config.attention is None else config.attention == "causal"
    if attention.is_decoder(encoder) and "pooling" not in stored | stated:
        stated["pooling"] = "last" if causal else "mean"
    if attention.is_decoder(encoder) and causal and (stored | stated)["pooling"] == "cls":
        raise UserError(
            f"pooling: got cls, but {config.model} is a causal language model, whose first token sees no other token. "
            "Use last or mean."
        )
    for key in ("towers", "projection"):
        # One encoder can become two equal ones. Two cannot become one, and a projection cannot change its width.
        if key in stored and stored[key] != "shared" and stated.get(key, stored[key]) != stored[key]:
            raise UserError(
                f"{key}: got {stated[key]}, but {config.model} has {stored[key]}. Use {stored[key]}, or null.",
                code="fixed-by-model",
            )
    if stored and "query_tokens" not in stated | stored:
        raise UserError(
            f"query_tokens: {config.model} does not say how many tokens it reads. Set `query_tokens` to a number."
        )
    if "projection" in config.share and len(content.projections) > 1:
        raise UserError(
            f"share: {config.model} has a separate projection for each side. Remove `projection` from `share`."
        )
    share = list(dict.fromkeys([*config.share, *stored.get("share", [])]))
    sizes = getattr(encoder, "matryoshka_dimensions", None)
    return ResolvedDualEncoderConfig.model_validate({**stored, **stated, "share": share, "matryoshka": sizes})


def _check_alike(config: ResolvedDualEncoderConfig, towers: dict[str, Any], tokenizers: list[Any]) -> None:
    """Raise UserError if two towers cannot make a retriever."""
    rules = [
        json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
        for tokenizer in tokenizers
    ]
    shapes = [(type(tower), tower.config.hidden_size, tower.config.num_hidden_layers) for tower in towers.values()]
    words = [tower.get_input_embeddings().weight for tower in towers.values()]
    for kind, values in {"tokenizers": rules, "shapes": shapes}.items():
        if values[0] != values[1]:
            raise UserError(
                f"model: {config.model}: the two encoders have different {kind}. Use a model in which they are equal."
            )
    if "embedder" in config.share and not torch.equal(*words):
        raise UserError(
            f"share: {config.model} has separate token embeddings for each side. Remove `embedder` from `share`."
        )


def _for_side(modules: nn.ModuleDict, side: Side) -> Any:
    return modules["shared" if "shared" in modules else side]


def _router(*, dense: bool, norm: bool) -> dict[str, Any]:
    """Make the config of sentence-transformers' Router.

    With `dense` each side has its own projection. With `norm` layer normalization follows the projection.
    """
    kinds = {
        "": "Transformer",
        "_pooling": "Pooling",
        **({"_dense": "Dense"} if dense else {}),
        **({"_norm": "LayerNorm"} if norm else {}),
    }
    return {
        "types": {
            f"{side}{part}": f"sentence_transformers.models.{kind}" for side in SIDES for part, kind in kinds.items()
        },
        "structure": {side: [f"{side}{part}" for part in kinds] for side in SIDES},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Pool token states (N, L, h) into vectors (N, h) in fp32.

    `cls` takes the first token, and `last` the last token that is not padding, with padding on either side. Any other
    value takes the mean over all tokens except padding.
    """
    if pooling == "last":
        place = torch.arange(mask.shape[1], device=mask.device)
        return hidden[torch.arange(len(mask), device=mask.device), (mask * place).argmax(-1)].float()
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
            "pooling_mode_lasttoken": pooling == "last",
        },
    )


def _save_first_last(folder: Path, encoder: Any) -> None:
    """Write a module of sentence-transformers that averages the first and the last layer's states."""
    folder.mkdir(exist_ok=True)
    weights = torch.zeros(encoder.num_hidden_layers)
    weights[[0, -1]] = 1.0
    save_file({"layer_weights": weights}, folder / WEIGHTS)
    shape = {"word_embedding_dimension": encoder.hidden_size, "layer_start": 1, "num_hidden_layers": len(weights)}
    write_json(folder / "config.json", shape)


def _save_dense(folder: Path, layer: Any) -> None:
    folder.mkdir(exist_ok=True)
    saved.save_weights(layer, folder / WEIGHTS, prefix="linear.")
    write_json(
        folder / "config.json",
        {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": layer.bias is not None,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )


def _save_norm(folder: Path, layer: Any) -> None:
    folder.mkdir(exist_ok=True)
    saved.save_weights(layer, folder / WEIGHTS, prefix="norm.")
    write_json(folder / "config.json", {"dimension": layer.normalized_shape[0]})
