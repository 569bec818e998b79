"""The cards of exported models, from what the store knows of them."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sparring.components.config import listing
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.evaluation.averages import ALL_SPLITS, AVERAGE
from sparring.components.evaluation.measures import within
from sparring.components.files import read_json
from sparring.components.models import card, model_card
from sparring.components.models.configs import (
    BASE,
    RANKER_CODE,
    Base,
    ResolvedCrossEncoderConfig,
    ResolvedDualEncoderConfig,
)
from sparring.components.models.model_card import Measures, Origin, StartModel
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.report.finished import Json
from sparring.workflows.report.metrics import METRICS
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.start import start
from sparring.workflows.store.availability import finished
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.rows import Outcome, Row, name_of

BESIDE = ("BM25", "start model")
"""What the measures of a model stand beside."""
ENCODERS = {"t5": "T5EncoderModel"}
"""transformers' class of an encoder, where `AutoModel` would read more than that."""


def write(folder: Path, model: Step, experiment: Experiment, store: Store, command: str) -> None:
    """Write README.md to the folder of a model that a step made, which holds nothing but that model."""
    text, onnx = (folder / MODEL_CONFIG).read_text(), bool(list(folder.rglob("onnx/model.onnx")))
    origin = origin_of(model, experiment, store, command)
    kind = json.loads(text)["kind"]
    if kind == "dense":
        config = ResolvedDualEncoderConfig.model_validate_json(text)
        tower = folder / "query" if config.towers == "separate" else folder
        adapted = tower / BASE
        base = Base.model_validate_json(adapted.read_text()).model if adapted.exists() else None
        encoder = read_json(tower / "config.json")["model_type"] if base is None else ""
        loader = ENCODERS.get(encoder, "AutoModel")
        made = model_card.retriever_card(config, origin, onnx=onnx, encoder=loader, base=base)
    elif kind == "cross_encoder":
        code = (folder / RANKER_CODE).exists()
        ranker = ResolvedCrossEncoderConfig.model_validate_json(text)
        made = model_card.ranker_card(ranker, origin, code=code, onnx=onnx)
    else:  # another kind of retriever: its library writes its card
        return
    (folder / card.CARD).write_text(made, encoding="utf-8")


def origin_of(model: Step, experiment: Experiment, store: Store, command: str) -> Origin:
    """Where a model comes from."""
    outcome, record = experiment.outcome, finished(store, model)
    learnt, unplayed = _of_weights(model, store)
    made, read = graph([learnt]), collections_read([learnt])
    starts = dict.fromkeys(node.inputs["config"].model for node in made if node.function is start)
    own = next((one for one in outcome.rows if _is_of(one, model)), None)
    here = outcome.data.fingerprint
    elsewhere = bool(read) and here not in [node.fingerprint for node in read]  # trained there, and measured here
    subject = read[0] if elsewhere else outcome.data
    named = {node.fingerprint: collection_name(node, outcome) for node in read}
    return Origin(
        recipe=str(experiment.config.recipe),
        command=command,
        date=str(datetime.fromtimestamp(record["started"] + record["seconds"], UTC).date()),
        commit=record["code"].get("commit"),
        collection=collection_name(subject, outcome),
        data=_data(subject, read, store),
        trainings=[
            *(_training(node, store) for node in made if node.description.models == "training"),
            *(f"{node.label}: no update, as its round was not played" for node in unplayed),
        ],
        read=list(dict.fromkeys(named[node.fingerprint] for node in read)),
        starts=[StartModel(name, card.licence(name), card.datasets(name)) for name in starts],
        measured=_measured(model, experiment, store),
        summed=own is not None and isinstance(own.system, Reranked) and bool(own.system.priors),
    )


def _of_weights(model: Step, store: Store) -> tuple[Step, list[Step]]:
    """The training, or the start, that a model has its weights of, and the trainings behind it that made no update."""
    unplayed: list[Step] = []
    while model.description.models == "training" and not finished(store, model)["summary"]["updates"]:
        unplayed.insert(0, model)
        model = model.inputs["start"]
    return model, unplayed


def _is_of(row: Row, model: Step) -> bool:
    """Tell whether a row's measures are those of a model."""
    retriever = None if row.retriever is None else row.retriever.retriever
    judge = row.ranker or retriever
    return judge is not None and judge.fingerprint == model.fingerprint


def collections_read(models: Iterable[Step]) -> list[Step]:
    """The collections that had a part in the training of models; none where none was trained."""
    made = graph(models)
    trained = any(node.description.models == "training" for node in made)
    return [node for node in made if trained and node.function is ingest]


def collection_name(data: Step, outcome: Outcome) -> str:
    """What a collection is called: as tables have it, where it was measured."""
    measured = (one.collection for one in outcome.rows if one.data.fingerprint == data.fingerprint)
    return next(measured, name_of(data.inputs["source"]))


def _measured(model: Step, experiment: Experiment, store: Store) -> Sequence[Measures]:
    """The measures of a model, and of what stands beside it, by collection."""
    outcome = experiment.outcome
    if not store.is_done(outcome.results):
        return []
    store.fetch([outcome.results], METRICS)
    means = read_json(store.path(outcome.results) / METRICS)["means"]
    own = [one for one in outcome.rows if _is_of(one, model)]
    names = dict.fromkeys([one.name for one in own] + list(BESIDE))
    places = dict.fromkeys((one.collection, one.split) for one in own)
    if own and outcome.parts is not None:
        places[AVERAGE, ALL_SPLITS] = None
    found = []
    for collection, split in places:
        rows = [one for one in means if (one["collection"], one["split"]) == (collection, split)]
        shown = [
            model_card.Row(name, one["measure"], one["value"], *ends(one), one["queries"], len(one["seeds"]))
            for name in names
            for one in rows
            if one["system"] == name
        ]
        found += [Measures(collection, split, shown, averaged=collection == AVERAGE)] if shown else []
    return found


def ends(mean: Json) -> tuple[float | None, float | None]:
    """The ends of a mean's interval, as far as the measure can be; None of one query."""
    return (None, None) if mean["low"] is None else within(mean["measure"], mean["low"], mean["high"])


def _data(subject: Step, read: Sequence[Step], store: Store) -> list[str]:
    """What a collection holds, and which others had a part in the model."""
    summary = finished(store, subject)["summary"]
    lines = [f"{summary['documents']:,} documents, as `format: {subject.inputs['source'].format}`"]
    for split, count in summary["queries"].items():
        lines.append(f"split {split}: {count:,} queries, {summary['judgements'].get(split, 0):,} judgements")
    others = [node for node in read if node.fingerprint != subject.fingerprint]
    return lines + [f"beside it, the collection {name_of(node.inputs['source'])}" for node in others]


def _training(node: Step, store: Store) -> str:
    """A training for people. Patience may have ended it early."""
    config, made = node.inputs["config"], finished(store, node)["summary"]["updates"]
    precision = f"{config.precision}, weights in bf16" if config.weights == "bf16" else config.precision
    return (
        f"{node.label}: {made:,} updates of {config.batch} rows, learning rate {config.learning_rate:g}, "
        f"{precision}; losses: {listing(term.name for term in config.losses)}"
    )
