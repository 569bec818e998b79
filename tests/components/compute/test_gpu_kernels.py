"""What is chosen for a GPU, as far as it can be told without one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.components.compute.gpu_kernels import attention_of, compile_layers
from sparring.components.data.batches import Batch
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.training.sharding import layers


@pytest.mark.parametrize(
    ("has", "precision", "flash", "expected"),
    [
        ({"flash", "sdpa"}, "bf16", True, "flash_attention_2"),
        ({"flash", "sdpa"}, "bf16", False, "sdpa"),
        ({"flash", "sdpa"}, "fp32", True, "sdpa"),
        ({"sdpa"}, "bf16", True, "sdpa"),
        (set(), "bf16", True, "eager"),
    ],
)
def test_the_attention_that_a_model_has(has: set[str], precision: str, flash: bool, expected: str) -> None:
    model = SimpleNamespace(_supports_flash_attn="flash" in has, _supports_sdpa="sdpa" in has)
    assert attention_of(model, precision=precision, flash=flash) == expected


# torch's own, as it looks at what a layer is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_layers_have_the_same_gradient(retriever: Path) -> None:
    """For batches of two shapes, by one program. What makes kernels of it is left to machines with a GPU."""

    def gradients(compiled: bool) -> dict[str, Tensor]:
        model: Any = DualEncoder.load(retriever / "model").eval()
        if compiled:
            compile_layers(layers(model), backend="aot_eager", options=None)
        for rows, width in ((3, 8), (5, 16)):
            ids = torch.randint(5, 40, (rows, width), generator=torch.Generator().manual_seed(width))
            vectors = model(Batch(ids, torch.ones_like(ids)), "document")
            (vectors @ vectors.T).logsumexp(-1).sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    plain, fused = gradients(False), gradients(True)
    assert plain.keys() == fused.keys()
    for name, value in plain.items():
        torch.testing.assert_close(fused[name], value, rtol=1e-4, atol=1e-6, msg=name)
