"""What a recipe's retriever begins from: a model as it is, or what another experiment made of it."""

from pathlib import Path

from workflows.stages import experiments
from workflows.stages.collection import Collection, Model
from workflows.stages.config import RetrievalConfig, seeded
from workflows.stages.results import Results
from workflows.stages.retrieval import refresh
from workflows.store.dag import graph, relabelled


class StartedConfig(RetrievalConfig):
    """A recipe whose retriever may begin where another experiment ends."""

    start_from: str | None = None
    """An experiment's file, relative to where you run: the retriever begins from the last one that it trains, such as
    SimLM's pre-trained encoder (recipe `simlm`, with `retriever_1: null`). It must be made from the same model, by the
    same keys; the collection may be another. Each seed begins from that of the same seed. It is measured as
    `pre-trained`. Null for the model as it is."""


def started(results: Results, collection: Collection, begun: Model, config: StartedConfig, seed: int) -> Model:
    """The retriever that a seed's training begins from: `begun`, or what `start_from` made of it. ValueError where that
    is made from another model."""
    if config.start_from is None:
        return begun
    path = Path(config.start_from)
    trained = experiments.read_outcome(path, [f"seeds=[{seed}]"]).retrieval.retriever
    made = {node.fingerprint: node.label for node in graph([trained])}
    if begun.step.fingerprint not in made:
        raise ValueError(
            f"start_from: {path}: its retriever is made from another model; accepted: the same `retriever`"
        )
    shared = {node.fingerprint for node in graph([begun.tokens])}
    labels = {one: seeded(f"{path.stem}: {label}", seed, config) for one, label in made.items() if one not in shared}
    retriever = begun.after(relabelled(trained, labels))
    retrieval = refresh(seeded("pre-trained", seed, config), collection, retriever, config)
    results.add("pre-trained", retrieval.ranking(config.evaluate.split), retrieval=retrieval, seed=seed)
    return retriever
