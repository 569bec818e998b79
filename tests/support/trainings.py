"""Trainings of a moment: the groups they see, what kills them, and what they left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sparring.components.compute import chunking
from sparring.components.compute.chunking import checkpoint, take_rows
from sparring.components.compute.gather import rank, workers
from sparring.components.data.batches import Batch
from sparring.components.training import self_check
from sparring.components.training.gradient_sums import GradientSums
from sparring.components.training.gradients import add_gradients, over_workers
from sparring.components.training.objective import Visit
from sparring.components.training.prepared import Place, prepare
from tests.support import toy
from tests.support.power_cut import PowerCut, cut_power


def groups(count: int, *, negatives: int = 2, teacher: bool = False) -> list[dict[str, Any]]:
    """Groups of the toy queries in turn, with documents that are not relevant as negatives."""
    return [
        {
            "query_id": f"q{i % 24}",
            "visit": i // 24,
            "doc_ids": [f"d{i % 24}", *(f"d{(i % 24 + 11 + 2 * k + i // 24) % 40}" for k in range(negatives))],
            **({"teacher": [float((i + k) % 5) for k in range(negatives + 1)]} if teacher else {}),
        }
        for i in range(count)
    ]


def visits(rows: Iterable[int]) -> list[Visit]:
    """The first visits of some rows."""
    return [Visit(row, 0, 1) for row in rows]


def halved(forward: Any, *max_tokens: Any, use_reentrant: bool) -> Tensor:
    """Gradient caching that gives the right values with half their gradient."""
    values: Tensor = checkpoint(forward, *max_tokens, use_reentrant=use_reentrant)
    return (values + values.detach()) / 2


def unmasked(batch: Batch, rows: Tensor, longest: int) -> Batch:
    """Rows of a batch whose padding is read as text."""
    taken = take_rows(batch, rows, longest)
    return taken._replace(mask=torch.ones_like(taken.mask))


def break_gradients(patch: pytest.MonkeyPatch) -> None:
    """Whatever is run again for its gradient gives half of it."""
    patch.setattr(chunking, "checkpoint", halved)


def break_pieces(patch: pytest.MonkeyPatch) -> None:
    """Whatever is cut in pieces loses its mask."""
    patch.setattr(chunking, "take_rows", unmasked)


def checked(objective: Any) -> float:
    """What is done before an objective's first step."""
    options = toy.train_config()
    expected = self_check.plain(objective, options, visits(range(options.batch)), device=torch.device("cpu"))
    return self_check.compare(objective, expected, device=torch.device("cpu"))


class Interrupted(Exception):
    """Stands for whatever kills a training."""


def gradients(objective: Any, visits: list[Visit], *, parts: int, device: Any, **given: Any) -> dict[str, float]:
    """Add the gradient of some rows to an objective's parameters. Return the losses."""
    place = Place(workers(), rank())
    shares = [prepare(objective, visits, place, parts=parts, part=part, device=device) for part in range(parts)]
    with GradientSums(objective) as sums:
        means, _ = add_gradients(objective, shares, sums, parts=parts, device=device, **given)
    return over_workers([means])[0]


def weights(place: Path) -> dict[str, torch.Tensor]:
    """The weights of its model, of all towers."""
    return {
        f"{path.parent.name}/{name}": value
        for path in sorted((place / "model").rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def lines(place: Path) -> list[dict[str, Any]]:
    """What it logged, but for the time it took."""
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def assert_close(folder: Path, reference: Path) -> None:
    """The same losses, gradient norms, and means of gradients.

    Weights are not compared: where a gradient is 0 but for rounding (the bias of a softmax), Adam takes steps of full
    length in directions that mean nothing.
    """
    for a, b in zip(lines(folder), lines(reference), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    moments = [load_file(place / "state" / "optimizer.safetensors") for place in (folder, reference)]
    assert moments[0].keys() == moments[1].keys()
    for name, value in moments[0].items():
        if name.endswith("exp_avg"):
            torch.testing.assert_close(moments[1][name], value, rtol=2e-3, atol=2e-5, msg=name)


def assert_same(folder: Path, reference: Path) -> None:
    """Bitwise the same model, optimizer, and lines of metrics."""
    a, b = weights(folder), weights(reference)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    a, b = (load_file(place / "state" / "optimizer.safetensors") for place in (folder, reference))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert lines(folder) == lines(reference)


def updates_of_two_runs(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> tuple[list[int], list[int]]:
    """The updates that a training step makes before a power cut in its third, and those when it is called again.

    Its cluster profile must ask for a checkpoint after every update.
    """
    from sparring.components.training import loop

    def update(objective: Any, optimizer: Any, config: Any, state: Any, *rest: Any, **named: Any) -> int:
        number: int = state.update
        return number

    with monkeypatch.context() as power:
        first = cut_power(power, loop, "_update", after=2, note=update)
        with pytest.raises(PowerCut):
            run()
    with monkeypatch.context() as counting:
        second = cut_power(counting, loop, "_update", after=None, note=update)
        run()
    return first, second
