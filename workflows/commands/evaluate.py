"""Print the measures of any TREC run file."""

import argparse
from pathlib import Path

from components.config import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("ranking", type=Path, metavar="RANKING", help="a TREC run file")
    parser.add_argument("qrels", type=Path, metavar="QRELS", help="a TREC or BEIR qrels file")
    parser.add_argument(
        "--measures", nargs="+", default=["RR@10", "nDCG@10", "R@100"], metavar="MEASURE",
        help="in the names of ir_measures (default: RR@10 nDCG@10 R@100)",
    )  # fmt: skip


def call(arguments: argparse.Namespace) -> None:
    """Print the mean of each measure over the queries."""
    from components.data import trec
    from components.evaluation import measures

    ranking = trec.read_ranking(arguments.ranking)
    qrels = trec.read_qrels(arguments.qrels)
    values = measures.per_query(ranking, qrels, arguments.measures)
    if not len(values):
        raise UserError(f"{arguments.qrels}: no query has a relevant document")
    for name, value in measures.means(values).items():
        print(f"{name}\t{value:.4f}")
