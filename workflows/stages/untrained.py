"""The systems that a user has without training."""

from collections.abc import Container

from components.models.configs import DualEncoderConfig
from components.retrieval.fusion import FusionConfig
from workflows.stages.results import Results
from workflows.stages.retrieval import Retrieval, fused, refresh

INTERPOLATED = FusionConfig(how="interpolate")
FUSIONS = {"reciprocal": FusionConfig(how="reciprocal"), "interpolated": INTERPOLATED}


def add_untrained(
    results: Results, start: Retrieval, model: DualEncoderConfig, *, seed: int, entropy: bool = False,
    but: Container[str] = (),
) -> None:  # fmt: skip
    """Measure BM25, the start model as the recipe trains from it, the whole start model where the recipe cuts it, and
    BM25 fused with the model as it comes.

    `model` is the start model's config, `but` names those of these systems that the recipe measures itself.
    """
    collection, config = results.collection, results.config
    split, name, whole = config.evaluate.split, "start model", start
    if "BM25" not in but:
        results.add("BM25", collection.bm25(split), seed=seed)
    if name not in but:
        results.add(name, start.ranking(split), retrieval=start, seed=seed, entropy=entropy)
    if model.layers is not None:
        uncut = model.model_copy(update={"layers": None})
        name, whole = (
            f"whole {name}",
            refresh("whole start", collection, collection.initial_model("whole start retriever", uncut), config),
        )
        results.add(name, whole.ranking(split), retrieval=whole, seed=seed, entropy=entropy)
    for how, fusion in FUSIONS.items():
        system = f"BM25 + {name}, {how}"
        ranking = fused(system, collection, [collection.bm25, whole.ranking], config, fusion)
        results.add(system, ranking(split), seed=seed)
