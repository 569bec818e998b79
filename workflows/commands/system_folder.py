"""The folder of a system: its models, indexes and documents, how they work together, a card and a program."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from sparring.components.data.vectors import document_shards
from sparring.components.evaluation.result_table import leading_sentence
from sparring.components.files import read_json, write_json
from sparring.components.models.model_card import Row
from sparring.components.retrieval import quantised
from sparring.components.retrieval.kinds.dense import INDEX
from sparring.components.systems import documents, example
from sparring.components.systems.card import CARD, Measured, card
from sparring.components.systems.config import DOCUMENTS, SYSTEM, SystemConfig
from sparring.workflows.commands import cards, model_folder
from sparring.workflows.distributed.cluster import cores
from sparring.workflows.report.metrics import METRICS
from sparring.workflows.steps import lucene
from sparring.workflows.store.availability import finished, unchanged
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.deployable import Stages
from sparring.workflows.systems.results import Outcome, System


def fetch(system: System, steps: Stages, store: Store) -> SystemConfig:
    """Fetch all that the folder is made of, and describe it; UserError where something was not made or was dropped, or
    a folder cannot have it."""
    deployable.fetch(store, system.data, steps)
    read = [*deployable.models(steps), *deployable.lists(steps), *deployable.weights_of(steps)]
    unchanged(store, [system.data, *read])
    return deployable.described(system, steps, store)


def write(folder: Path, config: SystemConfig, system: System, steps: Stages, store: Store, measured: Measured) -> None:
    """Write the folder that `config` describes, its `system.json` last: without that it is none."""
    folder.mkdir()
    if config.lexical is not None:
        shutil.copytree(store.path(steps["lexical"].inputs["index"]) / lucene.INDEX, folder / config.lexical.index)
    if config.dense is not None:
        made = deployable.retriever_of(steps["dense"])
        model_folder.copy(store.path(made) / "model", folder / config.dense.retriever)
        _write_index(folder / config.dense.index, steps["dense"], store)
    if config.ranker is not None:
        model_folder.copy(store.path(steps["ranker"].inputs["ranker"]) / "model", folder / config.ranker.folder)
    documents.write(store.path(system.data) / "documents.parquet", folder / DOCUMENTS)
    (folder / example.EXAMPLE).write_text(example.example(config), encoding="utf-8")
    (folder / CARD).write_text(card(config, measured), encoding="utf-8")
    write_json(folder / SYSTEM, config.model_dump(mode="json"))


def models(config: SystemConfig, steps: Stages) -> dict[str, Step]:
    """The steps that made a system's models, by the models' folders."""
    folders = [] if config.dense is None else [config.dense.retriever]
    folders += [] if config.ranker is None else [config.ranker.folder]
    return dict(zip(folders, deployable.models(steps), strict=True))


def _write_index(to: Path, stage: Step, store: Store) -> None:
    """The run's own index with the numbers that it was searched with, or all vectors as they are."""
    from sparring.components.retrieval import index

    path, config = store.path(deployable.searched(stage)), stage.inputs["config"]
    how = None if stage.inputs["index"] is not None else quantised.read(path)
    if how is not None and how.vectors == "int8":
        index.write(index.of_int8(how.scale or [], document_shards(path)), to)
    elif stage.inputs["index"] is None:
        index.write(index.build("Flat", document_shards(path), threads=cores()), to)
    else:
        index.write(index.read(path / INDEX, probes=config.probes, ef=config.ef, threads=cores(), gpu=False), to)


def measures(outcome: Outcome, system: System, steps: Stages, store: Store, command: str) -> Measured:
    """What was measured of a system, when, and by what command."""
    record = finished(store, outcome.results)
    store.fetch([outcome.results], METRICS)
    table = read_json(store.path(outcome.results) / METRICS)
    place = {"system": system.name, "collection": system.collection, "split": system.split}
    rows = [row for row in table["rows"] if (place | {"seed": system.seed}).items() <= row.items()]
    # Of several seeds the interval is that of the mean over them, not of this one.
    between = {
        one["measure"]: cards.ends(one)
        for one in table["means"]
        if place.items() <= one.items() and one["seeds"] == [system.seed]
    }
    return Measured(
        command=command,
        date=str(datetime.fromtimestamp(record["started"] + record["seconds"], UTC).date()),
        commit=record["code"].get("commit"),
        collection=system.collection,
        split=system.split,
        rows=[
            Row(system.name, row["measure"], row["value"], *between.get(row["measure"], (None, None)), row["queries"])
            for row in rows
        ],
        sampled="ranker" in steps and steps["ranker"].inputs["config"].queries is not None,
        note=outcome.note,
        read=list(
            dict.fromkeys(
                cards.collection_name(node, outcome) for node in cards.collections_read(deployable.models(steps))
            )
        ),
        compared=leading_sentence(table) if (table["leading"] or {}).get("system") == system.name else "",
    )
