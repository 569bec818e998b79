"""The expected time of a run on this machine, for a recipe that fits its numbers into a time."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from sparring.workflows import ROOT
from sparring.workflows.distributed.cluster import read_cluster
from sparring.workflows.estimating.estimate import works
from sparring.workflows.estimating.rates import Rates, slowness
from sparring.workflows.estimating.site import site
from sparring.workflows.estimating.sizes import Collection
from sparring.workflows.store.dag import Step, graph

STEP = 1.3
"""Factor between measured speeds that are told apart, so that a machine has the same one most of the time."""
READING = 1.5
"""Seconds for which a collection is read, to size it."""


class Clock:
    """Expected times of runs on this machine, with the default profile and without other programs.

    The rates are measured once, so that equal graphs take equal times.
    """

    def __init__(self) -> None:
        machine = site(read_cluster(ROOT / "cluster" / "laptop.yaml"), Path.cwd())
        slow, share = _measured()
        rounded = STEP ** round(math.log(slow * share, STEP))
        self._rates, self._sizes = Rates(machine, rounded), dict[str, Collection]()

    def seconds(self, wanted: Iterable[Step]) -> float:
        """Estimate the seconds of all steps that lead to the wanted ones. Steps of unknown work count as none.

        UserError if the collection cannot be read.
        """
        nodes, rates = graph(wanted), replace(self._rates, _started=set())
        described, _ = works(nodes, rates.site, None, {}, seconds=READING, cache=self._sizes)
        works_of_steps = ((node, described[node.fingerprint]) for node in nodes)
        return sum(rates.seconds(node, work) for node, work in works_of_steps if work is not None)


_measured = cache(slowness)
