"""Which workers the steps of finished runs ask for where models run on GPUs, of each step's own function."""

from __future__ import annotations

import dis
import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sparring.workflows.distributed.cluster import Cluster, Pool, TrainPool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.experiments import loading
from sparring.workflows.running.executor import resolve_inputs
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from tests.support.tiny import ROOT, Place

Asked = tuple[str, bool]
"""A pool of the profile's, and whether each of its workers has a GPU."""


class Asking(Exception):
    """A step has come so far that it asks for its workers."""


def asked(
    config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *places: Place, elsewhere: Collection[str] = ()
) -> dict[str, Asked]:
    """The first workers that each function asks for which needs any. A search is named with its index.

    The steps are those of finished runs, whose artifacts they read. All functions of the config are among them, except
    functions that do not use the machine that they are given, and those that another test covers (`elsewhere`).
    """
    cluster = Cluster(map=Pool(workers=1), score=Pool(workers=2), java=Pool(workers=3), train=TrainPool(workers=1))
    machine = Machine(cluster, nodes=1, cores=2, cpus=2, gpus=1.0, memory=1e9)
    pools = {"map": cluster.map, "score": cluster.score, "java": cluster.java}

    def of_map(*_: Any, pool: Pool, gpu: bool = False, **__: Any) -> NoReturn:
        raise Asking(next((name for name, candidate in pools.items() if candidate is pool), "its own"), gpu)

    def of_training(work: Any, task: Any, machine: Machine, **_: Any) -> NoReturn:
        raise Asking("train", machine.cuda)

    nodes = [(place, node) for place in places for node in graph(loading.read(place.config, [], place.runs).wanted)]
    wanted = graph(loading.read(ROOT / "configs" / config, [], tmp_path).wanted)
    for function in {node.function for node in wanted} - {node.function for _, node in nodes}:
        names = {instruction.argval for instruction in dis.get_instructions(function)}
        assert function.__name__ in elsewhere or "machine" not in names, function
    monkeypatch.setattr("sparring.components.retrieval.index.built_for_gpus", lambda: True)
    for module in (
        "sparring.workflows.distributed.shards",
        "sparring.workflows.distributed.indexing",
        *{node.function.__module__ for _, node in nodes},
    ):
        for name, recorder in {"map_shards": of_map, "train_together": of_training}.items():
            if hasattr(importlib.import_module(module), name):
                monkeypatch.setattr(f"{module}.{name}", recorder)
    pools_of: dict[str, set[Asked]] = {}
    for number, (place, node) in enumerate(nodes):
        (out := tmp_path / f"{number:03d}").mkdir()
        try:
            node.function(out, machine, **resolve_inputs(node.inputs, Store(place.store)))
        except Asking as asking:
            indexed = getattr(node.inputs.get("config"), "index", None)
            name = f"{node.function.__name__}{f' ({indexed})' if indexed else ''}"
            pools_of.setdefault(name, set()).add(asking.args)
    assert all(len(ways) == 1 for ways in pools_of.values()), pools_of
    return {name: ways.pop() for name, ways in pools_of.items()}
