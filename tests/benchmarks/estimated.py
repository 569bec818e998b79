"""How good estimates are on records that a store has: the steps of all seeds but the first, once by the records of
the first, once by nothing but the rates of an idle core, beside what they took.

    python -m tests.benchmarks.estimated CONFIG --store STORE --cluster FILE [--before 2026-11-24T21:58]
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparring.workflows.distributed.cluster import read_cluster
from sparring.workflows.distributed.site import site
from sparring.workflows.estimating import rates
from sparring.workflows.estimating.estimate import estimate
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store


class OldStore(Store):
    """A store without what was finished later than some time."""

    before = float("inf")

    def record(self, node: Step) -> dict[str, Any] | None:
        """The record of a step that was finished in time."""
        record = super().record(node)
        return record if record is not None and record["started"] + record["seconds"] < self.before else None


def compared(nodes: list[Step], wanted: Collection[Step], arguments: argparse.Namespace, store: Store) -> list[str]:
    """A line for each step function: how many steps, seconds estimated and taken."""
    here = site(read_cluster(arguments.cluster), store.root)
    hidden = {node.fingerprint for node in wanted}
    found = estimate(nodes, hidden, here, store, assumed={}, quick=True)
    sums: dict[str, list[float]] = {}
    for row in found.waiting:
        record = store.record(row.node)
        assert record is not None
        for name in (row.node.function.__name__, "all"):
            numbers = sums.setdefault(name, [0, 0.0, 0.0])
            for at, number in enumerate((1, row.seconds, record["seconds"])):
                numbers[at] += number
    return [
        f"| {name} | {count} | {seconds:.1f} | {took:.1f} | {seconds / took:.2f} |"
        for name, (count, seconds, took) in sorted(sums.items(), key=lambda one: -one[1][2])
    ]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--before", help="leave out what was finished later (UTC), such as on a machine that was busy")
    arguments = parser.parse_args()
    rates.slowness = lambda: (1.0, 1.0)  # the records' machine was idle; this one may not be
    store = OldStore(arguments.store)
    if arguments.before:
        store.before = datetime.fromisoformat(arguments.before).replace(tzinfo=UTC).timestamp()
    nodes = graph(loading.read(arguments.config, [], Path("runs")).wanted)
    done = [node for node in nodes if store.record(node) is not None]
    later = [node for node in done if "(seed " in node.label and "(seed 1)" not in node.label]
    for title, wanted in {"from the first seed's records": later, "from no record": done}.items():
        print(f"{title}\n\n| step | steps | estimated, s | took, s | ratio |\n|---|---|---|---|---|")
        print("\n".join(compared(nodes, wanted, arguments, store)), end="\n\n")


if __name__ == "__main__":
    main()
