"""The graph of `adapt`: an experiment of AR2, further candidates, and the choice of one system."""

from dataclasses import replace
from typing import Any

from sparring.components.objectives.parts.config import ClozeConfig
from sparring.components.training.config import TrainConfig
from sparring.workflows.experiments import loading
from sparring.workflows.recipes.adapt.config import TEMPERATURE, Config, Pairs, Training, Trainings
from sparring.workflows.stages.averaging import averaged
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, seeded
from sparring.workflows.stages.early import with_early
from sparring.workflows.stages.guard import guard_rows, guarded_by
from sparring.workflows.stages.pretraining import PretrainingPhase, pretrained
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.retrieval import by_neighbours, fused_with_bm25, refresh
from sparring.workflows.stages.untrained import INTERPOLATED, add_untrained, start_retrieval
from sparring.workflows.steps.evaluate import nothing_measured
from sparring.workflows.store.dag import in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.phases import EVALUATION, PRETRAINING, UNTRAINED
from sparring.workflows.systems.rows import Outcome, cost_of, is_imported, levels, note_on

WARM, PRETRAINED = "warm retriever", "pre-trained"
DISTILLATION = "components.losses.listwise.distillation"
UNMEASURED = (
    "Nothing was measured, because no query of the collection has a relevant document. The retriever has learnt from "
    "pairs made of the documents. Nobody knows whether it is better than the start model or BM25. A few hundred "
    "queries with relevant documents would tell."
)
RANKER_BETWEEN_ROUNDS = {"updates": 20, "learning_rate": 1e-5}
"""Training of the ranker between rounds. The ranker is good already, and its groups are few."""


def build(config: Config) -> Outcome:
    """Build the graph: systems that need no training, those that AR2 trains if there are training queries, and the
    results."""
    if config.pretrain and config.survey is not None and not config.survey.queries:
        return _unmeasured(config, config.pretrain)
    base = _untrained(config) if config.train is False else loading.build_outcome(ar2(config, config.train))
    collection, last = Collection(config), f"retriever {config.rounds}"
    results = Results(collection, config, rows=list(base.rows))
    retrievals = {(row.name, row.seed): row.retriever for row in base.rows}
    for seed in config.seeds:
        if config.rm3 is not None:
            with in_phase(UNTRAINED):
                results.add("BM25 with RM3", collection.with_feedback(config.rm3), seed=seed)
        for name, phase in {"start model": UNTRAINED, last: EVALUATION}.items():
            if config.neighbours is not None and (retrieval := retrievals.get((name, seed))) is not None:
                with in_phase(phase):
                    reranked = by_neighbours(retrieval, config, config.neighbours)
                    results.add(f"{name} by neighbours", reranked, seed=seed)
        start, tuned = (retrievals.get((name, seed)) for name in ("start model", last))
        if start is not None and tuned is not None:
            with in_phase(EVALUATION):
                for share in config.average:
                    name = f"{last} and start model, averaged at {share:g}"
                    retrieval = averaged(
                        seeded(name, seed, config), collection, start.model, tuned.model, share, config
                    )
                    results.add(name, retrieval, seed=seed)
        if config.pretrain:
            with in_phase(PRETRAINING):
                retrieval = _pretrained(collection, config, config.pretrain, seed)
                results.add(PRETRAINED, retrieval, seed=seed)
            with in_phase(EVALUATION):
                name = f"BM25 + {PRETRAINED}, interpolated"
                label = seeded(name, seed, config)
                fused = fused_with_bm25(label, collection, retrieval, config, INTERPOLATED)
                results.add(name, fused, seed=seed)
    trained = [(f"ranker over {last}", last), (WARM, "start model")]
    if config.fast:
        trained.append((f"fast {last}", last))
    latest = {row.name: row for row in results.rows if not is_imported(row)}
    comparisons = [*(trained if config.train else []), ("start model", "BM25")]
    if config.guard is not None:
        start_model = collection.initial_model("start retriever", config.model)
        rows = guard_rows(results.rows, start_model, config, config.guard)
        base = replace(base, guards=guarded_by(results.rows, rows), guard_loss=config.guard.loss)
        results.rows += rows
    outcome = replace(
        base,
        results=results.gather(comparisons),
        rows=results.rows,
        costs=tuple(cost_of(row) for row in latest.values()),
        levels=levels(results.rows),
    )
    return with_early(outcome, results, comparisons)


