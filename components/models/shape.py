"""The shape of a pre-trained encoder, read from its config.json without torch. It determines the model's cost."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparring.components.config import UserError
from sparring.components.files import read_json
from sparring.components.models.configs import DualEncoderConfig, Pretrained, locate_model


def predicted_at_once(*, cuda: bool) -> int:
    """Return the number of tokens that a masked language model predicts at a time.

    The scores of the whole vocabulary and their gradients take more memory than anything else, so predictions are made
    in parts. Each part has a gradient of the vocabulary's matrix. These gradients are summed in the precision of the
    products, so there should be few parts.
    """
    return 4096 if cuda else 1024


class ModelShape(NamedTuple):
    """The properties of an encoder that its cost depends on."""

    layers: int
    width: int
    middle: int
    """Width of the feed-forward part of a layer."""
    vocabulary: int
    read: bool = True
    """True if the shape was read from a file, and False if it is assumed."""

    @property
    def parameters(self) -> int:
        """Number of weights in token embeddings, 512 position embeddings and the matrices of all layers."""
        return (self.vocabulary + 512) * self.width + self.layers * self.weights_per_layer

    @property
    def weights_per_layer(self) -> int:
        """Number of weights in a layer's matrices: four square ones, and two of the feed-forward part."""
        return 4 * self.width**2 + 2 * self.width * self.middle

    def operations(self, lengths: np.ndarray) -> float:
        """Count the floating-point operations of a forward pass over texts of these lengths, without padding.

        `components.compute.roofline.MatrixProducts` gives the same count for a loaded model.
        """
        lengths = np.asarray(lengths, np.float64)
        return float(
            self.layers * (2.0 * self.weights_per_layer * lengths.sum() + 4.0 * self.width * np.square(lengths).sum())
        )


BASE = ModelShape(12, 768, 3072, 30_522, read=False)
LARGE = ModelShape(24, 1024, 4096, 30_522, read=False)
"""Shapes of BERT's two sizes (Devlin et al., 2019, section 3), assumed for hub models that are not on this machine."""


def shape_of(config: Pretrained) -> ModelShape:
    """Return the shape of the model that a config names, with the layers that the config keeps.

    For a model that is not on this machine, return BERT-large's shape if the name contains "large", else BERT-base's.
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
    """Return the number of dimensions of a retriever's vectors.

    Return None if its files do not tell, for example for a model that is not on this machine.
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
    except (UserError, ValueError, TypeError, KeyError, AttributeError):  # a damaged folder is reported when it is read
        return None
    return shape.width if shape.read and not cut and kinds <= {"Transformer", "Pooling", "Normalize"} else None


def _cached(config: Pretrained) -> list[Path]:
    """Return the config.json of a hub model, if it was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    if "/" not in config.model and not config.model.replace("-", "").replace(".", "").isalnum():
        return []
    file = try_to_load_from_cache(config.model, "config.json", revision=config.revision)
    return [Path(file)] if isinstance(file, str) else []


def _read(config: dict[str, Any]) -> ModelShape | None:
    """Read the shape from a config.json with the keys of BERT, DistilBERT or T5. Return None for any other file."""
    width = config.get("hidden_size") or config.get("dim") or config.get("d_model")
    layers = config.get("num_hidden_layers") or config.get("n_layers") or config.get("num_layers")
    if not width or not layers:
        return None
    middle = config.get("intermediate_size") or config.get("hidden_dim") or config.get("d_ff") or 4 * width
    return ModelShape(int(layers), int(width), int(middle), int(config.get("vocab_size") or BASE.vocabulary))
