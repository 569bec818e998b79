"""Measure any TREC run file, with intervals, and optionally compare it with another run file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.components.config import UserError, listing

if TYPE_CHECKING:
    import pyarrow as pa


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("ranking", type=Path, metavar="RANKING", help="a TREC run file")
    parser.add_argument("qrels", type=Path, metavar="QRELS", help="a TREC or BEIR qrels file")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="RANKING",
        help="another run file: print the difference to it and p (paired randomization over the queries)",
    )
    parser.add_argument(
        "--common",
        action="store_true",
        help="measure only on queries that every ranking has results for (default: queries without results count 0)",
    )
    parser.add_argument(
        "--measures",
        nargs="+",
        default=["RR@10", "nDCG@10", "R@100"],
        metavar="MEASURE",
        help="measures, in the names of ir_measures (default: RR@10 nDCG@10 R@100)",
    )


def call(arguments: argparse.Namespace) -> None:
    """Print a line per measure, in columns on a terminal and otherwise with tabs: the mean over the queries and its 95
    % interval. With `--against`, also print the difference, its interval and p."""
    import pyarrow.compute as pc

    from sparring.components.evaluation import measures, ties
    from sparring.components.evaluation.significance import compare, estimate, layouts
    from sparring.components.sources import trec

    qrels = trec.read_qrels(arguments.qrels)
    relevant = qrels.filter(pc.greater(qrels["relevance"], 0))
    if not len(relevant):
        raise UserError(f"{arguments.qrels}: no query has a relevant document")
    judged, usable = (len(pc.unique(table["query_id"])) for table in (qrels, relevant))
    if usable < judged:
        print(
            f"{arguments.qrels}: {judged - usable:,} of {judged:,} queries have no relevant document, and are left "
            "out (trec_eval and ir_measures count them 0)",
            file=sys.stderr,
        )
    files = [path for path in (arguments.ranking, arguments.against) if path is not None]
    rankings = [trec.read_ranking(path) for path in files]
    if arguments.common:
        whole, common = len(pc.unique(relevant["query_id"])), qrels["query_id"]
        for ranking in rankings:
            common = pc.filter(common, pc.is_in(common, pc.unique(ranking["query_id"])))
        qrels, relevant = (table.filter(pc.is_in(table["query_id"], common)) for table in (qrels, relevant))
        if not len(relevant):
            raise UserError(f"--common: no query of {arguments.qrels} has results in {listing(files)}")
        print(f"on {len(pc.unique(relevant['query_id'])):,} of {whole:,} queries", file=sys.stderr)
    for path, ranking in zip(files, rankings, strict=True):
        _match(path, ranking, arguments.qrels, relevant)
    measured = [measures.per_query(ranking, qrels, arguments.measures) for ranking in rankings]
    for path, ranking, values in zip(files, rankings, measured, strict=True):
        if remark := ties.remark(ties.decided(ranking, qrels, arguments.measures), values):
            print(f"{path}: {remark} Equal scores are in the order of the file's ranks.", file=sys.stderr)
    head = ["measure", "mean", "low", "high"]
    compared: dict[str, dict[str, Any]] = {}
    if arguments.against is not None:
        head += ["difference", "difference_low", "difference_high", "p"]
        compared = {pair["measure"]: pair for pair in compare(measured[:1], measured[1:], seed=0)}
    rows = [head]
    for name, (_, values) in layouts(measured[:1]).items():
        statistic = estimate([values])
        interval = statistic.interval()
        numbers = [statistic.mean, *((None, None) if interval is None else measures.within(name, *interval))]
        if name in compared:
            pair = compared[name]
            ends = (None, None) if pair["low"] is None else (max(pair["low"], -1.0), min(pair["high"], 1.0))
            numbers += [pair["difference"], *ends, pair["p"]]
        rows.append([name, *("" if number is None else f"{number:.4f}" for number in numbers)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip() if sys.stdout.isatty() else "\t".join(row))


def _match(path: Path, ranking: pa.Table, judged: Path, relevant: pa.Table) -> None:
    """Report queries that count 0 because the ranking lacks them. UserError if it has none of the queries, as with
    other ids."""
    import pyarrow.compute as pc

    queries = pc.unique(relevant["query_id"])
    matching = ranking.filter(pc.is_in(ranking["query_id"], queries))
    if not len(matching):
        for file, column in ((path, ranking["query_id"]), (judged, queries)):
            if not len(column):
                raise UserError(f"{file}: has no query")
        names = [repr(column[0].as_py()) for column in (ranking["query_id"], queries)]
        raise UserError(f"{path}: has no query of {judged}. Its ids look like {names[0]}, those there like {names[1]}.")
    if lacking := len(queries) - len(pc.unique(matching["query_id"])):
        print(f"{path}: {lacking:,} of {len(queries):,} queries have no results, and count 0", file=sys.stderr)
    if not pc.any(pc.is_in(matching["doc_id"], relevant["doc_id"].combine_chunks())).as_py():
        names = [repr(column[0].as_py()) for column in (matching["doc_id"], relevant["doc_id"])]
        print(
            f"{path}: has no relevant document of any query. Its ids look like {names[0]}, those in {judged} like "
            f"{names[1]}.",
            file=sys.stderr,
        )
