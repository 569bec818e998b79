"""Print the measures of any TREC run file, with their intervals, and perhaps against another's."""

import argparse
from pathlib import Path
from typing import Any

from components.config import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("ranking", type=Path, metavar="RANKING", help="a TREC run file")
    parser.add_argument("qrels", type=Path, metavar="QRELS", help="a TREC or BEIR qrels file")
    parser.add_argument(
        "--against", type=Path, metavar="RANKING",
        help="another run file: print the difference to it and p (paired randomization over the queries)",
    )  # fmt: skip
    parser.add_argument(
        "--measures", nargs="+", default=["RR@10", "nDCG@10", "R@100"], metavar="MEASURE",
        help="in the names of ir_measures (default: RR@10 nDCG@10 R@100)",
    )  # fmt: skip


def call(arguments: argparse.Namespace) -> None:
    """Print a line a measure: its mean over the queries, the ends of the mean's 95 % interval and, with `--against`,
    the difference, the ends of its interval, and p."""
    from components.data import trec
    from components.evaluation import measures
    from components.evaluation.significance import compare, ends, estimate, layouts

    qrels = trec.read_qrels(arguments.qrels)
    of_each = [
        measures.per_query(trec.read_ranking(path), qrels, arguments.measures)
        for path in (arguments.ranking, arguments.against) if path is not None
    ]  # fmt: skip
    if not len(of_each[0]):
        raise UserError(f"{arguments.qrels}: no query has a relevant document")
    head = ["measure", "mean", "low", "high"]
    compared: dict[str, dict[str, Any]] = {}
    if arguments.against is not None:
        head += ["difference", "difference_low", "difference_high", "p"]
        compared = {one["measure"]: one for one in compare(of_each[:1], of_each[1:], seed=0)}
    print("\t".join(head))
    for name, (_, values) in layouts(of_each[:1]).items():
        found = estimate([values])
        numbers = [found.mean, *ends(found).values()]
        if name in compared:
            numbers += [compared[name][key] for key in ("difference", "low", "high", "p")]
        print("\t".join([name, *("" if number is None else f"{number:.4f}" for number in numbers)]))
