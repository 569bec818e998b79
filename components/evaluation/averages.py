"""Means over collections, each counting alike, and the interval of every mean."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparring.components.evaluation.significance import compare_averages, ends, estimate, layouts

AVERAGE = "average"
"""What averages over collections have in place of a collection's name."""
ALL_SPLITS = "all"
"""What they have in place of a split."""

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
    """What counts in it, each alike: collections and wholes."""
    weights: dict[Place, float]
    """What each collection counts."""


Parts = Mapping[str, str | None]
"""For a collection that is a part of a whole, the whole; None for one that no average counts."""


def averages(places: Iterable[Place], parts: Parts) -> list[Average]:
    """The wholes that `parts` names, and last the average over all places that count; none where none does.

    A whole is the mean over its parts, and counts once in the average, as CQADupStack's twelve forums do in BEIR
    (Thakur et al., 2021).

    >>> for one in averages([("android", "test"), ("SciFact", "test"), ("english", "test")],
    ...                     {"android": "CQADupStack", "english": "CQADupStack"}):
    ...     print(one.name, one.over, {collection: weight for (collection, _), weight in one.weights.items()})
    CQADupStack ['android', 'english'] {'android': 0.5, 'english': 0.5}
    average ['SciFact', 'CQADupStack'] {'SciFact': 0.5, 'android': 0.25, 'english': 0.25}
    """
    places = list(dict.fromkeys(places))
    wholes = []
    for whole in (name for name in dict.fromkeys(parts.values()) if name is not None):
        wholes.append(_mean(whole, [_alone(place) for place in places if parts.get(place[0]) == whole]))
    wholes = [one for one in wholes if one.weights]
    counted = [_alone(place) for place in places if place[0] not in parts] + wholes
    return [*wholes, _mean(AVERAGE, counted)] if counted else []


def _measured_alike(measured: Iterable[tuple[str, Place]]) -> Iterator[tuple[list[str], list[Place]]]:
    """Measures with all the places that they were measured on, those of the same places together: an average of a
    measure is over these."""
    places: dict[str, dict[Place, None]] = {}
    for measure, place in measured:
        places.setdefault(measure, {})[place] = None
    alike: dict[tuple[Place, ...], list[str]] = {}
    for measure, of in places.items():
        alike.setdefault(tuple(of), []).append(measure)
    return ((measures, list(of)) for of, measures in alike.items())


def _averages_of(entries: Iterable[Json], parts: Parts) -> Iterator[tuple[list[str], Average]]:
    """The averages of rows or means on collections, each with the measures that it is of."""
    alike = _measured_alike((one["measure"], (one["collection"], one["split"])) for one in entries)
    return ((measures, average) for measures, places in alike for average in averages(places, parts))


def _alone(place: Place) -> Average:
    return Average(place[0], [place[0]], {place: 1.0})


def _mean(name: str, counted: Sequence[Average]) -> Average:
    weights = {place: weight / len(counted) for one in counted for place, weight in one.weights.items()}
    return Average(name, [one.name for one in counted], weights)


def averages_of(rows: Sequence[Json], parts: Parts) -> list[Json]:
    """A row for each system, measure and seed that was measured on all collections of an average: the mean over them.

    The collections of a measure are those that any system has it of. `queries` are those of all, `over` what counts in
    the mean.
    """
    made = []
    for measures, average in _averages_of(rows, parts):
        groups: dict[tuple[str, str, int], dict[Place, Json]] = {}
        for row in (row for row in rows if row["measure"] in measures):
            if (place := (row["collection"], row["split"])) in average.weights:
                groups.setdefault((row["system"], row["measure"], row["seed"]), {})[place] = row
        made += [
            {
                "system": system,
                "round": None,
                "collection": average.name,
                "split": ALL_SPLITS,
                "seed": seed,
                "measure": measure,
                "value": sum(average.weights[place] * row["value"] for place, row in of.items()),
                "queries": sum(row["queries"] for row in of.values()),
                "over": average.over,
            }
            for (system, measure, seed), of in groups.items()
            if len(of) == len(average.weights)
        ]
    return made


def means_of(measured: Measured, parts: Parts | None = None) -> list[Json]:
    """The mean of each system and measure, with its 95 % interval, on each collection: an entry for all seeds.

    With one seed the interval is over the queries, with several over queries and trainings. With `parts` there are
    entries of `averages` too.
    """
    made = []
    for system, collection, split in measured:
        made += _means(system, _alone((collection, split)), split, measured)
    if parts is not None:
        systems = dict.fromkeys(system for system, _, _ in measured)
        for measures, average in list(_averages_of(made, parts)):
            for system in systems:
                of_system = _means(system, average, ALL_SPLITS, measured, over=average.over)
                made += [one for one in of_system if one["measure"] in measures]
    return made


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
    """A system against its baseline on each average that both have, over the seeds that both have on all of its
    collections: `compare_averages`, an entry for each measure and test. `means` are those on the collections."""
    made = []
    for measures, average in _averages_of(means, parts):
        of = [[measured.get((name, *place), {}) for place in average.weights] for name in (system, baseline)]
        seeds = sorted(set.intersection(*(set(tables) for side in of for tables in side)))
        if not seeds:
            continue
        sides = [[[tables[s] for s in seeds] for tables in side] for side in of]
        pairs = list(zip(*sides, strict=True))
        about = {
            "system": system,
            "baseline": baseline,
            "collection": average.name,
            "split": ALL_SPLITS,
            "seeds": seeds,
        }
        compared = compare_averages(pairs, list(average.weights.values()), seed=seed, rounds=rounds)
        made += [{**about, **one, "over": average.over} for one in compared if one["measure"] in measures]
    return made


def _means(system: str, average: Average, split: str, measured: Measured, **about: Any) -> list[Json]:
    """A system's entries, one a measure; none if it was not measured on all places of the average."""
    by_place = [measured.get((system, *place), {}) for place in average.weights]
    seeds = sorted(set.intersection(*(set(tables) for tables in by_place)))
    if not seeds:
        return []
    values = [layouts([tables[seed] for seed in seeds]) for tables in by_place]
    made = []
    for measure in (name for name in values[0] if all(name in other for other in values)):
        found = estimate([of[measure][1] for of in values], list(average.weights.values()))
        queries = sum(len(of[measure][0]) for of in values)
        made.append(
            {
                "system": system,
                "collection": average.name,
                "split": split,
                "seeds": seeds,
                "measure": measure,
                "value": found.mean,
                **ends(found),
                "queries": queries,
                **about,
            }
        )
    return made
