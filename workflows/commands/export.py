"""Copy models, rankings and qrels of a finished run to a new directory, in the formats that other tools load, and one
of its systems as a folder that can be deployed: `search` takes it in place of a config, and its `example.py` shows how
to search with it without this project."""

import argparse
import errno
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.config import UserError
from components.data import trec
from components.data.tables import RANKING, of_queries
from components.files import replacing
from components.models.configs import BASE, RANKER_CODE
from workflows.commands import model_folder, system_folder
from workflows.commands.opening import add_config, finished, opened
from workflows.program import program
from workflows.stages import systems
from workflows.stages.experiments import Experiment
from workflows.stages.results import Outcome
from workflows.steps.search import INDEX
from workflows.store.store import Store

TEXTS = ["a", "What is it?", "one two three", "B-25, c. 1940"]
"""What an exported retriever is tried with."""
APART = 1e-4
"""How far its vectors may be from ours."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="a directory that is not there, or empty")
    parser.add_argument(
        "--system", metavar="NAME",
        help="the system for the folder `system`, as the run's table calls it (default: what the run chose to deploy, "
        "else the last retriever, with the last ranker over it where that was measured)",
    )  # fmt: skip
    parser.add_argument(
        "--adapters", action="store_true",
        help="leave a trained adapter apart, as peft loads it over its base (default: merged, so that the folder needs "
        "nothing else); the folder `system` always has it merged",
    )  # fmt: skip


def call(arguments: argparse.Namespace) -> None:
    """Export, and print a line for each thing that was written: how to use it."""
    experiment, store = opened(arguments)
    finished(store, experiment.outcome.results)
    words = [*(word for one in arguments.assignments for word in ("--set", one))]
    command = shlex.join([*program().split(), "run", str(arguments.config), *words])
    options = {"system": arguments.system, "adapters": arguments.adapters}
    with _disk_full_named(arguments.directory):
        for line in write(experiment, store, arguments.directory, command=command, **options):
            print(line)


def write(
    experiment: Experiment, store: Store, to: Path, *, system: str | None, command: str, adapters: bool = False
) -> Iterator[str]:
    """Write `retriever/`, `ranker/`, `rankings/*.trec`, `qrels.trec`, an index, `system/`; yield a line for each.

    `system` names one of the run's table, None for the one to deploy or the last; `command` is what made the run;
    `adapters` leaves those of `retriever/` and `ranker/` apart. Nothing is overwritten.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to}: exists and is not empty; accepted: a directory that does not exist, or an empty one")
    outcome = experiment.outcome
    if outcome.unmeasured:
        yield from _retriever_alone(outcome, store, to, adapters=adapters)
        return
    deployed = systems.chosen(outcome, system or systems.recommended(outcome, store))
    stages = systems.stages(deployed)
    config = system_folder.fetch(deployed, stages, store)
    for step in (outcome.data, outcome.retrieval.retriever, outcome.ranker, *outcome.rankings.values()):
        if step is not None:
            finished(store, step)
    store.fetch([step for step in (outcome.retrieval.retriever, outcome.ranker) if step is not None], "model")
    store.fetch([outcome.data], "queries.parquet", "qrels.parquet")
    store.fetch(outcome.rankings.values(), "ranking.parquet")
    with replacing(to) as folder:
        folder.mkdir(parents=True)
        yield _retriever(outcome, store, folder, to, adapters=adapters)
        if outcome.ranker is not None:
            model_folder.copy(store.path(outcome.ranker) / "model", folder / "ranker", adapters=adapters)
            code = ", trust_remote_code=True" if (folder / "ranker" / RANKER_CODE).exists() else ""
            yield f'{to}/ranker: CrossEncoder("{to}/ranker"{code})'
        (folder / "rankings").mkdir()
        queries = pq.read_table(store.path(outcome.data) / "queries.parquet", columns=["query_id", "split"])
        wanted = queries["query_id"].filter(pc.equal(queries["split"], outcome.split)).combine_chunks()
        for system, step in outcome.rankings.items():
            table = of_queries(store.path(step) / "ranking.parquet", RANKING, wanted)
            name = system.replace(": ", "-").replace(" ", "-")
            trec.write_ranking(table, folder / "rankings" / f"{name}.trec", tag=name)
        yield f"{to}/rankings: {len(outcome.rankings)} TREC run files"
        qrels = pq.read_table(store.path(outcome.data) / "qrels.parquet")
        trec.write_qrels(qrels, folder / "qrels.trec", outcome.split)
        yield f"{to}/qrels.trec: {program()} evaluate {to}/rankings/NAME.trec {to}/qrels.trec"
        index = outcome.retrieval.index
        if index is not None and store.is_complete(index):
            store.fetch([index], INDEX)
            shutil.copyfile(store.path(index) / INDEX, folder / INDEX)
            yield f'{to}/{INDEX}: faiss.read_index("{to}/{INDEX}")'
        measured = system_folder.measures(outcome, deployed, stages, store, command)
        system_folder.write(folder / "system", config, deployed, stages, store, measured)
        yield f'{to}/system ({deployed.name}): {program()} search {to}/system "QUERY"'


