"""Write the cards of exported models from the store."""

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
    Pretrained,
    ResolvedCrossEncoderConfig,
    ResolvedDualEncoderConfig,
)
from sparring.components.models.model_card import Measures, Origin, StartModel
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.report.finished import Json
from sparring.workflows.report.metrics import METRICS
from sparring.workflows.store.availability import finished
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.rows import Outcome, Row, name_of

BESIDE = ("BM25", "start model")
"""Systems that a model is compared with."""
ENCODERS = {"t5": "T5EncoderModel"}
"""Class of transformers that loads an encoder, if `AutoModel` would load more than the encoder."""


def write(folder: Path, model: Step, experiment: Experiment, store: Store, command: str) -> None:
    """Write README.md to the folder of a step's model. The folder holds nothing else."""
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
        sizes = _sizes(model, store)
        page = model_card.retriever_card(config, origin, onnx=onnx, encoder=loader, base=base, sizes=sizes)
    elif kind == "cross_encoder":
        code = (folder / RANKER_CODE).exists()
        ranker = ResolvedCrossEncoderConfig.model_validate_json(text)
        page = model_card.ranker_card(ranker, origin, code=code, onnx=onnx)
    else:  # another kind of retriever: its library writes its card
        return
    (folder / card.CARD).write_text(page, encoding="utf-8")


def origin_of(model: Step, experiment: Experiment, store: Store, command: str) -> Origin:
    """Describe a model's origin."""
    outcome, record = experiment.outcome, finished(store, model)
    learnt, unplayed = _of_weights(model, store)
    nodes, read = graph([learnt]), collections_read([learnt])
    begun = [value for node in nodes for value in node.inputs.values() if isinstance(value, Pretrained)]
    starts = dict.fromkeys(config.model for config in begun)
    own_row = next((row for row in outcome.rows if _is_of(row, model)), None)
    home = outcome.data.fingerprint
    elsewhere = bool(read) and home not in [node.fingerprint for node in read]  # trained there, and measured here
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
            *(_training(node, store) for node in nodes if node.description.models == "training"),
            *(f"{node.label}: no update, as its round was not played" for node in unplayed),
        ],
        read=list(dict.fromkeys(named[node.fingerprint] for node in read)),
        starts=[StartModel(name, card.licence(name), card.datasets(name)) for name in starts],
        measured=_measured(model, experiment, store),
        summed=own_row is not None and isinstance(own_row.system, Reranked) and bool(own_row.system.priors),
    )


def _of_weights(model: Step, store: Store) -> tuple[Step, list[Step]]:
    """Return the training or start that gave a model its weights, and the later trainings that made no update."""
    unplayed: list[Step] = []
    while model.description.models == "training" and not finished(store, model)["summary"]["updates"]:
        unplayed.insert(0, model)
        model = model.inputs["start"]
    return model, unplayed


def _sizes(model: Step, store: Store) -> list[int]:
    """Return the numbers of dimensions that a retriever's last training trained its vectors to be cut to."""
    learnt, _ = _of_weights(model, store)
    losses = learnt.inputs["config"].losses if learnt.description.models == "training" else []
    return sorted({size for term in losses for size in term.dimensions or ()}, reverse=True)


def _is_of(row: Row, model: Step) -> bool:
    """Check whether a row measures a model."""
    retriever = None if row.retriever is None else row.retriever.retriever
    judge = row.ranker or retriever
    return judge is not None and judge.fingerprint == model.fingerprint


def collections_read(models: Iterable[Step]) -> list[Step]:
    """Return the collections that models were trained on. Empty if there was no training."""
    nodes = graph(models)
    trained = any(node.description.models == "training" for node in nodes)
    return [node for node in nodes if trained and node.description.makes == "collection"]


def collection_name(data: Step, outcome: Outcome) -> str:
    """Return a collection's name: the one in the tables if it was measured."""
    measured = (row.collection for row in outcome.rows if row.data.fingerprint == data.fingerprint)
    return next(measured, name_of(data.inputs["source"]))


def _measured(model: Step, experiment: Experiment, store: Store) -> Sequence[Measures]:
    """Read the measures of a model and of the systems in `BESIDE`, by collection."""
    outcome = experiment.outcome
    if not store.is_done(outcome.results):
        return []
    store.fetch([outcome.results], METRICS)
    means = read_json(store.path(outcome.results) / METRICS)["means"]
    model_rows = [row for row in outcome.rows if _is_of(row, model)]
    names = dict.fromkeys([row.name for row in model_rows] + list(BESIDE))
    places = dict.fromkeys((row.collection, row.split) for row in model_rows)
    if model_rows and outcome.parts is not None:
        places[AVERAGE, ALL_SPLITS] = None
    tables = []
    for collection, split in places:
        local_means = [mean for mean in means if (mean["collection"], mean["split"]) == (collection, split)]
        shown = [
            model_card.Row(name, mean["measure"], mean["value"], *ends(mean), mean["queries"], len(mean["seeds"]))
            for name in names
            for mean in local_means
            if mean["system"] == name
        ]
        tables += [Measures(collection, split, shown, averaged=collection == AVERAGE)] if shown else []
    return tables


def ends(mean: Json) -> tuple[float | None, float | None]:
    """Return the ends of a mean's interval, cut to the measure's range. Return None twice for a single query."""
    return (None, None) if mean["low"] is None else within(mean["measure"], mean["low"], mean["high"])


def _data(subject: Step, read: Sequence[Step], store: Store) -> list[str]:
    """Describe a collection, and name the other collections that the model was trained on."""
    summary = finished(store, subject)["summary"]
    lines = [f"{summary['documents']:,} documents, as `format: {subject.inputs['source'].format}`"]
    for split, count in summary["queries"].items():
        lines.append(f"split {split}: {count:,} queries, {summary['judgements'].get(split, 0):,} judgements")
    further = [node for node in read if node.fingerprint != subject.fingerprint]
    return lines + [f"beside it, the collection {name_of(node.inputs['source'])}" for node in further]


def _training(node: Step, store: Store) -> str:
    """Describe a training in one line. Patience may have ended it early."""
    config, updates = node.inputs["config"], finished(store, node)["summary"]["updates"]
    precision = f"{config.precision}, weights in bf16" if config.weights == "bf16" else config.precision
    return (
        f"{node.label}: {updates:,} updates of {config.batch} rows, learning rate {config.learning_rate:g}, "
        f"{precision}; losses: {listing(term.name for term in config.losses)}"
    )
