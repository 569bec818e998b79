"""The cost of each system: its index, and the time of a query (Chuang et al., 2023, Table 3.11)."""

from collections.abc import Iterable, Iterator, Sequence

from sparring.components.evaluation.measures import mean_and_deviation
from sparring.workflows.report.finished import Json
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row, SystemCost, cost_of, is_imported
from sparring.workflows.systems.system import SEARCHED, Charge, TimeSpent


def spent_by(systems: Sequence[Row], stated: Sequence[SystemCost]) -> Sequence[SystemCost]:
    """Return the costs that a recipe states, or else the costs of its systems on their first collection.

    With several seeds a cost is that of the last one. Systems that nobody could deploy, and systems whose steps are not
    timed, have none.
    """
    if stated:
        return stated
    first = next(((row.collection, row.split) for row in systems), None)
    rows = {
        row.name: row
        for row in systems
        if (row.collection, row.split) == first and row.system is not None and not row.oracle and not is_imported(row)
    }
    derived = map(cost_of, rows.values())
    return [cost for cost in derived if cost.expand or cost.retrieve or cost.rerank]


def costs(systems: Iterable[SystemCost], store: Store, rows: list[Json]) -> Iterator[Json]:
    """Yield for each system whose steps are all finished: seconds and bytes of its index, seconds and money a query,
    and its value. Money is None if nobody stated a price.

    The start of workers is left out, as it does not grow with the queries.
    """
    names = list(dict.fromkeys(row["measure"] for row in rows))
    measure = next((name for name in names if name.endswith("@5")), names[0] if names else "")
    for cost in systems:
        phases = {"expand": cost.expand, "rerank": cost.rerank, "retrieve": cost.retrieve}
        spent = [span for spans in phases.values() for span in spans]
        steps = [
            *(charge.step for charge in cost.charges),
            *cost.index,
            *(step for span in spent for step in (span.step, span.over) if step is not None),
        ]
        records = {node.fingerprint: record for node in steps if (record := store.record(node)) is not None}
        if any(node.fingerprint not in records for node in steps):
            continue
        times = {name: [_each(span, records) for span in spans] for name, spans in phases.items()}
        system = cost.measured or cost.system
        measured = [row for row in rows if (row["system"], row["measure"]) == (system, measure)]
        # Over the seeds: other judgements of the same queries come behind.
        values = [
            row["value"] for row in measured if all(row[key] == measured[0][key] for key in ("collection", "split"))
        ]
        yield {
            "system": cost.system,
            "measured": system,
            "build": sum(busy(records[node.fingerprint]) for node in cost.index),
            "bytes": sum(store.sizes(cost.searched, *SEARCHED)),
            **{name: sum(spans) if spans else None for name, spans in times.items()},
            "query": sum(map(sum, times.values())),
            "money": _money(cost.charges, records),
            "measure": measure,
            "value": mean_and_deviation(values)[0] if values else None,
        }


def _each(spent: TimeSpent, records: dict[str, Json]) -> float:
    """Return the seconds of a step for each counted unit."""
    counted = records[(spent.over or spent.step).fingerprint]
    return _of(spent, records) / max(1, counted["summary"][spent.per])


def _of(spent: TimeSpent, records: dict[str, Json]) -> float:
    """Return the seconds of a step, or of the part of it that counts."""
    record = records[spent.step.fingerprint]
    if spent.seconds is not None:
        return float(record["summary"][spent.seconds])
    part, whole = (record["summary"].get(name, 0.0) for name in spent.share or ("", ""))
    return busy(record) * (part / whole if whole else 1.0)


def _money(charges: Sequence[Charge], records: dict[str, Json]) -> float | None:
    """Return the money that a query takes. None if there is no price, or if an address counts no tokens."""
    summaries = [records[charge.step.fingerprint]["summary"] for charge in charges]
    prices = [charge.price.of(summary) for charge, summary in zip(charges, summaries, strict=True)]
    if not charges or None in prices:
        return None
    return sum(price / max(1, summary["queries"]) for price, summary in zip(prices, summaries, strict=True) if price)


def busy(record: Json) -> float:
    """Return the seconds that a step computed, read and wrote, or all its time if that was not measured."""
    time = record.get("time") or {}
    return float(time["compute"] + time["files"] if time else record["seconds"])
