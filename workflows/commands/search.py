"""Print the documents that a system of a finished run finds for a query, with text and scores. They are the documents
that the run itself would find: by the same index and in the same precision. Instead of a config, name the folder of a
system that `export` wrote. No store is needed then. If `serve` runs for the same config or folder, its models answer.
A system with a reader prints the reader's answer first. In brackets is the score that orders the documents (for
reciprocal fusion, the sum of weight / (c + rank) over the lists), then the scores of the stages."""

import argparse
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from sparring.components.config import CONTROLS, UserError, printable
from sparring.components.systems import config as configs
from sparring.components.systems.system import Answered, Hit, LoadedSystem
from sparring.workflows.commands.shared_arguments import add_cluster, add_config, opened, store_root
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.experiments import loading
from sparring.workflows.serving import running
from sparring.workflows.systems import deployable

USUAL = 5
"""Default number of documents to show."""
SCORES = {
    "lexical": "BM25 {:.2f}",
    "expansion": "expanded {:.2f}",
    "dense": "retriever {:.3f}",
    "ranker": "ranker {:.2f}",
}
"""Formats of stages' scores, printed behind the score that orders the documents."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, "an experiment, such as configs/demo.yaml, or the folder of an exported system")
    add_cluster(parser)
    parser.add_argument("query", metavar="QUERY", nargs="?", help="the text to search for")
    parser.add_argument(
        "--id",
        metavar="ID",
        help="in QUERY's place a document, by its id: find others like it (the document itself is left out)",
    )
    parser.add_argument(
        "--system",
        metavar="NAME",
        help=f"which of a run's systems searches, as its table calls it (default: {deployable.DEFAULT})",
    )
    parser.add_argument("-k", type=int, help=f"documents to show (default: {USUAL}, or all where there are fewer)")


def call(arguments: argparse.Namespace) -> None:
    """Print a reader's answer, if the system has a reader, and the documents, best first, with scores and the beginning
    of their texts."""
    if (arguments.query is None) == (arguments.id is None):
        raise UserError(
            "search: accepted: either QUERY, a text to search for, or --id ID, a document to find others like"
        )
    if arguments.query is not None and not arguments.query.strip():
        raise UserError(f"QUERY: got {arguments.query!r}; accepted: a text that is not blank")
    answered = (_exported if loading.is_system(arguments.config) else _of_run)(arguments)
    if answered.answer is not None:
        text, doc_id = answered.answer
        source = "in none of the documents that were read" if doc_id is None else f"in {printable(doc_id)}"
        print(f"answer: {text.translate(CONTROLS)}  ({source})" if text else "answer: none")
    for number, hit in enumerate(answered.hits, 1):
        title, text = (part.translate(CONTROLS) for part in (hit.title, hit.text))
        print(f"{number}. {f'{title}  ' if title else ''}({_scores(hit)})  {printable(hit.doc_id)}")
        print(textwrap.indent(textwrap.fill(textwrap.shorten(text, 280, placeholder=" ..."), 100), "   "))


def _scores(hit: Hit) -> str:
    """Format the score that orders the documents. If it combines stages, add theirs by name."""
    stages = [form.format(hit.scores[name]) for name, form in SCORES.items() if name in hit.scores]
    return f"{hit.score:.3f}" + ("" if list(hit.scores.values()) == [hit.score] else f": {', '.join(stages)}")


def _exported(arguments: argparse.Namespace) -> Answered:
    """Search with the system in a folder."""
    for key, value in {"--set": arguments.assignments, "--system": arguments.system}.items():
        if value:
            raise UserError(f"{key}: an exported system searches as its system.json says; accepted: with a config")
    folder, config = arguments.config, configs.read(arguments.config)
    k = _k(arguments, config)
    identity = running.identity_of_folder(folder)
    answered = running.ask(folder, identity, config.name, arguments.query, k, arguments.id)
    if answered is not None:
        return answered
    return _found(LoadedSystem.load(folder, threads=cores(), models=_models(arguments)), arguments, k)


def _of_run(arguments: argparse.Namespace) -> Answered:
    """Search with a run's system: the named one, else the default. Print which."""
    experiment, store = opened(arguments)
    outcome, name = experiment.outcome, arguments.system
    system = deployable.asked(outcome, store) if name is None else deployable.chosen(outcome, name)
    identity = running.identity(experiment, store_root(arguments))
    called = deployable.LAST if system is None else system.name
    k = USUAL if arguments.k is None else arguments.k
    answered = running.ask(experiment.run, identity, called, arguments.query, k, arguments.id)
    if answered is None:
        from sparring.workflows.systems import library

        plan = library.last(outcome, store) if system is None else library.measured(system, store)
        k = _k(arguments, plan.config)
        opened_here = library.Library(store, threads=cores(), models=_models(arguments))
        answered = _found(opened_here.system(plan), arguments, k)
    if name is None:
        interim = outcome.newest(store).interim
        stage = "" if interim is None else f", and this is its choice {interim.moment}"
        unfinished = "" if store.is_done(outcome.results) else f"the run is not finished{stage}; "
        hint = "--system NAME asks another" if outcome.ranked else "the experiment that this is made of asks others"
        print(f"{unfinished}{called} searches here; {hint}", file=sys.stderr)
    return answered


def _found(system: LoadedSystem, arguments: argparse.Namespace, k: int) -> Answered:
    """Search for the query, or for documents like a document, which is left out."""
    text = arguments.query if arguments.id is None else system.text_of(arguments.id)
    return system.answer([text], k, without=[arguments.id])[0]


def _k(arguments: argparse.Namespace, config: configs.SystemConfig) -> int:
    """Return the number of documents to show. By default it is no more than a system ranks."""
    if arguments.k is None:
        return min(USUAL, config.limit)
    config.check_k(arguments.k, "-k")
    return int(arguments.k)


def _models(arguments: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    """Return a function that says how models compute: in this process, whatever the profile's mode."""
    cluster = clusters.read_cluster(arguments.cluster).model_copy(update={"mode": "inline"})

    def options() -> dict[str, Any]:
        machine = resolve_machine(cluster)
        return {"cuda": machine.cuda, "batch_tokens": machine.batch_tokens}

    return options