def _retriever_alone(outcome: Outcome, store: Store, to: Path, *, adapters: bool) -> Iterator[str]:
    """What there is of a run that measured nothing."""
    finished(store, outcome.retrieval.retriever)
    store.fetch([outcome.retrieval.retriever], "model")
    with replacing(to) as folder:
        folder.mkdir(parents=True)
        yield _retriever(outcome, store, folder, to, adapters=adapters)


def _retriever(outcome: Outcome, store: Store, folder: Path, to: Path, *, adapters: bool) -> str:
    """Copy the last retriever to `folder/retriever`; a line that says how to use it in `to`."""
    model_folder.copy(store.path(outcome.retrieval.retriever) / "model", folder / "retriever", adapters=adapters)
    if (tower := folder / "retriever" / "query" / BASE).exists():  # which sentence-transformers cannot load
        return f'{to}/retriever: PeftModel.from_pretrained(MODEL, "{to}/retriever/{tower.parent.name}")'
    _compare(folder / "retriever")
    return f'{to}/retriever: SentenceTransformer("{to}/retriever")'


@contextmanager
def _disk_full_named(to: Path) -> Iterator[None]:
    """UserError where the disk is full; FAISS says so in the text of an error of its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) != errno.ENOSPC and os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise UserError(f"{to}: the disk is full; nothing was exported") from None


def _compare(folder: Path) -> None:
    """UserError where sentence-transformers, if it is installed, makes other vectors with a retriever than we do."""
    if find_spec("sentence_transformers") is None:
        return
    import torch
    from sentence_transformers import SentenceTransformer

    from components.data.template import Template
    from components.data.tokenizers import load_tokenizer
    from components.data.tokens import Tokens
    from components.models.dual_encoder import DualEncoder, Side

    tokenizer, model = load_tokenizer(folder), DualEncoder.load(folder).eval()
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for side in get_args(Side):
        prompt = getattr(model.config, f"{side}_prompt")
        tokens = Tokens.of(tokenizer([prompt + text for text in TEXTS], add_special_tokens=False)["input_ids"])
        limit = model.max_tokens("document" if model.config.towers == "shared" else side)  # where it cuts both sides
        with torch.inference_mode():
            ours = model(Template.of(tokenizer).texts(tokens, np.arange(len(TEXTS)), limit), side).numpy()
        apart = np.abs(getattr(theirs, f"encode_{side}")(TEXTS, show_progress_bar=False) - ours).max()
        if not apart <= APART * max(1.0, np.abs(ours).max()):
            raise UserError(
                f"the exported retriever gives other vectors in sentence-transformers: of a {side} by {apart:.2g}"
            )
