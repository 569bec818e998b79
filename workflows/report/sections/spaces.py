"""The embedding space of each measured retriever."""

from collections.abc import Sequence

from sparring.components.charts.row_charts import distributions
from sparring.components.charts.scatter_plot import space_map
from sparring.components.evaluation.embedding_space import COSINES, RATIOS, mean_over_seeds
from sparring.components.files import read_json
from sparring.workflows.report.finished import Json
from sparring.workflows.report.page import drawing
from sparring.workflows.steps.analyse import ANALYSIS
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row

DISTRIBUTIONS = (
    ("nearest", "cosine of a query and the document ranked first", COSINES),
    ("ratio", "query to query, as a share of query to document", RATIOS),
)
"""The histograms of an analysis: key, title and range (Moiseev et al., 2023, Figures 5 and 6)."""


def spaces(systems: Sequence[Row], store: Store) -> list[Json]:
    """Return the numbers of each system's space, the mean over its seeds, for each collection and split.

    Pictures show the last seed's space.
    """
    looked_at = [
        (system, system.analysis)
        for system in systems
        if system.analysis is not None and store.is_done(system.analysis)
    ]
    store.fetch([analysis for _, analysis in looked_at], ANALYSIS)
    places: dict[tuple[str, str], dict[str, list[Json]]] = {}
    for system, analysis in looked_at:
        seeds = places.setdefault((system.collection, system.split), {}).setdefault(system.name, [])
        seeds.append(read_json(store.path(analysis) / ANALYSIS))
    return [_space(collection, split, systems_measured) for (collection, split), systems_measured in places.items()]


def _space(collection: str, split: str, systems: dict[str, list[Json]]) -> Json:
    """Turn the analyses of each system, one a seed, into numbers and pictures."""
    last = {name: seeds[-1] for name, seeds in systems.items()}
    pictures = [
        (title, distributions(title, {name: analysis[key]["histogram"] for name, analysis in last.items()}, span))
        for key, title, span in DISTRIBUTIONS
    ]
    maps = [(name, space_map(name, **analysis["map"])) for name, analysis in last.items() if analysis["map"]]
    return {
        "collection": collection,
        "split": split,
        "queries": max(analysis["queries"] for analysis in last.values()),
        "systems": [{"system": name, **mean_over_seeds(seeds)} for name, seeds in systems.items()],
        "pictures": [{"title": title, "svg": drawing(svg)} for title, svg in pictures],
        "maps": [{"system": name, "svg": drawing(svg)} for name, svg in maps],
    }
