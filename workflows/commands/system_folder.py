"""The folder of a system: its models, indexes and documents, how they work together, a card and a program."""

from datetime import UTC, datetime
from pathlib import Path

from sparring.components.files import read_json, write_json
from sparring.components.models import model_card
from sparring.components.retrieval.stage import RetrieverStage
from sparring.components.systems import documents, example
from sparring.components.systems.card import CARD, Measured, card
from sparring.components.systems.config import DOCUMENTS, SYSTEM, SystemConfig
from sparring.components.systems.stages.ranker import RankerStage
from sparring.workflows.commands import cards
from sparring.workflows.report.conclusion import verdict_of
from sparring.workflows.report.metrics import METRICS
from sparring.workflows.store.availability import finished, unchanged
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.deployable import Deployment
from sparring.workflows.systems.rows import Outcome, Row


def fetch(deployment: Deployment, store: Store) -> SystemConfig:
    """Fetch all that the folder is made of, and describe it. UserError if something was not made or was dropped."""
    deployment.fetch(store)
    unchanged(store, deployment.artifacts)
    return deployment.describe(store)


def write(folder: Path, config: SystemConfig, deployment: Deployment, store: Store, measured: Measured) -> None:
    """Write the folder that `config` describes. Its `system.json` comes last: without that, it is no system."""
    folder.mkdir()
    deployment.write(config, folder, store)
    documents.write(store.path(deployment.data) / "documents.parquet", folder / DOCUMENTS)
    (folder / example.EXAMPLE).write_text(example.example(config), encoding="utf-8")
    (folder / CARD).write_text(card(config, measured), encoding="utf-8")
    write_json(folder / SYSTEM, config.model_dump(mode="json"))


def models(config: SystemConfig, deployment: Deployment) -> dict[str, Step]:
    """List the steps that made a system's models, by the models' folders."""
    folders = {name: stage.retriever for name, stage in config.of_kind(RetrieverStage)}
    folders |= {name: stage.folder for name, stage in config.of_kind(RankerStage)}
    return {folder: deployment.stages[name].models[0] for name, folder in folders.items()}


def measures(outcome: Outcome, row: Row, deployment: Deployment, store: Store, command: str) -> Measured:
    """Read a system's measures, their date, and the command that made them."""
    record = finished(store, outcome.results)
    store.fetch([outcome.results], METRICS)
    table = read_json(store.path(outcome.results) / METRICS)
    place = {"system": row.name, "collection": row.collection, "split": row.split}
    # With several seeds, the interval is that of the mean over them and not of this seed.
    between = {
        mean["measure"]: cards.ends(mean)
        for mean in table["means"]
        if place.items() <= mean.items() and mean["seeds"] == [row.seed]
    }
    read, verdict = cards.collections_read(deployment.models), verdict_of(table, outcome.rows)
    return Measured(
        command=command,
        date=str(datetime.fromtimestamp(record["started"] + record["seconds"], UTC).date()),
        commit=record["code"].get("commit"),
        collection=row.collection,
        split=row.split,
        rows=[
            model_card.Row(
                row.name, cell["measure"], cell["value"], *between.get(cell["measure"], (None, None)), cell["queries"]
            )
            for cell in table["rows"]
            if (place | {"seed": row.seed}).items() <= cell.items()
        ],
        sampled=row.queries is not None,
        note=outcome.note,
        read=list(dict.fromkeys(cards.collection_name(node, outcome) for node in read)),
        compared=" ".join(verdict.sentences) if verdict is not None and verdict.system == row.name else "",
    )
