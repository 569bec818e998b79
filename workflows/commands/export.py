"""Copy models, rankings and qrels of a finished run to a new directory, in the formats that other tools load. The
folder `system` holds one of its systems to deploy: `search` takes it instead of a config, and its `example.py` shows
how to search with it without this project. With --to URL, documents and vectors are sent to a database instead."""

import argparse
import errno
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import UserError, listing
from sparring.components.data.tables import RANKING, of_queries
from sparring.components.files import file_names, new_folder
from sparring.components.models.configs import BASE, RANKER_CODE
from sparring.components.retrieval.kind import DEFAULT, kind_of
from sparring.components.retrieval.kinds.dense import INDEX
from sparring.components.sources import trec
from sparring.components.systems import model_folder
from sparring.components.systems.config import FOLDER
from sparring.workflows.commands import cards, database_export, group_files, system_folder
from sparring.workflows.commands.shared_arguments import add_config, check_output, newest, opened, run_command
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.program import program
from sparring.workflows.stages.sentences import SentencesConfig
from sparring.workflows.store.availability import finished, unchanged
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.deployable import Deployment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument(
        "directory", type=Path, nargs="?", metavar="DIRECTORY", help="a directory that is not there, or empty"
    )
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="the system for the folder `system`, as the run's table calls it (default, of those that a folder can "
        f"have: {deployable.DEFAULT})",
    )
    parser.add_argument(
        "--groups",
        choices=list(group_files.FORMATS),
        metavar="FORMAT",
        help="write the run's groups too, as training data of another project: " + ", ".join(group_files.FORMATS),
    )
    parser.add_argument(
        "--adapters",
        action="store_true",
        help="leave a trained adapter apart, as peft loads it over its base (default: merged, so that the folder needs "
        "nothing else); the folder `system` always has it merged",
    )
    parser.add_argument(
        "--onnx",
        action="store_true",
        help="write the retriever's and the ranker's encoders as ONNX files too, and compare what they give with ours",
    )
    parser.add_argument(
        "--onnx-precision",
        choices=["fp32", "fp16", "int8"],
        help="write ONNX files in this precision (default: fp32); fp16 halves their size and int8 quarters it, and the "
        "printed difference from ours grows",
    )
    database_export.add_arguments(parser)


def call(arguments: argparse.Namespace) -> None:
    """Export, and print for each part how to use it."""
    if arguments.to is not None:
        database_export.call(arguments)
        return
    if arguments.directory is None:
        raise UserError("DIRECTORY: it is needed, and is not there. Use a new directory, or --to URL.")
    for key in ("name", "example"):
        if getattr(arguments, key) is not None:
            raise UserError(f"--{key}: it is about a database. Use it with --to URL.", code="conflict")
    onnx = arguments.onnx_precision or ("fp32" if arguments.onnx else None)
    if onnx is not None and arguments.adapters:
        raise UserError("--onnx: an adapter that is apart has no such form; accepted: without --adapters")
    if onnx is not None:
        from sparring.components.models import onnx_export  # imports torch

        onnx_export.check_packages()
    check_output(arguments.directory, "another DIRECTORY")
    experiment, store = opened(arguments)
    experiment = newest(experiment, store, arguments)
    finished(store, experiment.outcome.results)
    options = {key: getattr(arguments, key) for key in ("system", "groups", "adapters")} | {"onnx": onnx}
    command = run_command(arguments, local=False)
    with _disk_full_named(arguments.directory):
        lines = list(Export(experiment, store, arguments.directory, command, **options).write())
    print("\n".join(lines))  # now that all of it is there


