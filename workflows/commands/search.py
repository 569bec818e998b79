"""Print the documents that a finished run's models find for a query, with text and scores. They are what the run itself
would find: by the same index, where it has one, and in the same precision. A system's folder, as `export` writes it,
takes the config's place: then it is the system's own stages that find and reorder, and no store is needed. Where
`serve` runs for the same, its open models answer. In brackets is the score that the documents are ordered by (a
reciprocal fusion's is the sum of weight / (c + rank) over its lists), then those of the stages."""

import argparse
import shlex
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from components.config import UserError
from components.systems import config as configs
from components.systems.system import Hit, System
from workflows.commands.opening import add_cluster, add_config, opened, store_root
from workflows.distributed import cluster as clusters
from workflows.distributed.cluster import cores
from workflows.serving import running
from workflows.stages import experiments, systems
from workflows.stages.experiments import Experiment
from workflows.stages.results import Outcome
from workflows.store.store import Store

CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], " ")
"""Control characters, and what is printed in their place: a terminal would obey those in a document."""
USUAL = 5
"""Documents to show where nobody says how many."""
SCORES = {"lexical": "BM25 {:.2f}", "dense": "retriever {:.3f}", "ranker": "ranker {:.2f}"}
"""How the score of a stage is printed behind the one that the documents are in order of."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, "an experiment, such as configs/demo.yaml, or the folder of an exported system")
    add_cluster(parser)
    parser.add_argument("query", metavar="QUERY", help="the text to search for")
    parser.add_argument(
        "--system", metavar="NAME",
        help="which of a run's systems searches, as its table calls it (default: the one that the run "
        "chose to deploy, or the last retriever)",
    )  # fmt: skip
    parser.add_argument("-k", type=int, help=f"documents to show (default: {USUAL}, or all where there are fewer)")
    parser.add_argument(
        "--rank", action="store_true",
        help="let the last ranker reorder the first documents; an exported system does so if it has a ranker",
    )  # fmt: skip
    parser.add_argument(
        "--depth", type=int, metavar="N",
        help="how many documents --rank reorders; the others follow in their old order (default: as many as the run "
        "itself reranks; where it reranks none, -k)",
    )  # fmt: skip


def call(arguments: argparse.Namespace) -> None:
    """Print the documents, best first, with scores and the beginning of their texts."""
    if not arguments.query.strip():
        raise UserError(f"QUERY: got {arguments.query!r}; accepted: a text that is not blank")
    if arguments.depth is not None and not arguments.rank:
        raise UserError("--depth: says how many documents --rank reorders; accepted: together with --rank")
    if arguments.system is not None and arguments.rank:
        raise UserError(
            "--rank: has the last ranker reorder what the last retriever finds; accepted: without --system; a "
            "--system that ends in a ranker is reordered by it, without --rank"
        )
    for number, hit in enumerate((_exported if experiments.is_system(arguments.config) else _of_run)(arguments), 1):
        title, doc_id, text = (part.translate(CONTROLS) for part in (hit.title, hit.doc_id, hit.text))
        print(f"{number}. {f'{title}  ' if title else ''}({_scores(hit)})  {doc_id}")
        print(textwrap.indent(textwrap.fill(textwrap.shorten(text, 280, placeholder=" ..."), 100), "   "))


def _scores(hit: Hit) -> str:
    """The score that the documents are in order of, and those of the stages by name, where it is not one stage's."""
    stages = [form.format(hit.scores[name]) for name, form in SCORES.items() if name in hit.scores]
    return f"{hit.score:.3f}" + ("" if list(hit.scores.values()) == [hit.score] else f": {', '.join(stages)}")


