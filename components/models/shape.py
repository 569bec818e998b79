"""The shape of a pre-trained encoder, read from its config.json without torch: its parameters and its arithmetic."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.components.config import UserError
from sparring.components.files import read_json
from sparring.components.models.configs import DualEncoderConfig, Pretrained, locate_model


def predicted_at_once(*, cuda: bool) -> int:
    """Tokens that a masked language model predicts together. A score for each token of the vocabulary, and its
    gradient, take more memory than all else; each such part has a gradient of the vocabulary's matrix, which is added
    to the others' in the precision of its products."""
    return 4096 if cuda else 1024


class ModelShape(NamedTuple):
    """An encoder as far as its cost depends on it."""

    layers: int
    width: int
    middle: int
    """Width of the feed-forward part of a layer."""
    vocabulary: int
    read: bool = True
    """Whether it was read; False for an assumption."""

    @property
    def parameters(self) -> int:
        """Weights: token embeddings, 512 positions, and the four square and two oblong matrices of each layer."""
        return (self.vocabulary + 512) * self.width + self.layers * self.weights_per_layer

    @property
    def weights_per_layer(self) -> int:
        """Weights of a layer's matrix products."""
        return 4 * self.width**2 + 2 * self.width * self.middle

    def operations(self, lengths: np.ndarray) -> float:
        """Floating-point operations of a forward pass over texts of these lengths, without padding: as
        `components.compute.roofline.MatrixProducts` counts them in a model that is open."""
        lengths = np.asarray(lengths, np.float64)
        return float(
            self.layers * (2.0 * self.weights_per_layer * lengths.sum() + 4.0 * self.width * np.square(lengths).sum())
        )


BASE = ModelShape(12, 768, 3072, 30_522, read=False)
LARGE = ModelShape(24, 1024, 4096, 30_522, read=False)
"""BERT's two sizes (Devlin et al., 2019, section 3), for a model of the hub that is not here."""


def shape_of(config: Pretrained) -> ModelShape:
    """Return the shape of the model that a config names, with the layers that it keeps.

    For a model that is not on this machine, return BERT's large shape if the name says large, else BERT's base.
    """
    try:
        folder = Path(locate_model(config.model))
    except UserError:
        folder = Path(config.model)
    files = [path for path in (folder / "config.json", *sorted(folder.glob("*/config.json"))) if path.exists()]
    shapes = [_read(json.loads(path.read_text())) for path in files or _cached(config)]
    shape = next(
        (candidate for candidate in shapes if candidate is not None), LARGE if "large" in config.model.lower() else BASE
    )
    kept = config.layers
    return shape if kept is None else shape._replace(layers=kept if isinstance(kept, int) else len(kept))


def dimensions_of(config: Any) -> int | None:
    """Return the dimensions of a retriever's vectors.

    Return None if its folder does not say so plainly, as for a model that is not on this machine.
    """
    if not isinstance(config, DualEncoderConfig):
        return None
    if config.truncate or config.projection:
        return config.truncate or config.projection
    try:
        folder = Path(locate_model(config.model))
        if not folder.is_dir():
            return None
        modules, settings = folder / "modules.json", folder / "config_sentence_transformers.json"
        kinds = {module["type"].rpartition(".")[2] for module in read_json(modules)} if modules.is_file() else set()
        cut = settings.is_file() and read_json(settings).get("truncate_dim")
        shape = shape_of(config)
    except (UserError, ValueError, TypeError, KeyError, AttributeError):  # damaged, which its reader says
        return None
    return shape.width if shape.read and not cut and kinds <= {"Transformer", "Pooling", "Normalize"} else None


def _cached(config: Pretrained) -> list[Path]:
    """Return the config.json of a model of the hub, if it was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    if "/" not in config.model and not config.model.replace("-", "").replace(".", "").isalnum():
        return []
    file = try_to_load_from_cache(config.model, "config.json", revision=config.revision)
    return [Path(file)] if isinstance(file, str) else []


def _read(config: dict[str, Any]) -> ModelShape | None:
    """Read the shape from a config.json of BERT's kind, DistilBERT's or T5's. None for any other file of that name."""
    width = config.get("hidden_size") or config.get("dim") or config.get("d_model")
    layers = config.get("num_hidden_layers") or config.get("n_layers") or config.get("num_layers")
    if not width or not layers:
        return None
    middle = config.get("intermediate_size") or config.get("hidden_dim") or config.get("d_ff") or 4 * width
    return ModelShape(int(layers), int(width), int(middle), int(config.get("vocab_size") or BASE.vocabulary))
