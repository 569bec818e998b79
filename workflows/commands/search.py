"""Print the documents that a finished run's models find for a query, with text and scores. They are what the run itself
would find: by the same index, where it has one, and in the same precision."""

import argparse
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components.config import UserError
from components.data.groups import check_k, id_order, ids_of
from components.data.tables import records
from components.data.vectors import document_shards
from components.retrieval import topk
from workflows.commands.opening import add_cluster, add_config, finished, opened
from workflows.distributed import cluster as clusters
from workflows.distributed.cluster import Cluster, cores
from workflows.stages.experiments import Experiment
from workflows.stages.retrieval import Retrieval
from workflows.steps.score import RerankConfig
from workflows.steps.search import INDEX
from workflows.store.store import Store

CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], " ")
"""Control characters, and what is printed in their place: a terminal would obey those in a document."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_config(parser)
    add_cluster(parser)
    parser.add_argument("query", metavar="QUERY", help="the text to search for")
    parser.add_argument("-k", type=int, default=5, help="documents to show (default: 5)")
    parser.add_argument("--rank", action="store_true", help="let the ranker reorder the first documents")
    parser.add_argument(
        "--depth", type=int, metavar="N",
        help="how many documents --rank reorders; the others follow in their old order (default: as many as the run "
        "itself reranks; where it reranks none, -k)",
    )  # fmt: skip


def call(arguments: argparse.Namespace) -> None:
    """Print the documents, best first, with scores and the beginning of their texts."""
    experiment, store = opened(arguments)
    depth = None
    if arguments.rank:
        if experiment.outcome.ranker is None:
            raise UserError(f"--rank: the recipe {experiment.config.recipe} trains no ranker")
        depth = _own_depth(experiment, arguments.k) if arguments.depth is None else arguments.depth
    elif arguments.depth is not None:
        raise UserError("--depth: says how many documents --rank reorders; accepted: together with --rank")
    cluster = clusters.read_cluster(arguments.cluster)
    for number, hit in enumerate(search(experiment, store, cluster, arguments.query, k=arguments.k, depth=depth), 1):
        scores = f"{hit.score:.3f}" + (f", ranker {hit.ranker:.2f}" if hit.ranker is not None else "")
        title, doc_id, text = (part.translate(CONTROLS) for part in (hit.title, hit.doc_id, hit.text))
        print(f"{number}. {title or doc_id}  ({scores})  {doc_id}")
        print(textwrap.indent(textwrap.fill(textwrap.shorten(text, 280, placeholder=" ..."), 100), "   "))


@dataclass(frozen=True)
class Hit:
    """A document with the retriever's score, and the ranker's where it was reranked."""

    doc_id: str
    title: str
    text: str
    score: float
    ranker: float | None = None


def search(
    experiment: Experiment, store: Store, cluster: Cluster, query: str, *, k: int, depth: int | None
) -> list[Hit]:  # fmt: skip
    """The `k` best documents for a query; with `depth`, the ranker reorders the retriever's first `depth`.

    Everything runs in this process, whatever the profile's mode.
    """
    _fetch(experiment, store, k=k, depth=depth)
    cuda = cluster.model_copy(update={"mode": "inline"}).cuda()
    options = {"cuda": cuda, "batch_tokens": cluster.batch_tokens(cuda=cuda), "threads": cores()}
    outcome = experiment.outcome
    vector = _encoded(outcome.retrieval, store, query, options)
    hits = _retrieved(outcome.retrieval, store, store.path(outcome.data), vector, max(k, depth or 0), options)
    if depth is not None and outcome.ranker is not None:
        precision = (_own_rerank(experiment) or RerankConfig()).precision
        folder = store.path(outcome.ranker) / "model"
        hits = _reranked(folder, query, hits[:depth], {"precision": precision, **options}) + hits[depth:]
    return hits[:k]


def _own_rerank(experiment: Experiment) -> RerankConfig | None:
    """How the run itself reranks with its last ranker; None where it does not."""
    outcome = experiment.outcome
    for system in outcome.systems:
        if system.ranker is not None and system.ranker is outcome.ranker and system.ranking is not None:
            config: RerankConfig = system.ranking.inputs["config"]
            return config
    return None


def _own_depth(experiment: Experiment, k: int) -> int:
    """How many documents of a query the run itself reranks; where it reranks none, as many as are shown."""
    own = _own_rerank(experiment)
    return k if own is None else min(own.depth, experiment.outcome.retrieval.k)


def _fetch(experiment: Experiment, store: Store, *, k: int, depth: int | None) -> None:
    """Fetch what is needed; UserError where it was not made or was dropped, or a count is out of range."""
    outcome = experiment.outcome
    models = [
        outcome.retrieval.retriever,
        *([outcome.ranker] if depth is not None and outcome.ranker is not None else []),
    ]
    searched = outcome.retrieval.index or outcome.retrieval.vectors
    for step in (*models, searched, outcome.data):
        finished(store, step)
    if not store.is_complete(searched):
        again = f"python -m workflows run CONFIG --until {searched.label!r}"
        raise UserError(f"files of the step {searched.label!r} were dropped; make them again: {again}")
    store.fetch([outcome.data], "documents.parquet")
    check_k(k, store.path(outcome.data), key="-k")
    if depth is not None:
        check_k(depth, store.path(outcome.data), key="--depth")
    store.fetch([searched])
    store.fetch(models, "model")


def _encoded(retriever: Retrieval, store: Store, query: str, options: dict[str, Any]) -> np.ndarray:
    """(1, d) a query's vector, as the step `encode_queries` stores it."""
    from components.data.template import Template
    from components.data.tokenizers import load_tokenizer
    from components.data.tokens import Tokens
    from components.models.dual_encoder import DualEncoder
    from components.models.inference import Inference, Texts

    config = retriever.encode
    folder = store.path(retriever.retriever) / "model"
    inference, tokenizer = Inference(DualEncoder, folder, precision=config.precision, **options), load_tokenizer(folder)
    text = inference.config.query_prompt + query
    tokens = Tokens.of(tokenizer([text], add_special_tokens=False)["input_ids"])
    reading = Texts(Template.of(tokenizer), tokens, inference.config.query_tokens)
    return inference.ask(reading, np.array([0]), "query").astype(config.vectors)


