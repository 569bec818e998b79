"""Means over collections, each counting alike, and the interval of every mean."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparring.components.evaluation.significance import compare_averages, ends, estimate, layouts

AVERAGE = "average"
"""Name of averages in the column of collections."""
ALL_SPLITS = "all"
"""Name of averages in the column of splits."""

Json = dict[str, Any]
Place = tuple[str, str]
"""A collection and its split."""
Measured = Mapping[tuple[str, str, str], Mapping[int, pa.Table]]
"""Per-query tables by seed, by system, collection and split."""


@dataclass(frozen=True)
class Average:
    """A mean over collections, as if it were one more collection."""

    name: str
    over: list[str]
    """Members of the average, with equal weight: collections and wholes."""
    weights: dict[Place, float]
    """Weight of each collection."""


Parts = Mapping[str, str | None]
"""For a collection that is a part of a whole, the whole; None for one that no average counts."""


def averages(places: Iterable[Place], parts: Parts) -> list[Average]:
    """Return the wholes that `parts` names, and last the average over all places that count, if any does.

    A whole is the mean over its parts, and counts once in the average, as CQADupStack's twelve forums do in BEIR
    (Thakur et al., 2021).

    >>> for average in averages([("android", "test"), ("SciFact", "test"), ("english", "test")],
    ...                         {"android": "CQADupStack", "english": "CQADupStack"}):
    ...     print(average.name, average.over, {name: weight for (name, _), weight in average.weights.items()})
    CQADupStack ['android', 'english'] {'android': 0.5, 'english': 0.5}
    average ['SciFact', 'CQADupStack'] {'SciFact': 0.5, 'android': 0.25, 'english': 0.25}
    """
    places = list(dict.fromkeys(places))
    wholes = []
    for whole in (name for name in dict.fromkeys(parts.values()) if name is not None):
        wholes.append(_mean(whole, [_alone(place) for place in places if parts.get(place[0]) == whole]))
    wholes = [average for average in wholes if average.weights]
    counted = [_alone(place) for place in places if place[0] not in parts] + wholes
    return [*wholes, _mean(AVERAGE, counted)] if counted else []


def _measured_alike(measured: Iterable[tuple[str, Place]]) -> Iterator[tuple[list[str], list[Place]]]:
    """Group measures by the places that they were measured on. An average of a measure is over these places."""
    places: dict[str, dict[Place, None]] = {}
    for measure, place in measured:
        places.setdefault(measure, {})[place] = None
    alike: dict[tuple[Place, ...], list[str]] = {}
    for measure, measured_on in places.items():
        alike.setdefault(tuple(measured_on), []).append(measure)
    return ((measures, list(measured_on)) for measured_on, measures in alike.items())


def _averages_of(entries: Iterable[Json], parts: Parts) -> Iterator[tuple[list[str], Average]]:
    """Yield the averages of rows or means on collections, each with its measures."""
    alike = _measured_alike((entry["measure"], (entry["collection"], entry["split"])) for entry in entries)
    return ((measures, average) for measures, places in alike for average in averages(places, parts))


def _alone(place: Place) -> Average:
    return Average(place[0], [place[0]], {place: 1.0})


def _mean(name: str, counted: Sequence[Average]) -> Average:
    weights = {place: weight / len(counted) for average in counted for place, weight in average.weights.items()}
    return Average(name, [average.name for average in counted], weights)


def averages_of(rows: Sequence[Json], parts: Parts) -> list[Json]:
    """Average the rows of each system, measure and seed that has all collections of an average.

    The collections of a measure are all that any system was measured on. `queries` is their total number of queries,
    `over` lists what the mean is taken over.
    """
    averaged = []
    for measures, average in _averages_of(rows, parts):
        groups: dict[tuple[str, str, int], dict[Place, Json]] = {}
        for row in (row for row in rows if row["measure"] in measures):
            if (place := (row["collection"], row["split"])) in average.weights:
                groups.setdefault((row["system"], row["measure"], row["seed"]), {})[place] = row
        averaged += [
            {
                "system": system,
                "round": None,
                "collection": average.name,
                "split": ALL_SPLITS,
                "seed": seed,
                "measure": measure,
                "value": sum(average.weights[place] * row["value"] for place, row in by_place.items()),
                "queries": sum(row["queries"] for row in by_place.values()),
                "over": average.over,
            }
            for (system, measure, seed), by_place in groups.items()
            if len(by_place) == len(average.weights)
        ]
    return averaged


def means_of(measured: Measured, parts: Parts | None = None) -> list[Json]:
    """Return the mean of each system and measure on each collection, over all seeds, with its 95 % interval.

    With one seed the interval is over the queries, with more over queries and trainings. With `parts`, entries of
    `averages` are added.
    """
    entries = []
    for system, collection, split in measured:
        entries += _means(system, _alone((collection, split)), split, measured)
    if parts is not None:
        systems = dict.fromkeys(system for system, _, _ in measured)
        for measures, average in list(_averages_of(entries, parts)):
            for system in systems:
                of_system = _means(system, average, ALL_SPLITS, measured, over=average.over)
                entries += [mean for mean in of_system if mean["measure"] in measures]
    return entries


def comparisons_of(
    measured: Measured,
    means: Sequence[Json],
    parts: Parts,
    system: str,
    baseline: str,
    *,
    seed: int,
    rounds: int = 10_000,
) -> list[Json]:
    """Compare a system with its baseline on each average that both have: an entry for each measure and test.

    The comparison (`compare_averages`) is over the seeds that both systems have on all collections of the average.
    `means` are the means on the collections.
    """
    entries = []
    for measures, average in _averages_of(means, parts):
        measured_sides = [
            [measured.get((name, *place), {}) for place in average.weights] for name in (system, baseline)
        ]
        seeds = sorted(set.intersection(*(set(tables) for side in measured_sides for tables in side)))
        if not seeds:
            continue
        sides = [[[tables[s] for s in seeds] for tables in side] for side in measured_sides]
        pairs = list(zip(*sides, strict=True))
        shared = {
            "system": system,
            "baseline": baseline,
            "collection": average.name,
            "split": ALL_SPLITS,
            "seeds": seeds,
        }
        compared = compare_averages(pairs, list(average.weights.values()), seed=seed, rounds=rounds)
        entries += [
            {**shared, **comparison, "over": average.over}
            for comparison in compared
            if comparison["measure"] in measures
        ]
    return entries


def _means(system: str, average: Average, split: str, measured: Measured, **fields: Any) -> list[Json]:
    """Return a system's entries, one a measure, or none if it lacks a place of the average."""
    by_place = [measured.get((system, *place), {}) for place in average.weights]
    seeds = sorted(set.intersection(*(set(tables) for tables in by_place)))
    if not seeds:
        return []
    values = [layouts([tables[seed] for seed in seeds]) for tables in by_place]
    entries = []
    for measure in (name for name in values[0] if all(name in by_measure for by_measure in values)):
        estimated = estimate([by_measure[measure][1] for by_measure in values], list(average.weights.values()))
        queries = sum(len(by_measure[measure][0]) for by_measure in values)
        entries.append(
            {
                "system": system,
                "collection": average.name,
                "split": split,
                "seeds": seeds,
                "measure": measure,
                "value": estimated.mean,
                **ends(estimated),
                "queries": queries,
                **fields,
            }
        )
    return entries
