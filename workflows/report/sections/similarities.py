"""How sentence vectors lie beside people's ratings (Chuang et al., 2022, Table 2.11 and Figure 2-2)."""

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
    """For each set of rated pairs: the numbers of each system's vectors, the mean over its seeds, and the distribution
    of the last seed's cosines by rating."""
    return [
        {
            "collection": collection,
            "split": split,
            **{key: _last(of)[key] for key in ("pairs", "aligned")},
            "systems": [_numbers(name, seeds) for name, seeds in of.items()],
            "pictures": [{"system": name, "svg": drawing(_picture(name, seeds[-1]))} for name, seeds in of.items()],
        }
        for (collection, split), of in by_system(systems, store).items()
    ]


def by_system(systems: Sequence[Row], store: Store) -> dict[tuple[str, str], dict[str, list[Json]]]:
    """For each set and its split, by system what was found of its vectors, one a seed."""
    measured = [one for one in systems if SIMILARITY in one.metrics.description.shows and store.is_done(one.metrics)]
    store.fetch([one.metrics for one in measured], SIMILARITY)
    places: dict[tuple[str, str], dict[str, list[Json]]] = {}
    for one in measured:
        seeds = places.setdefault((one.collection, one.split), {}).setdefault(one.name, [])
        seeds.append(read_json(store.path(one.metrics) / SIMILARITY))
    return places


def _last(systems: dict[str, list[Json]]) -> Json:
    """What was found of the last system; the pairs are the same for all."""
    return list(systems.values())[-1][-1]


def _numbers(name: str, seeds: list[Json]) -> Json:
    found = {key: [one[key] for one in seeds] for key in ("alignment", "uniformity")}
    return {"system": name, **{key: None if None in values else fmean(values) for key, values in found.items()}}


def _picture(name: str, found: Json) -> str:
    """The cosines of each group of ratings, one below the other."""
    curves = {
        f"rated {one['ratings']}: {one['pairs']:,} pairs, mean {one['mean']:.2f}": one["histogram"]
        for one in found["cosines"]
    }
    return distributions(f"cosine by rating, {name}", curves, COSINES)
