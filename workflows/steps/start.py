"""A start model: a pre-trained one as it is, with fewer layers or a new part where the config asks for it."""

import hashlib
from pathlib import Path
from typing import Any

from sparring.components.data.tokenizers import save_tokenizer
from sparring.components.files import replacing
from sparring.components.models.configs import (
    CrossEncoderConfig,
    DualEncoderConfig,
    MaskedLanguageModelConfig,
    locate_model,
)
from sparring.components.models.generator_configs import GeneratorConfig
from sparring.components.models.reader_configs import ReaderConfig
from sparring.components.models.shape import shape_of
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.site import Site
from sparring.workflows.store.cost import Cost, Made, Work
from sparring.workflows.store.dag import Description


def _cost(site: Site, *, config: Any, encoder: Made | None = None) -> Cost:
    """Four bytes a weight."""
    made = Made(config, shape_of(config))
    return Cost(work=(Work("loading", 4.0 * made.shape.parameters),), makes=made, objects=8,
                kept=4.0 * made.shape.parameters)  # fmt: skip


@Description(part="data", version=2, cost=_cost)
def start(
    out: Path, cluster: Cluster, *,
    config: DualEncoderConfig | CrossEncoderConfig | GeneratorConfig | ReaderConfig | MaskedLanguageModelConfig,
    encoder: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the model to `out/model`. With `encoder`, the artifact of another model, it begins from that one's encoder
    as it is now; else from the model that the config names."""
    from sparring.components.models.cross_encoder import CrossEncoder  # they import torch and transformers
    from sparring.components.models.dual_encoder import DualEncoder
    from sparring.components.models.generator import Generator
    from sparring.components.models.masked_language_model import MaskedLanguageModel
    from sparring.components.models.reader import Reader

    kinds: dict[str, Any] = {
        "dual_encoder": DualEncoder, "cross_encoder": CrossEncoder, "generator": Generator, "reader": Reader,
        "masked_language_model": MaskedLanguageModel,
    }  # fmt: skip
    kind = kinds[config.kind]
    own = {} if encoder is None else {"model": str(encoder / "model"), "revision": None, "layers": None}
    model, tokenizer = kind.start(config.model_copy(update=own))
    model.config = model.config.model_copy(update={name: getattr(config, name) for name in own})
    with replacing(out / "tokenizer") as folder:
        save_tokenizer(tokenizer, folder)
    with replacing(out / "model") as folder:
        model.save(folder, out / "tokenizer")
    weights = sorted((out / "model").rglob("*.safetensors"))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "sha256": hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest(),
        "tokenizer": locate_model(config.model).rsplit("/", 1)[-1],
    }
