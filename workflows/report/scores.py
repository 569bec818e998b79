"""The scores of a run's systems, a line each, for those who watch the run."""

from collections.abc import Iterable, Mapping, Sequence

from sparring.components.evaluation.result_table import unsigned
from sparring.workflows.running.view import columns
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row

GAP = "  "


class Scores:
    """A line for each system that was measured: its name and its measures, from the record of the step that measured
    it. Seeds that share a measurement share the line."""

    def __init__(self, systems: Sequence[Row], store: Store) -> None:
        self._store = store
        self._steps = {system.metrics.fingerprint: system.metrics for system in systems}
        self._names = _names(systems)
        self._width = max(map(len, self._names.values()), default=0)

    @property
    def steps(self) -> Mapping[str, Step]:
        """The steps that measure systems, by fingerprint."""
        return self._steps

    def after(self, node: Step) -> list[str]:
        """Return the line of the system that a finished step measured, with as many measures as fit.

        The list is empty for other steps.
        """
        record = self._store.record(node) if node.fingerprint in self._steps else None
        if record is None:
            return []
        line, width = f"{GAP}{self._names[node.fingerprint].ljust(self._width)}", columns()
        for number, (measure, value) in enumerate(record["summary"]["measures"].items()):
            cell = f"{GAP}{measure} {unsigned(value)}"
            if number and len(line) + len(cell) > width:
                break
            line += cell
        return [line]

    def before(self, waiting: Iterable[Step]) -> list[str]:
        """Return the lines of the systems that were measured before the waiting steps run."""
        unfinished = {node.fingerprint for node in waiting}
        return [line for name, node in self._steps.items() if name not in unfinished for line in self.after(node)]


def _names(systems: Sequence[Row]) -> dict[str, str]:
    """Name each measurement, by its step's fingerprint. The name has the collection and the seed if these differ."""
    collections = {system.collection for system in systems}
    seeds: dict[str, set[int]] = {}
    for system in systems:
        seeds.setdefault(system.metrics.fingerprint, set()).add(system.seed)
    distinguish_seeds = len(set().union(*seeds.values())) > 1
    names: dict[str, str] = {}
    for system in systems:
        seeds_here = seeds[system.metrics.fingerprint]
        place = f" on {system.collection}" if len(collections) > 1 else ""
        seed = f" (seed {system.seed})" if distinguish_seeds and len(seeds_here) == 1 else ""
        names.setdefault(system.metrics.fingerprint, f"{system.name}{place}{seed}")
    return names
