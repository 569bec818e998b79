"""The record of a run: what it measured and how, in one JSON file that is small enough to commit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparring.workflows import ROOT
from sparring.workflows.report.finished import Finished, Json
from sparring.workflows.report.timeline import course
from sparring.workflows.systems.rows import Outcome

MEASURED = ("rows", "means", "comparisons", "leading", "notes", "unmeasured", "expected", "verdict")
"""Keys of `metrics.json` that a record copies."""


COUNTED = ("documents", "queries")
"""Counts of a collection that a record copies: documents, and queries of each split."""


def record_of(metrics: Json, steps: Finished, outcome: Outcome, *, config: Path, assignments: Sequence[str]) -> Json:
    """Return what was measured, and under `run` how: command, code, days, machines, time and data.

    `steps` are the run's finished steps. No path of this machine is in the record: a config outside the repository goes
    by its file's name.
    """
    records = [record for _, record in sorted(steps, key=lambda pair: pair[1]["started"])]
    names = {system.data.fingerprint: system.collection for system in outcome.rows}
    seconds: dict[str, list[float]] = {}
    for node, record in steps:
        seconds.setdefault(node.function.__name__, []).append(record["seconds"])
    days = [
        datetime.fromtimestamp(moment, UTC).date().isoformat()
        for moment in (records[0]["started"], max(record["started"] + record["seconds"] for record in records))
    ]
    run = {
        "config": config_name(config),
        "set": list(assignments),
        "results": outcome.results.fingerprint[:12],
        "seeds": sorted({row["seed"] for row in metrics["rows"]}),
        "days": list(dict.fromkeys(days)),
        "code": _distinct(record["code"] for record in records if record["code"]),
        "machines": _distinct(map(_machine, records)),
        "seconds": round(course([(record["started"], record["seconds"]) for record in records])[1], 1),
        "steps": {name: {"steps": len(times), "seconds": round(sum(times), 1)} for name, times in seconds.items()},
        "collections": [
            {"name": names.get(node.fingerprint, node.label), **{key: record["summary"].get(key) for key in COUNTED}}
            for node, record in steps
            if node.description.makes == "collection"
        ],
    }
    return {"run": run, **{key: metrics[key] for key in MEASURED if key in metrics}}


def config_name(config: Path) -> str:
    """Name a config in a record: by its path in the repository, or else by its file name."""
    place = config.resolve()
    return place.relative_to(ROOT).as_posix() if place.is_relative_to(ROOT) else config.name


def recorded(path: Path) -> tuple[str, list[str]] | None:
    """Return the config that a file is a record of, with its `--set` assignments. None if it is no record."""
    if not path.is_file():  # a device may never end
        return None
    try:
        run = json.loads(path.read_text())["run"]
        return run["config"], run.get("set", [])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def text_of(record: Json) -> str:
    """Format a record as JSON with a line for each row, mean, comparison and key, so that versions compare well."""

    def line(value: Any) -> str:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)

    parts = []
    for key, value in record.items():
        inside = (
            [f"{line(name)}: {line(entry)}" for name, entry in value.items()]
            if isinstance(value, dict)
            else ([line(item) for item in value] if isinstance(value, list) else [])
        )
        start, end = "{}" if isinstance(value, dict) else "[]"
        text = f"{start}\n  " + ",\n  ".join(inside) + f"\n {end}" if inside else line(value)
        parts.append(f" {line(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _machine(record: Json) -> Json:
    """Describe the machine that a step ran on, as far as its record does."""
    profile, machine = record["cluster"] or {}, record.get("machine", {})
    train = profile.get("train", {})
    return {
        **{key: machine[key] for key in ("processor", "cores", "gpus") if key in machine},
        "device": profile.get("device"),
        "mode": profile.get("mode"),
        "train": {key: train.get(key) for key in ("workers", "threads")},
    }


def _distinct(values: Iterator[Any]) -> list[Any]:
    """Return each value once, in order of first appearance."""
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct
