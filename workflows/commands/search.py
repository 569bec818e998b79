"""Print the documents that a finished run's models find for a query, with text and scores. They are what the run itself
would find: by the same index, where it has one, and in the same precision. A system's folder, as `export` writes it,
takes the config's place: then it is the system's own stages that find and reorder, and no store is needed."""

import argparse
import textwrap
from typing import Any

from components.config import UserError
from components.data.groups import check_k
from components.data.vectors import document_shards
from components.retrieval import topk
from components.systems import config as configs
from components.systems.config import VERSION, Ranker, SystemConfig
from components.systems.documents import InTable
from components.systems.stages import BM25, Nearest, PairScorer, Retriever
from components.systems.system import Hit, System
from workflows.commands.opening import add_cluster, add_config, finished, not_dropped, opened
from workflows.distributed import cluster as clusters
from workflows.distributed.cluster import cores
from workflows.stages import systems
from workflows.stages.experiments import Experiment
from workflows.stages.results import Outcome
from workflows.stages.results import System as Measured
from workflows.stages.retrieval import Retrieval
from workflows.steps import lucene
from workflows.steps.prior import add_prior
from workflows.steps.score import RerankConfig
from workflows.steps.search import INDEX
from workflows.store.store import Store

CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], " ")
"""Control characters, and what is printed in their place: a terminal would obey those in a document."""
SCORES = {"lexical": "BM25 {:.2f}", "dense": "retriever {:.3f}", "ranker": "ranker {:.2f}"}
"""How a stage's score is printed behind that of the ranking before the ranker."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser, "an experiment, such as configs/demo.yaml, or the folder of an exported system")
    add_cluster(parser)
    parser.add_argument("query", metavar="QUERY", help="the text to search for")
    parser.add_argument("-k", type=int, default=5, help="documents to show (default: 5)")
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
    if arguments.depth is not None and not arguments.rank:
        raise UserError("--depth: says how many documents --rank reorders; accepted: together with --rank")
    cluster = clusters.read_cluster(arguments.cluster)
    cuda = cluster.model_copy(update={"mode": "inline"}).cuda()  # in this process, whatever the profile's mode
    options = {"cuda": cuda, "batch_tokens": cluster.batch_tokens(cuda=cuda), "threads": cores()}
    system = _exported(arguments, options) if arguments.config.is_dir() else _of_run(arguments, options)
    for number, hit in enumerate(system.search([arguments.query], arguments.k)[0], 1):
        title, doc_id, text = (part.translate(CONTROLS) for part in (hit.title, hit.doc_id, hit.text))
        print(f"{number}. {title or doc_id}  ({_scores(hit)})  {doc_id}")
        print(textwrap.indent(textwrap.fill(textwrap.shorten(text, 280, placeholder=" ..."), 100), "   "))


def _scores(hit: Hit) -> str:
    """A document's score before the ranker, and those of the other stages by name."""
    first = next(name for name in ("fusion", "dense", "lexical") if name in hit.scores)
    return ", ".join(
        [
            f"{hit.scores[first]:.3f}",
            *(SCORES[name].format(score) for name, score in hit.scores.items() if name not in (first, "fusion")),
        ]
    )


def _exported(arguments: argparse.Namespace, options: dict[str, Any]) -> System:
    """The system in a folder."""
    for key, value in {"--set": arguments.assignments, "--rank": arguments.rank}.items():
        if value:
            raise UserError(f"{key}: an exported system searches as its system.json says; accepted: with a config")
    configs.read(arguments.config).check_k(arguments.k, "-k")
    return System.load(arguments.config, **options)


def _of_run(arguments: argparse.Namespace, options: dict[str, Any]) -> System:
    """The last retriever of a run, and with --rank the last ranker over it."""
    experiment, store = opened(arguments)
    depth = None
    if arguments.rank:
        if experiment.outcome.ranker is None:
            raise UserError(f"--rank: the recipe {experiment.config.recipe} trains no ranker")
        depth = _own_depth(experiment, arguments.k) if arguments.depth is None else arguments.depth
    return last(experiment, store, k=arguments.k, depth=depth, options=options)


