"""The report's curves of trainings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sparring.components.training.config import LOG
from sparring.workflows.report.finished import finished_steps
from sparring.workflows.report.sections import curves as section
from sparring.workflows.report.sections.curves import curves
from sparring.workflows.running.executor import execute
from sparring.workflows.store.dag import Description, Step, graph, step
from sparring.workflows.store.store import Store


@Description(models="training", shows=(LOG,))
def train(out: Path, machine: Any, *, seed: int, lines: list[dict[str, float]]) -> dict[str, Any]:
    (out / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"updates": 4, "best": {"value": 0.5, "update": 2}}


def lines(seed: int) -> list[dict[str, float]]:
    details = {"learning_rate": 1e-5, "gradient_norm": 1.0, "seconds": 2.0}
    return [
        {"update": 0, "dev RR": 0.4, "dev rank": 7.0, "dev loss": 3.0},
        {"update": 2, "distillation (group)": 2.0 + seed, "cross_entropy (batch)": 1.0, **details},
        {"update": 4, "distillation (group)": 1.0 + seed, "cross_entropy (batch)": 0.5, **details},
        {"update": 4, "dev RR": 0.5, "dev rank": 5.0, "dev loss": 2.0},
    ]


def finished(wanted: list[Step], folder: Path) -> tuple[Any, Store]:
    store = Store(folder)
    for node in graph(wanted):
        execute(node, store, None, on_wait=print)
    return finished_steps(wanted, store), store


def test_losses_measures_and_the_rate_have_charts(tmp_path: Path) -> None:
    output = [step(f"retriever 1 (seed {seed})", train, seed=seed, lines=lines(seed)) for seed in (1, 2)]
    result = curves(*finished([*output, step("a step without a log", train, seed=3, lines=[])], tmp_path))
    [training] = result["trainings"]
    assert (training["label"], training["seeds"], training["updates"]) == ("retriever 1", 2, 4)
    assert training["best"] == [2, 2]
    titles = [chart["title"] for chart in training["charts"]]
    assert titles == ["loss", "on dev rows", "on dev rows", "learning rate"]
    text = [re.search(r'aria-label="([^"]+)"', chart["svg"]) for chart in training["charts"]]
    assert [match[1] for match in text if match] == [
        "loss: distillation (group) ends at 2.5; cross_entropy (batch) ends at 0.5; dev loss ends at 2",
        "on dev rows: RR ends at 0.5",
        "on dev rows: rank ends at 5",  # not between 0 and 1: a chart of its own
        "learning rate: learning rate ends at 1e-05",
    ]
    assert "dashed" in training["charts"][0]["svg"]


def test_many_trainings_are_counted_and_not_all_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "MOST", 2)
    output = [step(f"training {number}", train, seed=number, lines=lines(number)) for number in range(5)]
    result = curves(*finished(output, tmp_path))
    assert [item["label"] for item in result["trainings"]] == ["training 0", "training 1"]
    assert result["left_out"] == 3
