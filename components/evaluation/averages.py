"""Means over collections, each counting alike, and the interval of every mean."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from components.evaluation.significance import ends, estimate, layouts

AVERAGE = "average"
"""What averages over collections have in place of a collection's name."""

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


def averages(places: Iterable[Place], parts: Mapping[str, str]) -> list[Average]:
    """The wholes that `parts` names, and last the average over all places.

    `parts` names, for a collection that is a part of one, the whole. A whole is the mean over its parts, and counts
    once in the average, as CQADupStack's twelve forums do in BEIR (Thakur et al., 2021).

    >>> for one in averages([("android", "test"), ("SciFact", "test"), ("english", "test")],
    ...                     {"android": "CQADupStack", "english": "CQADupStack"}):
    ...     print(one.name, one.over, {collection: weight for (collection, _), weight in one.weights.items()})
    CQADupStack ['android', 'english'] {'android': 0.5, 'english': 0.5}
    average ['SciFact', 'CQADupStack'] {'SciFact': 0.5, 'android': 0.25, 'english': 0.25}
    """
    places = list(dict.fromkeys(places))
    wholes = []
    for whole in dict.fromkeys(parts.values()):
        wholes.append(_mean(whole, [_alone(place) for place in places if parts.get(place[0]) == whole]))
    counted = [_alone(place) for place in places if place[0] not in parts] + [one for one in wholes if one.weights]
    return [*(one for one in wholes if one.weights), _mean(AVERAGE, counted)]


def _alone(place: Place) -> Average:
    return Average(place[0], [place[0]], {place: 1.0})


def _mean(name: str, counted: Sequence[Average]) -> Average:
    weights = {place: weight / len(counted) for one in counted for place, weight in one.weights.items()}
    return Average(name, [one.name for one in counted], weights)


def averages_of(rows: Sequence[Json], parts: Mapping[str, str]) -> list[Json]:
    """A row for each system, measure and seed that was measured on all collections of an average: the mean over them.

    `queries` are those of all, `over` what counts in the mean.
    """
    made = []
    for average in averages(((row["collection"], row["split"]) for row in rows), parts):
        groups: dict[tuple[str, str, int], dict[Place, Json]] = {}
        for row in rows:
            if (place := (row["collection"], row["split"])) in average.weights:
                groups.setdefault((row["system"], row["measure"], row["seed"]), {})[place] = row
        made += [
            {
                "system": system, "round": None, "collection": average.name, "split": "all", "seed": seed,
                "measure": measure, "value": sum(average.weights[place] * row["value"] for place, row in of.items()),
                "queries": sum(row["queries"] for row in of.values()), "over": average.over,
            }
            for (system, measure, seed), of in groups.items() if len(of) == len(average.weights)
        ]  # fmt: skip
    return made


def means_of(measured: Measured, parts: Mapping[str, str] | None = None) -> list[Json]:
    """The mean of each system and measure, with its 95 % interval, on each collection: an entry for all seeds.

    With one seed the interval is over the queries, with several over queries and trainings. With `parts` there are
    entries of `averages` too.
    """
    made = []
    for system, collection, split in measured:
        made += _means(system, _alone((collection, split)), split, measured)
    if parts is not None:
        systems = dict.fromkeys(system for system, _, _ in measured)
        for average in averages(((collection, split) for _, collection, split in measured), parts):
            for system in systems:
                made += _means(system, average, "all", measured, over=average.over)
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
            {"system": system, "collection": average.name, "split": split, "seeds": seeds, "measure": measure,
             "value": found.mean, **ends(found), "queries": queries, **about}
        )  # fmt: skip
    return made
