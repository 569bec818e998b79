"""The systems that a user has without training."""

from functools import partial

from sparring.components.models.configs import DualEncoderConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import fused_with_bm25, refresh
from sparring.workflows.steps.imported_ranking import RankingFile, rank_from_file
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import UNTRAINED
from sparring.workflows.systems.system import Computed

INTERPOLATED = FusionConfig(how="interpolate")
FUSIONS = {"reciprocal": FusionConfig(how="reciprocal"), "interpolated": INTERPOLATED}


@in_phase(UNTRAINED)
def start_retrieval(collection: Collection, start: Model, config: CollectionConfig) -> Dense:
    """Rankings of the start model from which the recipe trains."""
    return refresh("start", collection, start, config)


@in_phase(UNTRAINED)
def add_untrained(
    results: Results, start: Dense, model: DualEncoderConfig, *, seed: int, entropy: bool = False
) -> None:
    """Measure BM25, the start model as the recipe trains from it, the whole start model where the recipe cuts it, and
    BM25 fused with the model as it comes, and the rankings of files. `model` is the start model's config."""
    collection, config = results.collection, results.config
    name, whole = "start model", start
    results.add("BM25", collection.lexical, seed=seed)
    results.add(name, start, seed=seed, entropy=entropy)
    if model.layers is not None:
        uncut = model.model_copy(update={"layers": None})
        name = "whole start model"
        whole = refresh("whole start", collection, collection.initial_model("whole start retriever", uncut), config)
        results.add(name, whole, seed=seed, entropy=entropy)
    for method, fusion in FUSIONS.items():
        system = f"BM25 + {name}, {method}"
        results.add(system, fused_with_bm25(system, collection, whole, config, fusion), seed=seed)
    for system, imported in from_files(collection, config).items():
        results.add(system, imported, seed=seed)


def from_files(collection: Collection, config: CollectionConfig) -> dict[str, Computed]:
    """Import the rankings of the measured split that files have, by system."""
    return {
        system: Computed(
            partial(_from_file, system, collection, config, file),
            "was read from a file",
            only=file.split,
            is_imported=True,
        )
        for system, file in config.evaluate.other_rankings.items()
        if file.split == config.evaluate.split
    }


def _from_file(system: str, collection: Collection, config: CollectionConfig, file: RankingFile, split: str) -> Step:
    return step(
        f"{system} ranking",
        rank_from_file,
        data=collection.data,
        split=split,
        k=config.k,
        config=file.model_copy(update={"ids": file.ids or config.data.ids}),
    )
