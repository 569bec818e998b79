"""What several tests of components share: trainings on toy groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components.training import objective_named, train
from tests import toy
from tests.trainings import Interrupted, groups


@pytest.fixture
def run(tmp_path: Path, data: Path, tokens: Path, retriever: Path, ranker: Path) -> Callable[..., dict[str, Any]]:
    """Trains at `tmp_path / place` on toy groups."""
    rows = toy.write_groups(tmp_path / "groups", groups(24, teacher=True)) / "groups.parquet"
    held = toy.write_groups(tmp_path / "dev", groups(6, negatives=5)) / "groups.parquet"

    def trained(
        place: str, *, kind: str = "retriever", stop: int | None = None, start: Path | None = None, dev: bool = False,
        save_seconds: float = -1.0, seed: int = 1, model: Path | None = None, recompute: bool = False,
        piece: int = 200,
        **config: Any,
    ) -> dict[str, Any]:  # fmt: skip
        options = toy.train_config(**config)
        begins = {"retriever": retriever, "ranker": ranker}[kind] if start is None else start

        def build(table: Path) -> Any:
            return objective_named(kind)(
                (model or begins) / "model", rows=table, data=data, tokens=tokens, losses=options.losses, piece=piece,
                recompute=recompute,
            )  # fmt: skip

        def on_step(step: int, note: str) -> None:
            if step == stop:
                raise Interrupted

        return train(
            build(rows), options, out=tmp_path / place, seed=seed, start=begins, device=torch.device("cpu"),
            dev=build(held) if dev else None, save_seconds=save_seconds, on_step=on_step,
        )  # fmt: skip

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return trained
