"""What products are computed in, by what a device has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.components.compute import precision
from sparring.components.compute.precision import autocast, computed, has_bf16
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.inference import Inference
from tests.support.trainings import assert_same


@pytest.mark.parametrize(
    ("has", "wanted"),
    [
        ({"architecture": "x86_64"}, False),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False, "avx512_f": True}, False),
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "x86_64", "amx_bf16": True}, True),
        ({"architecture": "aarch64"}, True),
    ],
)
def test_a_processor_has_what_it_says(monkeypatch: pytest.MonkeyPatch, has: dict[str, Any], wanted: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert has_bf16("cpu") is wanted
    assert computed("bf16", "cpu") == ("bf16" if wanted else "fp32")
    assert computed("fp32", "cpu") == "fp32"


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("vnni", ["avx512_vnni", "avx_vnni", "none"])
def test_int8_is_computed_where_there_is_vnni_and_as_bf16_elsewhere(
    monkeypatch: pytest.MonkeyPatch, vnni: str, bf16: bool
) -> None:
    has = {"architecture": "x86_64", vnni: True, "avx512_bf16": bf16}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert computed("int8", "cpu") == ("int8" if vnni != "none" else computed("bf16", "cpu"))


def test_a_gpu_that_only_emulates_bf16_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert computed("bf16", "cuda") == "fp32"


@pytest.mark.parametrize(("asked", "wanted"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_products_are_in_that_precision(asked: str, wanted: torch.dtype) -> None:
    with autocast(asked, "cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == wanted


def test_a_training_and_a_model_that_is_asked_are_as_in_fp32_where_there_is_no_bf16(
    run: Any, tmp_path: Path, retriever: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: False)
    run("a", precision="bf16", updates=2, log_every=1)
    run("b", precision="fp32", updates=2, log_every=1)
    assert_same(tmp_path / "a", tmp_path / "b")
    options: dict[str, Any] = {"precision": "bf16", "batch_tokens": 100, "cuda": False, "threads": 1}
    model = Inference(DualEncoder, retriever / "model", **options)._model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_weights_in_bf16_have_products_in_bf16_everywhere(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, has in (("a", True), ("b", False)):
        monkeypatch.setattr(precision, "has_bf16", lambda device, has=has: has)
        run(place, precision="bf16", weights="bf16", updates=2, log_every=1)
    assert_same(tmp_path / "a", tmp_path / "b")
