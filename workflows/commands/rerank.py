"""Order documents by a ranker: a run's, an exported system's or that of a folder. The documents are those of a list for
one query, or those of a TREC run file for many."""

import argparse
import sys
import textwrap
from pathlib import Path

import pyarrow as pa

from sparring.components.config import CONTROLS, UserError, printable
from sparring.components.data.tables import RANKING
from sparring.components.sources import trec
from sparring.components.systems.loaded import PairScorer
from sparring.components.systems.rankings import Ranking, reordered
from sparring.workflows.commands.models import add_model, load_ranker
from sparring.workflows.commands.shared_arguments import check_output
from sparring.workflows.commands.texts import ACCEPTED, STANDARD_INPUT, by_id, read_texts

DEPTH = 50
"""Default number of documents of each query that the ranker scores."""
AT_ONCE = 32
"""Number of queries whose pairs are scored together."""
TAG = "reranked"
"""Last column of the run file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_model(parser, "ranker")
    parser.add_argument("query", metavar="QUERY", nargs="?", help="the query to order `--documents` for")
    parser.add_argument(
        "--documents",
        type=Path,
        metavar="FILE",
        help=f"the documents: {ACCEPTED} (default with QUERY: standard input)",
    )
    parser.add_argument(
        "--ranking",
        type=Path,
        metavar="FILE",
        help="in place of QUERY: a TREC run file to reorder, with the texts in --queries and --documents",
    )
    parser.add_argument(
        "--queries", type=Path, metavar="FILE", help="the queries of --ranking, a table like --documents"
    )
    parser.add_argument(
        "--depth",
        type=int,
        metavar="N",
        default=DEPTH,
        help="with --ranking: score the first N documents of each query; the remaining documents follow in their old "
        f"order (default: {DEPTH})",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="with --ranking: the TREC run file to write")


def call(arguments: argparse.Namespace) -> None:
    """Print the ordered documents with their scores, or write the reordered run file."""
    if (arguments.query is None) == (arguments.ranking is None):
        raise UserError("rerank: give either QUERY, or --ranking FILE.", key="QUERY", code="one-of")
    if arguments.ranking is None:
        _print(arguments)
        return
    for option in ("queries", "documents", "output"):
        if getattr(arguments, option) is None:
            raise UserError(f"--{option}: it is missing. --ranking needs it.", key=f"--{option}", code="missing-key")
    if arguments.depth < 1:
        raise UserError(f"--depth: it is {arguments.depth}. Use 1 or more.", key="--depth", code="too-small")
    check_output(arguments.output, "another FILE")
    _write(arguments)


def _print(arguments: argparse.Namespace) -> None:
    """Print the documents of one query, best first. Documents with equal scores keep their order."""
    if not arguments.query.strip():
        raise UserError(f"QUERY: it is {arguments.query!r}. Write a text that is not blank.", key="QUERY")
    file = arguments.documents or STANDARD_INPUT
    documents = [text for text in read_texts(file) if text.text.strip()]
    if not documents:
        raise UserError(f"{file}: there are no texts. Give a file that has some.", code="no-texts")
    (scores,) = load_ranker(arguments)([arguments.query], [[document.text for document in documents]])
    ranked = sorted(zip(documents, scores.tolist(), strict=True), key=lambda pair: -pair[1])
    for rank, (document, score) in enumerate(ranked, 1):
        text = textwrap.shorten(document.text.translate(CONTROLS), 100, placeholder=" ...")
        print(f"{rank}. ({score:.3f})  {printable(document.id)}  {text}")


def _write(arguments: argparse.Namespace) -> None:
    """Write the run file with each query's first documents in the ranker's order."""
    table = trec.read_ranking(arguments.ranking)
    if not len(table):
        raise UserError(f"{arguments.ranking}: it ranks no documents. Give a run file with rows.", code="no-rows")
    queries, documents = by_id(arguments.queries), by_id(arguments.documents)
    rankings: dict[str, Ranking] = {}
    for query, document, score in zip(
        *(table[name].to_pylist() for name in ("query_id", "doc_id", "score")), strict=True
    ):
        rankings.setdefault(query, []).append((document, score))
    first = {query: ranking[: arguments.depth] for query, ranking in rankings.items()}
    for name, texts, file in (
        *((query, queries, arguments.queries) for query in rankings),
        *((document, documents, arguments.documents) for ranking in first.values() for document, _ in ranking),
    ):
        if name not in texts:
            raise UserError(
                f"{file}: it has no text with the id {name!r}, which {arguments.ranking} ranks. Add the text.",
                code="missing-text",
            )
    scored = _scored(load_ranker(arguments), first, queries, documents)
    rows = [
        (query, document, rank, score)
        for query, ranking in rankings.items()
        for rank, (document, score) in enumerate(reordered(ranking, scored[query]), 1)
    ]
    columns = dict(zip(RANKING.names, zip(*rows, strict=True), strict=True))
    trec.write_ranking(pa.table(columns, schema=RANKING), arguments.output, TAG)
    pairs = sum(map(len, first.values()))
    print(f"{arguments.output}: {len(rankings):,} queries, {pairs:,} pairs scored", file=sys.stderr)


def _scored(
    ranker: PairScorer, first: dict[str, Ranking], queries: dict[str, str], documents: dict[str, str]
) -> dict[str, Ranking]:
    """Score each query's documents, best first. Documents with equal scores keep their order."""
    scored: dict[str, Ranking] = {}
    names = list(first)
    for start in range(0, len(names), AT_ONCE):
        block = names[start : start + AT_ONCE]
        texts = [[documents[document] for document, _ in first[query]] for query in block]
        for query, scores in zip(block, ranker([queries[query] for query in block], texts), strict=True):
            pairs = zip((document for document, _ in first[query]), scores.tolist(), strict=True)
            scored[query] = sorted(pairs, key=lambda hit: -hit[1])
    return scored