def _exported(arguments: argparse.Namespace) -> list[Hit]:
    """What the system in a folder finds."""
    for key, value in {"--set": arguments.assignments, "--rank": arguments.rank, "--system": arguments.system}.items():
        if value:
            raise UserError(f"{key}: an exported system searches as its system.json says; accepted: with a config")
    folder, config = arguments.config, configs.read(arguments.config)
    k = _k(arguments, config.limit)
    config.check_k(k, "-k")
    found = running.asked(folder, running.identity_of_folder(folder), "folder", arguments.query, k)
    if found is not None:
        return found
    return System.load(folder, threads=cores(), models=_models(arguments)).search([arguments.query], k)[0]


def _of_run(arguments: argparse.Namespace) -> list[Hit]:
    """What a system of a run finds: the named one, with --rank the last ranker over the last retriever, else what the
    run chose to deploy, or its last retriever."""
    experiment, store = opened(arguments)
    outcome, deployed = experiment.outcome, None
    if arguments.system is None and not arguments.rank:
        arguments.system = deployed = systems.deployed(outcome, store)
    hits = _found(arguments, experiment, store)
    if deployed is not None:
        print(f"{deployed} searches here, which the run chose to deploy", file=sys.stderr)
    elif arguments.system is None and store.is_done(outcome.results):
        _name_who_searches(outcome, store, rank=arguments.rank)
    elif arguments.system is None:
        print(f"the run is not finished; here searches: {outcome.retrieval.retriever.label}", file=sys.stderr)
    return hits


def _found(arguments: argparse.Namespace, experiment: Experiment, store: Store) -> list[Hit]:
    named = None if arguments.system is None else systems.chosen(experiment.outcome, arguments.system)
    if arguments.rank and experiment.outcome.ranker is None:
        raise UserError(f"--rank: {arguments.config} trains no ranker")
    k = _k(arguments)
    if arguments.depth is None:
        role, of = "ranker" if arguments.rank else "retriever", running.identity(experiment, store_root(arguments))
        found = running.asked(experiment.run, of, role, arguments.query, k, system=arguments.system)
        if found is not None:
            return found
    from workflows.serving import library

    depth = None
    if arguments.rank:
        own = library.own_depth(experiment.outcome, k)
        depth = own if arguments.depth is None else arguments.depth
    plan = library.last(experiment.outcome, store, depth) if named is None else library.measured(named, store)
    k = _k(arguments, plan.config.limit)
    plan.config.check_k(k, "-k")
    opened_here = library.Library(store, threads=cores(), models=_models(arguments))
    return opened_here.system(plan).search([arguments.query], k)[0]


def _k(arguments: argparse.Namespace, limit: int | None = None) -> int:
    """How many documents to show; where nobody has said it, no more than a system ranks."""
    usual = USUAL if limit is None else min(USUAL, limit)
    return usual if arguments.k is None else int(arguments.k)


def _name_who_searches(outcome: Outcome, store: Store, *, rank: bool) -> None:
    """Say which system `export` packs, where another one searches; of several trainings, which one searches."""
    if not outcome.ranked:
        print(f"of these trainings this one searches: {outcome.retrieval.retriever.label}", file=sys.stderr)
        return
    name = systems.recommended(outcome, store)
    searches = outcome.ranked.get(name) if name is not None else None
    last, ranker = outcome.retrieval.retriever, outcome.ranker if rank else None
    if searches is None or (
        searches.retrieval is not None and searches.retrieval.retriever is last and searches.ranker is ranker
    ):
        return
    who = "the last ranker, over the last retriever," if rank else "the last retriever"
    packed = f"--system {shlex.quote(searches.name)}"
    print(f"{who} searches here; the system that `export` packs: {packed}", file=sys.stderr)


def _models(arguments: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    """How models compute: in this process, whatever the profile's mode."""
    cluster = clusters.read_cluster(arguments.cluster).model_copy(update={"mode": "inline"})

    def options() -> dict[str, Any]:
        cuda = cluster.cuda()
        return {"cuda": cuda, "batch_tokens": cluster.batch_tokens(cuda=cuda)}

    return options
