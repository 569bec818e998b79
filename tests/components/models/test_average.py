"""Models between a start model and a trained one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparring.components.models.average import average_weights
from tests.support.errors import refused


def model(folder: Path, *, dtype: torch.dtype = torch.float32, **weights: list[float]) -> Path:
    """A saved model with some weights."""
    (folder / "query").mkdir(parents=True)
    save_file(
        {name: torch.tensor(value, dtype=dtype) for name, value in weights.items()},
        folder / "query" / "model.safetensors",
    )
    (folder / "config.json").write_text(folder.name)
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_lie_between_those_of_the_models(tmp_path: Path, dtype: torch.dtype) -> None:
    start = model(tmp_path / "start", dtype=dtype, a=[0.0, 4.0], b=[1.0])
    trained = model(tmp_path / "trained", dtype=dtype, a=[8.0, 0.0], b=[1.0])
    (tmp_path / "out").mkdir()
    assert average_weights(start, trained, tmp_path / "out", 0.25) == 3
    average = load_file(tmp_path / "out" / "query" / "model.safetensors")
    assert {name: value.tolist() for name, value in average.items()} == {"a": [2.0, 3.0], "b": [1.0]}
    assert average["a"].dtype == dtype
    assert (tmp_path / "out" / "config.json").read_text() == "trained"
    assert load_file(trained / "query" / "model.safetensors")["a"].tolist() == [8.0, 0.0]


def test_models_of_other_parts_have_no_average(tmp_path: Path) -> None:
    start, trained = model(tmp_path / "start", a=[0.0]), model(tmp_path / "trained", a=[0.0], adapter=[1.0])
    (tmp_path / "out").mkdir()
    with refused("average", "other-weights"):
        average_weights(start, trained, tmp_path / "out", 0.5)
