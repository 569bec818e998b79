"""The systems that a user has without training."""

from sparring.components.models.configs import DualEncoderConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.stages.collection import Collection, Model
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.phases import UNTRAINED
from sparring.workflows.stages.retrieval import Retrieval, fused_with_bm25, refresh
from sparring.workflows.steps.imported_ranking import rank_from_file
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.results import Results

INTERPOLATED = FusionConfig(how="interpolate")
FUSIONS = {"reciprocal": FusionConfig(how="reciprocal"), "interpolated": INTERPOLATED}


@in_phase(UNTRAINED)
def start_retrieval(collection: Collection, start: Model, config: CollectionConfig) -> Retrieval:
    """What the start model retrieves, as the recipe trains from it."""
    return refresh("start", collection, start, config)


@in_phase(UNTRAINED)
def add_untrained(
    results: Results, start: Retrieval, model: DualEncoderConfig, *, seed: int, entropy: bool = False
) -> None:
    """Measure BM25, the start model as the recipe trains from it, the whole start model where the recipe cuts it, and
    BM25 fused with the model as it comes, and the rankings of files. `model` is the start model's config."""
    collection, config = results.collection, results.config
    split, name, whole = config.evaluate.split, "start model", start
    results.add("BM25", collection.bm25(split), seed=seed)
    results.add(name, start.ranking(split), retrieval=start, seed=seed, entropy=entropy)
    if model.layers is not None:
        uncut = model.model_copy(update={"layers": None})
        name = "whole start model"
        whole = refresh("whole start", collection, collection.initial_model("whole start retriever", uncut), config)
        results.add(name, whole.ranking(split), retrieval=whole, seed=seed, entropy=entropy)
    for how, fusion in FUSIONS.items():
        system = f"BM25 + {name}, {how}"
        ranking = fused_with_bm25(system, collection, whole.ranking, config, fusion)
        results.add(system, ranking(split), seed=seed)
    for system, given in from_files(collection, config).items():
        results.add(system, given, seed=seed)


def from_files(collection: Collection, config: CollectionConfig) -> dict[str, Step]:
    """The rankings of the measured split that files have, by system."""
    return {
        system: step(
            f"{system} ranking",
            rank_from_file,
            data=collection.data,
            split=file.split,
            k=config.k,
            config=file.model_copy(update={"ids": file.ids or config.data.ids}),
        )
        for system, file in config.evaluate.other_rankings.items()
        if file.split == config.evaluate.split
    }