def _untrained(config: Config) -> Outcome:
    """Build the systems that need no training."""
    collection = Collection(config)
    results = Results(collection, config)
    start = start_retrieval(collection, collection.initial_model("start retriever", config.model), config)
    for seed in config.seeds:
        add_untrained(results, start, config.model, seed=seed)
    return Outcome(
        results=results.gather([]),
        data=collection.data,
        rows=results.rows,
        retrieval=start,
        split=config.evaluate.split,
        note=note_on(config.model.model),
    )


def _pretrained(collection: Collection, config: Config, pairs: Pairs, seed: int) -> Dense:
    """Train the start model on pairs made of the documents, and retrieve with it."""
    begun = collection.initial_model("start retriever", config.model)
    train = TrainConfig(
        updates=pairs.updates,
        batch=pairs.batch,
        learning_rate=pairs.learning_rate,
        losses=[_cross_entropy(over="batch", options=TEMPERATURE)],
    )
    phase = PretrainingPhase(objective="ict", cloze=ClozeConfig(pairs=pairs.pairs), train=train)
    (model,) = pretrained(collection, begun, [phase], config, seed)
    return refresh(seeded(PRETRAINED, seed, config), collection, model, config)


def _unmeasured(config: Config, pairs: Pairs) -> Outcome:
    """Build a retriever for a collection without judgements."""
    collection, (seed, *_) = Collection(config), config.seeds
    with in_phase(PRETRAINING):
        retrieval = _pretrained(collection, config, pairs, seed)
    with in_phase(EVALUATION):
        results = step("results", nothing_measured, after=retrieval.vectors)
    return Outcome(
        results=results,
        data=collection.data,
        rows=[],
        retrieval=retrieval,
        split=config.evaluate.split,
        note=note_on(config.model.model),
        pictures=(retrieval.vectors, collection.bm25_index),
        unmeasured=UNMEASURED,
    )


def ar2(config: Config, train: Trainings) -> dict[str, Any]:
    """Return the keys of the AR2 experiment.

    The retriever warms up on the batch's documents, as DPR does. The ranker begins from the retriever's encoder, or
    from `ranker_model`, and learns to order what the retriever retrieves. In the game the retriever learns from the
    labels and, by distillation (Zhang et al., 2022, Eq. 12), from the ranker's scores. With a `teacher` both learn from
    its scores.
    """
    values = config.model_dump(mode="json")
    ranker_losses = [{"function": DISTILLATION}, _cross_entropy()] if train.teacher is not None else [_cross_entropy()]
    between = train.ranker.model_copy(update=RANKER_BETWEEN_ROUNDS)
    return {
        **{key: values[key] for key in CollectionConfig.model_fields if key in values and key != "budget"},
        "recipe": "ar2",
        **{key: values[key] for key in ("rounds", "gate", "rerank")},
        "fast": values.get("fast") or None,
        "teacher": train.teacher,
        "retriever": {
            "model": values["model"],
            "warm": _phase(train.warm, [_cross_entropy(over="batch", options=TEMPERATURE)]),
            "game": _phase(
                train.game,
                [
                    {"function": DISTILLATION, "options": TEMPERATURE},
                    _cross_entropy(over="batch", options=TEMPERATURE),
                ],
            ),
        },
        "ranker": {
            **_ranker_begun(config, values),
            "prior": values["prior"],
            "warm": _phase(train.ranker, ranker_losses),
            "game": _phase(between, ranker_losses),
        },
    }


def _ranker_begun(config: Config, values: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the ranker's start: its own model, or the encoder of the warm retriever."""
    if config.ranker_model is not None:
        lengths = {"pair_tokens": config.ranker_model.pair_tokens or config.pair_tokens}
        return {"model": values["ranker_model"] | lengths, "encoder": "model"}
    shared = {key: values["model"][key] for key in ("model", "revision", "layers", "dropout")}
    model = {
        **shared,
        "pooling": config.ranker_pooling,
        "pair_tokens": config.pair_tokens,
        "template": config.ranker_template,
    }
    return {"model": model, "encoder": "model" if config.model.towers == "separate" else WARM}


def _phase(training: Training, losses: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the keys of a phase of training."""
    mine = {"negatives": training.negatives, "depth": training.depth}
    train = {key: getattr(training, key) for key in ("updates", "batch", "learning_rate")}
    return {"mine": mine, "train": {**train, "losses": losses}}


def _cross_entropy(**more: Any) -> dict[str, Any]:
    return {"function": "components.losses.listwise.cross_entropy", **more}
