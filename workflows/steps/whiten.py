"""Whiten a retriever's vectors by a linear layer after its encoder, fitted to texts (Su et al., 2021)."""

from pathlib import Path
from typing import Any

import numpy as np

from sparring.components.config import UserError
from sparring.components.data.vectors import DocumentVectors, document_shards
from sparring.components.files import replacing
from sparring.components.models.whitening import whitening
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

BLOCK = 50_000
"""Number of vectors in memory at once."""


@Description(part="encoding")
def whiten(out: Path, machine: Machine, *, start: Path, vectors: Path) -> dict[str, Any]:
    """Write the retriever `start` to `out/model` with a projection that whitens its `vectors` of some texts. UserError
    for a retriever whose vectors are not plain states of one encoder."""
    import torch  # heavy

    from sparring.components.models.dual_encoder import DualEncoder

    model = DualEncoder.load(start / "model")
    plain = {"towers": "shared", "similarity": "dot", "projection": None, "truncate": None}
    for key, accepted in plain.items():
        if (value := getattr(model.config, key)) != accepted:
            raise UserError(
                f"whiten: {key}: {value}: vectors are whitened as the encoder gives them; "
                f"accepted: {accepted or 'null'}"
            )
    held = DocumentVectors(vectors)
    fitted = whitening(
        shard[first : first + BLOCK] for shard in document_shards(vectors) for first in range(0, len(shard), BLOCK)
    )
    config = model.config.model_copy(update={"projection": held.width, "projection_bias": True, "matryoshka": None})
    whitened = DualEncoder(config, dict(model.towers.items()))
    layer: Any = whitened.projections["shared"]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(np.ascontiguousarray(fitted.matrix.T)))
        layer.bias.copy_(torch.from_numpy(fitted.shift))
    with replacing(out / "model") as folder:
        whitened.save(folder, start / "model")
    return {"texts": len(held), "dimensions": held.width}
