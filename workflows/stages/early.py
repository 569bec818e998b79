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
    made = graph([row.ranking or row.metrics for row in results.rows])
    trainings = [node for node in made if node.description.models == "training"]
    places = {node.fingerprint: place for place, node in enumerate(trainings, 1)}
    reached = [max((places[node.fingerprint] for node in row.trainings), default=0) for row in results.rows]
    whole, early = levels(results.rows), list[Outcome]()
    for place in sorted(set(reached))[:-1]:
        rows = [row for row, last in zip(results.rows, reached, strict=True) if last <= place]
        names = system_names(rows)
        gathered = replace(results, rows=rows).gather([pair for pair in comparisons if {*pair} <= {*names}])
        moment = f"after {trainings[place - 1].label}" if place else "before training"
        newest = next(row for row, last in zip(results.rows, reached, strict=True) if last == place)
        retrievals = [row.retriever for row in rows if row.retriever is not None]
        early.append(
            replace(
                outcome,
                results=replace(gathered, label=f"{gathered.label} {moment}", phase=newest.metrics.phase),
                rows=rows,
                retrieval=retrievals[-1],
                ranker=next((row.ranker for row in reversed(rows) if row.ranker is not None), None),
                costs=tuple(cost_of(row) for row in {row.name: row for row in rows if not is_imported(row)}.values()),
                levels={name: whole[name] for name in names if name in whole},
                pictures=(),
                interim=Interim(moment, {name: level for name, level in whole.items() if name not in names}),
            )
        )
    return replace(outcome, early=early)
