"""What several tests of components share: trainings on toy groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparring.components.training.loop import Execution, train
from sparring.components.training.objective import ObjectiveInputs, objective_named
from tests.support import toy
from tests.support.trainings import Interrupted, groups


@pytest.fixture
def run(tmp_path: Path, data: Path, tokens: Path, retriever: Path, ranker: Path) -> Callable[..., dict[str, Any]]:
    """Trains at `tmp_path / place` on toy groups."""
    rows = toy.write_groups(tmp_path / "groups", groups(24, teacher=True))
    held = toy.write_groups(tmp_path / "dev", groups(6, negatives=5))

    def trained(
        place: str,
        *,
        kind: str = "retriever",
        stop: int | None = None,
        start: Path | None = None,
        dev: bool = False,
        save_seconds: float = -1.0,
        seed: int = 1,
        model: Path | None = None,
        recompute: bool = False,
        piece: int = 200,
        execution: Execution | None = None,
        **config: Any,
    ) -> dict[str, Any]:
        options = toy.train_config(**config)
        begins = {"retriever": retriever, "ranker": ranker}[kind] if start is None else start
        output = objective_named(kind)(
            ObjectiveInputs(
                model=(model or begins) / "model",
                rows=rows,
                data=data,
                tokens=tokens,
                losses=options.losses,
                max_tokens=piece,
                recompute=recompute,
            ),
        )

        def on_update(update: int, note: str) -> None:
            if update == stop:
                raise Interrupted

        return train(
            output,
            options,
            out=tmp_path / place,
            seed=seed,
            start=begins,
            device=torch.device("cpu"),
            dev=output.reading(held) if dev else None,
            save_seconds=save_seconds,
            on_update=on_update,
            execution=execution or Execution(),
        )

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return trained