def last(experiment: Experiment, store: Store, *, k: int, depth: int | None, options: dict[str, Any]) -> System:
    """A run's last retriever, to find up to `k` documents; with `depth`, its last ranker reorders the first `depth`, by
    the sum of its scores and others where the run does."""
    outcome, retrieval = experiment.outcome, experiment.outcome.retrieval
    own = None if depth is None else _own_reranking(outcome)
    others = systems.stages(own) if own is not None and _has_prior(own) else {}
    _fetch(experiment, store, others, k=k, depth=depth)
    ranker, lexical, model = None, None, store.path(retrieval.retriever) / "model"
    if depth is not None:
        ranker = Ranker(depth=depth, precision=_config_of(own).precision)
    if own is not None and ranker is not None and others:
        described = systems.described(own, others, store)
        lexical, weights = described.lexical, described.ranker and described.ranker.weights
        ranker = ranker.model_copy(update={"weights": weights})
    # Adapters over the same model: it is held once for both.
    options = {**options, "merge": ranker is None}
    documents = InTable(store.path(outcome.data) / "documents.parquet")
    dense = systems.dense(retrieval.ranking(outcome.split), model)
    config = SystemConfig(
        version=VERSION, name="the last", documents=len(documents.order), lexical=lexical, dense=dense, ranker=ranker,
    )  # fmt: skip
    config.check_k(k, "-k")
    return System(
        config, documents,
        lexical=BM25(store.path(others["lexical"].inputs["index"]) / lucene.INDEX, lexical, threads=options["threads"])
        if lexical is not None else None,
        dense=Retriever(model, documents, _nearest(retrieval, store, options), precision=dense.precision,
                        vectors=dense.vectors, **options),
        ranker=PairScorer(store.path(outcome.ranker) / "model", precision=ranker.precision, **options)
        if ranker is not None and outcome.ranker is not None else None,
    )  # fmt: skip


def _own_reranking(outcome: Outcome) -> Measured | None:
    """What the run itself measured of its last ranker, over its last retriever where it did; None for nothing."""
    last = outcome.retrieval.retriever.fingerprint
    own = [one for one in outcome.systems if one.ranker is not None and one.ranker is outcome.ranker and one.ranking]
    over_last = [one for one in own if one.retrieval is not None and one.retrieval.retriever.fingerprint == last]
    return next(iter([*over_last, *own]), None)


def _has_prior(system: Measured) -> bool:
    return system.ranking is not None and system.ranking.function is add_prior


def _config_of(system: Measured | None) -> RerankConfig:
    """How the run itself reranked."""
    if system is None or system.ranking is None:
        return RerankConfig()
    step = system.ranking.inputs["reranked"] if _has_prior(system) else system.ranking
    config: RerankConfig = step.inputs["config"]
    return config


def _own_depth(experiment: Experiment, k: int) -> int:
    """How many documents of a query the run itself reranks; where it reranks none, as many as are shown."""
    own = _own_reranking(experiment.outcome)
    return k if own is None else min(_config_of(own).depth, experiment.outcome.retrieval.k)


def _fetch(experiment: Experiment, store: Store, others: systems.Stages, *, k: int, depth: int | None) -> None:
    """Fetch what is needed, with the scores beside the ranker's; UserError where it was not made or was dropped, or a
    count is out of range."""
    outcome = experiment.outcome
    models = [
        outcome.retrieval.retriever,
        *([outcome.ranker] if depth is not None and outcome.ranker is not None else []),
    ]
    searched = outcome.retrieval.index or outcome.retrieval.vectors
    more = [others["lexical"].inputs["index"]] if "lexical" in others else []
    more += systems.weights_of(others)
    for step in (*models, *more, searched, outcome.data):
        finished(store, step)
    not_dropped(store, searched)
    store.fetch([outcome.data], "documents.parquet")
    check_k(k, store.path(outcome.data), key="-k")
    if depth is not None:
        check_k(depth, store.path(outcome.data), key="--depth")
    store.fetch([searched, *more])
    store.fetch(models, "model")


def _nearest(retrieval: Retrieval, store: Store, options: dict[str, Any]) -> Nearest:
    """The search of the step `search`: by the run's index, or exact."""
    if retrieval.index is None:
        vectors, device = document_shards(store.path(retrieval.vectors)), "cuda" if options["cuda"] else "cpu"
        return lambda queries, order, k: topk.top_k(queries, vectors, order, k, device=device)
    from components.retrieval import index

    config, path = retrieval.search, store.path(retrieval.index) / INDEX
    opened = index.read(path, probes=config.probes, ef=config.ef, threads=options["threads"], gpu=options["cuda"])
    return lambda queries, order, k: index.search(opened, queries, order, k)
