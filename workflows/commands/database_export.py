"""Send a system's documents and vectors to a database (`export --to URL`), and write a program that searches there."""

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from sparring.components.config import UserError, listing
from sparring.components.files import replacing
from sparring.components.models.configs import BASE
from sparring.components.progress import listening
from sparring.components.retrieval.kinds.dense import DenseStage
from sparring.components.retrieval.kinds.lexical import LexicalStage
from sparring.components.systems import config as configs
from sparring.components.systems import database, database_example
from sparring.components.systems.config import SystemConfig
from sparring.components.systems.database import KEY, Address, Layout, Sent, Source, VectorDatabase
from sparring.components.systems.database_sources import FolderSource, TableSource
from sparring.components.systems.stages.ranker import RankerStage
from sparring.workflows.commands import system_folder
from sparring.workflows.commands.shared_arguments import check_output, newest, opened
from sparring.workflows.distributed.limits import cores
from sparring.workflows.experiments import loading
from sparring.workflows.program import program
from sparring.workflows.store.availability import finished, not_dropped
from sparring.workflows.store.dag import StepFailed
from sparring.workflows.systems import deployable
from sparring.workflows.systems.dense import Dense

ALONE = ("directory", "groups", "adapters", "onnx", "onnx_precision")
"""Arguments of `export` that concern a folder."""


class System(NamedTuple):
    """A system to send."""

    config: SystemConfig
    source: Source
    models: Mapping[str, Path]
    """Place of each model, by its folder in the system."""
    name: str
    """Name of the table, if the user names none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export` that name a database."""
    parser.add_argument(
        "--to",
        metavar="URL",
        help="in DIRECTORY's place a database to send the system's documents and vectors to, for example "
        "postgresql://HOST/NAME, qdrant+http://HOST:6333 or sqlite:///FILE (databases: "
        f"{listing(database.names())}); CONFIG may then be the folder of an exported system",
    )
    parser.add_argument("--name", help="the table or collection in the database (default: the run's name)")
    parser.add_argument(
        "--example",
        type=Path,
        metavar="FILE",
        help="the program to write, which searches in the database (default: example_DATABASE.py)",
    )


def call(arguments: argparse.Namespace) -> None:
    """Send the documents, write the program, and print how to use it."""
    for key in ALONE:
        if getattr(arguments, key):
            option = "DIRECTORY" if key == "directory" else f"--{key.replace('_', '-')}"
            raise UserError(f"{option}: a database has no such thing. Use either {option} or {KEY}.", code="conflict")
    address = Address.of(arguments.to)
    kind = database.find(address.name)
    file = arguments.example or Path(database_example.file_name(address.name))
    check_output(file, "--example FILE")
    system = _of_folder(arguments) if loading.is_system(arguments.config) else _of_run(arguments)
    table = database.check_name(arguments.name) if arguments.name is not None else database.table_name(system.name)
    lexical = next((stage for _, stage in system.config.of_kind(LexicalStage)), None)
    layout = Layout(table, system.source.widths, lexical)
    sent = _send(kind, address, layout, system.source)
    text = database_example.example(system.config, kind, layout, kind.place(address), system.models, file.name)
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(
        f"{address.shown} {table} ({system.config.name}): {sent.written} documents sent, {sent.unchanged} unchanged, "
        f"{sent.deleted} deleted"
    )
    if lexical is not None:
        print(f"{kind.full_text} stands in for BM25 there; its scores differ")
    print(f'{file}: python {file} "QUERY"')


def _send(kind: type[VectorDatabase], address: Address, layout: Layout, source: Source) -> Sent:
    """Connect and send, with a line of progress on a terminal."""
    bar = tqdm(total=source.documents, unit=" documents", disable=None)
    with _reported(kind, address), kind(address, layout) as connection, bar, listening(bar.update):
        return database.send(connection, source)


@contextmanager
def _reported(kind: type[VectorDatabase], address: Address) -> Iterator[None]:
    """Raise StepFailed, without a password, for exceptions of the client."""
    try:
        yield
    except kind.failures() as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        for secret in filter(None, (address.url, address.password)):
            reason = reason.replace(secret, "***")
        raise StepFailed(f"{address.shown}: {reason}") from None


def _of_folder(arguments: argparse.Namespace) -> System:
    """Open an exported system. UserError if it has a stage that no database has."""
    for key, value in {"--set": arguments.assignments, "--system": arguments.system}.items():
        if value:
            raise UserError(f"{key}: an exported system is as its system.json says; accepted: with a config")
    folder = arguments.config
    config = configs.read(folder)
    database_example.check(config)
    place = folder.resolve()
    models = {stage.retriever: place / stage.retriever for _, stage in config.of_kind(DenseStage)}
    models |= {stage.folder: place / stage.folder for _, stage in config.of_kind(RankerStage)}
    return System(config, FolderSource(folder, config, threads=cores()), models, config.name)


def _of_run(arguments: argparse.Namespace) -> System:
    """Open a system of a run, in the store. UserError if it has a stage that no database has."""
    experiment, store = opened(arguments)
    experiment = newest(experiment, store, arguments)
    outcome, name = experiment.outcome, arguments.system
    finished(store, outcome.results)
    row = deployable.exported(outcome, store) if name is None else deployable.chosen(outcome, name)
    deployment = deployable.of_folder(row)
    config = system_folder.fetch(deployment, store)
    database_example.check(config)
    models = {folder: store.path(step) / "model" for folder, step in system_folder.models(config, deployment).items()}
    for model in models.values():
        if any(model.rglob(BASE)):
            raise UserError(
                f"{KEY}: a model of {row.name!r} is an adapter, which the example cannot load. Run `{program()} export "
                f"{arguments.config} DIRECTORY`, which merges it, and send DIRECTORY/system.",
                code="adapter",
            )
    vectors = {
        database.column(name): stage.searched_vectors
        for name, stage in deployment.stages.items()
        if isinstance(stage, Dense)
    }
    for step in vectors.values():
        not_dropped(store, step)
    store.fetch(vectors.values())
    table = store.path(deployment.data) / "documents.parquet"
    source = TableSource(table, {name: store.path(step) for name, step in vectors.items()})
    return System(config, source, {name: place.resolve() for name, place in models.items()}, experiment.name)