@dataclass(frozen=True)
class Export:
    """The parts of a run to export, and the directory. No file is overwritten."""

    experiment: Experiment
    store: Store
    to: Path
    command: str
    """The command that made the run."""
    system: str | None = None
    """A system in the run's table. If None, the one to deploy, or the last."""
    groups: str | None = None
    """Format of the run's groups, written to `groups/`. If None, none are written."""
    onnx: Literal["fp32", "fp16", "int8"] | None = None
    """Adds encoders for ONNX Runtime in this precision to both models. If None, none are added."""
    adapters: bool = False
    """Leaves the adapters of `retriever/` and `ranker/` apart."""

    def write(self) -> Iterator[str]:
        """Write `retriever/`, `ranker/`, `rankings/*.trec`, `qrels.trec`, an index and `system/`. For each, yield a
        line on its use. If the run measured nothing, or only vectors of sentences, write the retriever alone."""
        to, store, outcome = self.to, self.store, self.experiment.outcome
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise UserError(
                f"{to}: exists and is not empty; accepted: a directory that does not exist, or an empty one"
            )
        if os.path.ismount(to):
            raise UserError(f"{to}: is where a disk is mounted, which cannot be replaced; accepted: {to}/NAME")
        mined = group_files.made(self.experiment, store) if self.groups is not None else []
        sentences = isinstance(self.experiment.config, SentencesConfig)
        models = [step for step in (outcome.retriever, outcome.ranker) if step is not None]
        if outcome.unmeasured or (sentences and not outcome.ranked):
            for step in models:
                finished(store, step)
            store.fetch(models, "model")
            unchanged(store, models)
            with new_folder(to.resolve()) as folder:  # a link stays one
                yield from self._retriever(folder)
                yield from self._groups(folder, mined)
            return
        name = self.system
        deployed = deployable.exported(outcome, store) if name is None else deployable.chosen(outcome, name)
        deployment = deployable.of_folder(deployed)
        config = system_folder.fetch(deployment, store)
        read = [outcome.data, *models, *self._measured_rankings.values()]
        for step in read:
            finished(store, step)
        store.fetch(models, "model")
        unchanged(store, read)
        with new_folder(to.resolve()) as folder:  # a link stays one
            yield from self._retriever(folder, deployment)
            yield from self._ranker(folder)
            yield from self._rankings(folder)
            yield from self._index(folder)
            yield from self._groups(folder, mined)
            measured = system_folder.measures(outcome, deployed, deployment, store, self.command)
            system_folder.write(folder / FOLDER, config, deployment, store, measured)
            for name, model in system_folder.models(config, deployment).items():
                cards.write(folder / FOLDER / name, model, self.experiment, store, self.command)
            yield f'{to}/system ({deployed.name}): {program()} search {shlex.quote(f"{to}/system")} "QUERY"'

    @property
    def _measured_rankings(self) -> dict[str, Step]:
        """The measured rankings, by system."""
        ranked = self.experiment.outcome.ranked
        return {name: row.ranking for name, row in ranked.items() if row.ranking is not None}

    def _retriever(self, folder: Path, deployment: Deployment | None = None) -> Iterator[str]:
        """Write the last retriever, if the run has one. It may differ from the deployed system's."""
        retriever = self.experiment.outcome.retriever
        if retriever is None:
            return
        name = f"{self.to}/retriever ({retriever.label})"
        deployed = [] if deployment is None else [part.retriever for part in deployment.of_kind(Dense)]
        if deployed and retriever.fingerprint not in [model.fingerprint for model in deployed]:
            has = listing(model.label for model in deployed)
            name = f"{self.to}/retriever ({retriever.label}, the last one; the system has {has})"
        model_folder.copy(self.store.path(retriever) / "model", folder / "retriever", adapters=self.adapters)
        if (tower := folder / "retriever" / "query" / BASE).exists():  # which sentence-transformers cannot load
            adapter = f"{self.to}/retriever/{tower.parent.name}"
            yield f'{name}: PeftModel.from_pretrained(MODEL, "{adapter}")'
        else:
            kind = kind_of(folder / "retriever")
            kind.check_export(folder / "retriever")
            yield f'{name}: {kind.loader}("{self.to}/retriever")'
        yield from self._finished_model(folder / "retriever", retriever)

    def _ranker(self, folder: Path) -> Iterator[str]:
        """Write the last ranker, if the run has one."""
        ranker = self.experiment.outcome.ranker
        if ranker is None:
            return
        model_folder.copy(self.store.path(ranker) / "model", folder / "ranker", adapters=self.adapters)
        code = ", trust_remote_code=True" if (folder / "ranker" / RANKER_CODE).exists() else ""
        yield f'{self.to}/ranker ({ranker.label}): CrossEncoder("{self.to}/ranker"{code})'
        yield from self._finished_model(folder / "ranker", ranker)

    def _finished_model(self, folder: Path, model: Step) -> Iterator[str]:
        """Write a model's ONNX files, if requested, and its card."""
        if self.onnx is not None:
            yield _as_onnx(folder, self.to, self.onnx)
        cards.write(folder, model, self.experiment, self.store, self.command)

    def _rankings(self, folder: Path) -> Iterator[str]:
        """Write every system's ranking, and the qrels."""
        outcome, store, to = self.experiment.outcome, self.store, self.to
        store.fetch([outcome.data], "queries.parquet", "qrels.parquet")
        store.fetch(self._measured_rankings.values(), "ranking.parquet")
        (folder / "rankings").mkdir()
        queries = pq.read_table(store.path(outcome.data) / "queries.parquet", columns=["query_id", "split"])
        wanted = queries["query_id"].filter(pc.equal(queries["split"], outcome.split)).combine_chunks()
        names = file_names(self._measured_rankings)
        for system, step in self._measured_rankings.items():
            table, name = of_queries(store.path(step) / "ranking.parquet", RANKING, wanted), names[system]
            trec.write_ranking(table, folder / "rankings" / f"{name}.trec", tag=name)
        yield f"{to}/rankings: {len(self._measured_rankings)} TREC run files"
        qrels = pq.read_table(store.path(outcome.data) / "qrels.parquet")
        trec.write_qrels(qrels, folder / "qrels.trec", outcome.split)
        place = shlex.quote(str(to))
        yield f"{to}/qrels.trec: {program()} evaluate {place}/rankings/NAME.trec {place}/qrels.trec"

    def _index(self, folder: Path) -> Iterator[str]:
        """Write the run's FAISS index, if it has one."""
        retrieval = self.experiment.outcome.retrieval
        if retrieval is None or retrieval.model.kind != DEFAULT:  # other kinds' indexes are for us alone
            return
        index = retrieval.index
        if index is not None and self.store.is_complete(index):
            self.store.fetch([index], INDEX)
            shutil.copyfile(self.store.path(index) / INDEX, folder / INDEX)
            yield f'{self.to}/{INDEX}: faiss.read_index("{self.to}/{INDEX}")'

    def _groups(self, folder: Path, mined: list[Step]) -> Iterator[str]:
        """Write the run's groups, if a format is requested."""
        if self.groups is not None:
            written = list(group_files.write(mined, self.store, folder / "groups", self.groups))
            yield f"{self.to}/groups: {len(written)} files of training data, in the format {self.groups}"


def _as_onnx(folder: Path, to: Path, precision: Literal["fp32", "fp16", "int8"]) -> str:
    """Write a model's encoders for ONNX Runtime, and return a line on how far their output differs."""
    from sparring.components.models import onnx_export

    ranks = folder.name == "ranker"
    written = onnx_export.export_ranker if ranks else onnx_export.export_retriever
    apart = written(folder, precision)
    files = ", ".join(str(to / folder.name / file.relative_to(folder)) for file in sorted(folder.rglob("model.onnx")))
    output = "scores" if ranks else "vectors"
    return (
        f"{files}: for ONNX Runtime, in {precision}; its {output} differ from ours by {apart:.1g} at most (accepted: "
        f"{onnx_export.TOLERANCES[precision]:g})"
    )


@contextmanager
def _disk_full_named(to: Path) -> Iterator[None]:
    """Raise UserError if the disk is full. FAISS reports that only in an error's text."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) != errno.ENOSPC and os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise UserError(f"{to}: the disk is full; nothing was exported") from None
