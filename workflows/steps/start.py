"""A model to begin from: a pre-trained one, cut or headed where that is asked for, as every later step loads it."""

import hashlib
from pathlib import Path
from typing import Any

from components.files import replacing
from components.generator_configs import GeneratorConfig
from components.model_configs import CrossEncoderConfig, DualEncoderConfig, place
from components.reader_configs import ReaderConfig
from workflows.cluster import Cluster


def start(
    out: Path, cluster: Cluster, *, config: DualEncoderConfig | CrossEncoderConfig | GeneratorConfig | ReaderConfig
) -> dict[str, Any]:
    """Write the model to `out/model`."""
    from components.cross_encoder import CrossEncoder  # torch and transformers: heavy, and only here needed
    from components.dual_encoder import DualEncoder
    from components.generator import Generator
    from components.reader import Reader

    kinds: dict[str, Any] = {
        "dual_encoder": DualEncoder, "cross_encoder": CrossEncoder, "generator": Generator, "reader": Reader
    }  # fmt: skip
    kind = kinds[config.kind]
    model, tokenizer = kind.start(config)
    tokenizer.save_pretrained(str(out / "tokenizer"))
    with replacing(out / "model") as folder:
        model.save(folder, out / "tokenizer")
    weights = sorted((out / "model").rglob("*.safetensors"))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "sha256": hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest(),
        "tokenizer": place(config.model).rsplit("/", 1)[-1],
    }
