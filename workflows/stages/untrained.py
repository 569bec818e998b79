"""The systems that a user has without training."""

from components.models.configs import DualEncoderConfig
from components.retrieval.fusion import FusionConfig
from workflows.stages.results import Results
from workflows.stages.retrieval import Retrieval, fused, refresh

INTERPOLATED = FusionConfig(how="interpolate")
FUSIONS = {"reciprocal": FusionConfig(how="reciprocal"), "interpolated": INTERPOLATED}


def add_untrained(
    results: Results, start: Retrieval, model: DualEncoderConfig, *, seed: int, entropy: bool = False
) -> None:  # fmt: skip
    """Measure BM25, the start model as the recipe trains from it, the whole start model where the recipe cuts it, and
    BM25 fused with the model as it comes. `model` is the start model's config."""
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
        ranking = fused(system, collection, [collection.bm25, whole.ranking], config, fusion)
        results.add(system, ranking(split), seed=seed)
