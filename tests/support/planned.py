"""The plans of the repository's configs, each made once in a process: reading them all takes many seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sparring.components.yaml_files import read_based
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.expected import KEY
from sparring.workflows.experiments.scale import why_not
from sparring.workflows.running.plan import plan_text
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from tests.support.tiny import ROOT

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))


class Planned(NamedTuple):
    """A config's plan where nothing was done yet."""

    text: str
    functions: frozenset[Callable[..., Any]]
    """Those of its steps."""
    parts: frozenset[tuple[str, str]]
    """Its steps' labels, each with the part of a run that the step belongs to."""
    phases: frozenset[tuple[str, str]]
    """Its steps' labels, each with the phase of the run that makes the step."""


SMALL = [path for path in CONFIGS if KEY in (tree := read_based(path)) and tree[KEY] and why_not(tree) is None]
"""The papers' tables that have a small twin."""


@cache
def planned(config: Path, *sets: str) -> Planned:
    """A config's plan, with `--set` values. `adapt` takes numbers from its collection, which is not there: the texts of
    a package are others in its next version. Of a cross-validation it is that of one seed."""
    source = "data={format: beir, path: nowhere}"
    assignments = {"adapt": [source], "folds": [f"sets={json.dumps([source, 'seeds=[1]'])}"]}.get(
        read_based(config)["recipe"], []
    )
    nowhere = Path("nowhere")
    wanted = loading.read(config, [*assignments, *sets], nowhere / "runs").wanted
    nodes = graph(wanted)
    functions, parts = frozenset(node.function for node in nodes), frozenset((node.label, node.part) for node in nodes)
    phases = frozenset((node.label, node.phase) for node in nodes)
    return Planned(plan_text(wanted, Store(nowhere / "store")) + "\n", functions, parts, phases)