def _retrieved(
    retriever: Retrieval, store: Store, data: Path, vector: np.ndarray, k: int, options: dict[str, Any]
) -> list[Hit]:  # fmt: skip
    """The documents nearest to a query's vector, found as the step `search` finds them."""
    ids = ids_of(data / "documents.parquet", "doc_id")
    by_id, order = id_order(ids)
    if retriever.index is None:
        device = "cuda" if options["cuda"] else "cpu"
        keys = topk.top_k(vector, document_shards(store.path(retriever.vectors)), order, k, device=device)[0]
    else:
        from components.retrieval import index

        config, path = retriever.search, store.path(retriever.index) / INDEX
        opened = index.read(path, probes=config.probes, ef=config.ef, threads=options["threads"], gpu=options["cuda"])
        keys = index.search(opened, vector, order, k)[0]
    keys = keys[keys != topk.NO_DOCUMENT]
    chosen = ids.take(pa.array(by_id[topk.tie_ranks_of(keys)])).to_pylist()
    documents = records(data / "documents.parquet", "doc_id", chosen)
    return [
        Hit(one, documents[one]["title"], documents[one]["text"], float(score))
        for one, score in zip(chosen, topk.scores_of(keys), strict=True)
    ]


def _reranked(folder: Path, query: str, hits: list[Hit], options: dict[str, Any]) -> list[Hit]:
    """Documents in the ranker's order; equal scores keep their order, as in the step `rerank`."""
    from components.data.tables import document_text
    from components.data.template import Template
    from components.data.tokenizers import load_tokenizer
    from components.data.tokens import Tokens
    from components.models.cross_encoder import CrossEncoder
    from components.models.inference import Inference, Pairs

    inference, tokenizer = Inference(CrossEncoder, folder, **options), load_tokenizer(folder)
    texts = [query, *(document_text(hit.title, hit.text) for hit in hits)]
    tokens = Tokens.of(tokenizer(texts, add_special_tokens=False)["input_ids"])
    reading = Pairs(Template.of(tokenizer), tokens, tokens, inference.config.pair_tokens)
    scores = inference.ask(reading, np.array([(0, 1 + row) for row in range(len(hits))]))
    scored = [replace(hit, ranker=float(score)) for hit, score in zip(hits, scores, strict=True)]
    return sorted(scored, key=lambda hit: -(hit.ranker or 0.0))
