"""Sentence vectors compared with human ratings (Chuang et al., 2022, Table 2.11 and Figure 2-2)."""

from collections.abc import Sequence
from statistics import fmean

from sparring.components.charts.row_charts import distributions
from sparring.components.evaluation.embedding_space import COSINES
from sparring.components.files import read_json
from sparring.workflows.report.finished import Json
from sparring.workflows.report.page import drawing
from sparring.workflows.steps.sentences import SIMILARITY
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row


def similarities(systems: Sequence[Row], store: Store) -> list[Json]:
    """Return the numbers of each system's vectors for each set of rated pairs, the mean over its seeds.

    A picture shows the distribution of the last seed's cosines by rating.
    """
    return [
        {
            "collection": collection,
            "split": split,
            **{key: _last(systems_measured)[key] for key in ("pairs", "aligned")},
            "systems": [_numbers(name, seeds) for name, seeds in systems_measured.items()],
            "pictures": [
                {"system": name, "svg": drawing(_picture(name, seeds[-1]))} for name, seeds in systems_measured.items()
            ],
        }
        for (collection, split), systems_measured in by_system(systems, store).items()
    ]


def by_system(systems: Sequence[Row], store: Store) -> dict[tuple[str, str], dict[str, list[Json]]]:
    """Read what was measured of each system's vectors, by set and split, then by system, one entry a seed."""
    measured = [
        system for system in systems if SIMILARITY in system.metrics.description.shows and store.is_done(system.metrics)
    ]
    store.fetch([system.metrics for system in measured], SIMILARITY)
    places: dict[tuple[str, str], dict[str, list[Json]]] = {}
    for system in measured:
        seeds = places.setdefault((system.collection, system.split), {}).setdefault(system.name, [])
        seeds.append(read_json(store.path(system.metrics) / SIMILARITY))
    return places


def _last(systems: dict[str, list[Json]]) -> Json:
    """Return the analysis of the last system. The pairs are the same for all."""
    return list(systems.values())[-1][-1]


def _numbers(name: str, seeds: list[Json]) -> Json:
    numbers = {key: [analysis[key] for analysis in seeds] for key in ("alignment", "uniformity")}
    return {"system": name, **{key: None if None in values else fmean(values) for key, values in numbers.items()}}


def _picture(name: str, analysis: Json) -> str:
    """Draw the cosines of each group of ratings, one below the other."""
    curves = {
        f"rated {group['ratings']}: {group['pairs']:,} pairs, mean {group['mean']:.2f}": group["histogram"]
        for group in analysis["cosines"]
    }
    return distributions(f"cosine by rating, {name}", curves, COSINES)
