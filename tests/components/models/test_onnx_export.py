"""Encoders as ONNX files: what ONNX Runtime makes of them is what we do."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.models import onnx_export
from tests.support import toy

installed = pytest.mark.skipif(
    any(find_spec(name) is None for name in onnx_export.PACKAGES), reason="the extra `onnx` is not installed"
)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None if name.startswith("onnxs") else object())
    with pytest.raises(
        UserError, match=r"--onnx: this option needs the package onnxscript. Install: pip install onnxscript"
    ):
        onnx_export.check_packages()
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: object())
    onnx_export.check_packages()


@installed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "files"),
    [
        ({"pooling": "mean", "similarity": "cosine"}, ["onnx/model.onnx"]),
        (
            {"towers": "separate", "projection": 8, "query_prompt": "bara: "},
            ["document/onnx/model.onnx", "query/onnx/model.onnx"],
        ),
    ],
)
def test_a_retrievers_vectors(encoder: Path, tmp_path: Path, keys: dict[str, Any], files: list[str]) -> None:
    """Of other batches than the one that it was written with, too."""
    import onnxruntime
    import torch

    from sparring.components.models.dual_encoder import DualEncoder

    folder = toy.started(tmp_path / "retriever", toy.retriever_config(encoder, **keys)) / "model"
    assert onnx_export.export_retriever(folder) < 1e-5
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx")) == files
    session = onnxruntime.InferenceSession(str(folder / files[0]), providers=["CPUExecutionProvider"])
    assert [item.name for item in session.get_inputs()] == list(onnx_export.INPUTS)
    tower = DualEncoder.load(folder).eval().tower("document")
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (1, 7), (5, 30)):
        ids = torch.from_numpy(rng.integers(5, 60, shape))
        mask = torch.from_numpy((np.arange(shape[1])[None] < rng.integers(1, shape[1] + 1, (shape[0], 1))).astype(int))
        with torch.inference_mode():
            actual = tower(input_ids=ids, attention_mask=mask).last_hidden_state
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        (expected,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        assert np.abs(expected - actual.numpy())[mask.numpy() > 0].max() < 1e-5


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "output"), [("cls", "logits"), ("maxsim", "last_hidden_state")])
def test_a_rankers_scores(encoder: Path, tmp_path: Path, pooling: str, output: str) -> None:
    import onnxruntime

    folder = toy.started(tmp_path / "ranker", toy.ranker_config(encoder, pooling=pooling)) / "model"
    assert onnx_export.export_ranker(folder) < 1e-4
    session = onnxruntime.InferenceSession(str(folder / onnx_export.FILE), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == [output]


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "size"), [("fp16", 0.7), ("int8", 0.5)])
def test_rounded_files_are_smaller_and_nearly_equal(
    tmp_path: Path, precision: onnx_export.Precision, size: float
) -> None:
    """Their difference from the model is more than fp32's, so that the weights were rounded, and is returned."""
    encoder = toy.write_encoder(tmp_path / "encoder", hidden_size=128, intermediate_size=256)
    retriever = toy.retriever_config(encoder, pooling="mean", similarity="cosine")
    folders = [toy.started(tmp_path / name, retriever) / "model" for name in ("whole", "rounded")]
    differences = [
        onnx_export.export_retriever(folder, name) for folder, name in zip(folders, ("fp32", precision), strict=True)
    ]
    assert differences[0] < 1e-5 < differences[1] < 0.1
    whole, rounded = ((folder / onnx_export.FILE).stat().st_size for folder in folders)
    assert rounded < size * whole
    folder = toy.started(tmp_path / "ranker", toy.ranker_config(encoder, pooling="cls")) / "model"
    assert 1e-6 < onnx_export.export_ranker(folder, precision) < 0.1


@installed
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
def test_other_encoders(kind: str, tmp_path: Path) -> None:
    config = toy.retriever_config(toy.write_encoder(tmp_path / "encoder", kind), pooling="mean", dropout=None)
    folder = toy.started(tmp_path / "retriever", config) / "model"
    assert onnx_export.export_retriever(folder) < 1e-4


@installed
@pytest.mark.slow
def test_what_torch_cannot_write_is_named(tmp_path: Path) -> None:
    config = toy.retriever_config(toy.write_encoder(tmp_path / "encoder", "t5"), pooling="mean")
    folder = toy.started(tmp_path / "retriever", config) / "model"
    with pytest.raises(UserError, match="--onnx: torch cannot write t5 models as ONNX"):
        onnx_export.export_retriever(folder)


@installed
@pytest.mark.slow
def test_other_numbers_than_ours_are_refused(retriever: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(retriever / "model", tmp_path / "model")
    monkeypatch.setitem(onnx_export.TOLERANCES, "fp32", 0.0)
    with pytest.raises(
        UserError, match=r"ONNX Runtime and the model differ in the output of a query by [\d.e-]+, more"
    ):
        onnx_export.export_retriever(folder)
