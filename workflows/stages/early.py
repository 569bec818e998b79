"""Early outcomes: the results of the rows so far, so that a run has a verdict long before it ends."""

from collections.abc import Sequence
from dataclasses import replace

from sparring.workflows.stages.results import Results
from sparring.workflows.store.dag import graph
from sparring.workflows.systems.rows import Interim, Outcome, cost_of, is_imported, levels, system_names


def with_early(outcome: Outcome, results: Results, comparisons: Sequence[tuple[str, str]]) -> Outcome:
    """Add early outcomes: one of the rows without training, and one after each training that completes a row.

    `results` has the outcome's rows, and `comparisons` their comparisons. A comparison is made as soon as both systems
    are measured.
    """
    steps = graph([row.ranking or row.metrics for row in results.rows])
    trainings = [node for node in steps if node.description.models == "training"]
    places = {node.fingerprint: place for place, node in enumerate(trainings, 1)}
    stages = [max((places[node.fingerprint] for node in row.trainings), default=0) for row in results.rows]
    expenses, early = levels(results.rows), list[Outcome]()
    for place in sorted(set(stages))[:-1]:
        rows = [row for row, last in zip(results.rows, stages, strict=True) if last <= place]
        names = system_names(rows)
        results_step = replace(results, rows=rows).gather([pair for pair in comparisons if {*pair} <= {*names}])
        moment = f"after {trainings[place - 1].label}" if place else "before training"
        new = next(row for row, last in zip(results.rows, stages, strict=True) if last == place)
        measured = {name: level for name, level in expenses.items() if name in names}
        missing = {name: level for name, level in expenses.items() if name not in names}
        rows_here = [row for row in rows if row.data.fingerprint == outcome.data.fingerprint]
        retrievals = [row.retriever for row in rows_here if row.retriever is not None]
        early.append(
            replace(
                outcome,
                results=replace(results_step, label=f"{results_step.label} {moment}", phase=new.metrics.phase),
                rows=rows,
                retrieval=retrievals[-1],
                ranker=next((row.ranker for row in reversed(rows_here) if row.ranker is not None), None),
                costs=tuple(
                    cost_of(row) for row in {row.name: row for row in rows_here if not is_imported(row)}.values()
                ),
                levels=measured,
                pictures=(),
                interim=Interim(moment, measured, missing),
            )
        )
    return replace(outcome, early=early)
