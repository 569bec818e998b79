"""Decide whether a round of training is played."""

from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.data.groups import judged_queries, query_ids_of
from sparring.components.data.tables import QRELS, RANKING, of_queries, read
from sparring.components.evaluation.gate import GateConfig, decide, write_decision
from sparring.components.retrieval.prior import WEIGHTS
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

MORE = "more updates of the ranker's warm-up (`ar2`: ranker.warm.train.updates, `adapt`: train.ranker.updates)"
PRIORS = "the scores of the retriever and of BM25 added to the ranker's (`ar2`: ranker.prior, `adapt`: prior)"
"""Keys that may open a closed gate. They are no part of the step's identity."""


def _refuses(data: Path, split: str) -> None:
    """Refuse a split without judgements to decide by."""
    if not len(judged_queries(data, split, None)):
        raise UserError(
            f"gate: {split!r} has no query with a relevant document to decide by; hold some out "
            "(`data.hold_out: {dev: {share: 0.1}}`), or train in every round (`gate: false`)"
        )


@Description(part="evaluation", version=2, refuses=_refuses)
def gate(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranking: Path,
    reranked: Path,
    split: str,
    measure: str,
    config: GateConfig,
) -> dict[str, Any]:
    """Write `gate.json`: whether a ranker's order of a split's queries is better than the ranking that the ranker
    reads.

    If the gate is closed, the note says so in one line, which ends with what would open it.
    """
    _refuses(data, split)
    queries = query_ids_of(data, [split])
    qrels = read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)])
    before = of_queries(ranking / "ranking.parquet", RANKING, queries)
    decision = decide(before, read(reranked / "ranking.parquet", RANKING), qrels, measure, config)
    write_decision(out, decision)
    if decision["open"]:
        return decision
    change = MORE if (reranked / WEIGHTS).exists() else f"{MORE}; {PRIORS}"
    note = (
        f"The retriever learns nothing in this round, and stays as it was: {measure} is {decision['ranker']:.3f} in "
        f"the ranker's order and {decision['ranking']:.3f} in the retriever's (p = {decision['p']:.3f}, "
        f"{decision['queries']} queries of {split}). The ranker must be better, with p at most {config.level:g}. To "
        f"open the gate, try {change}, or set `gate: false`."
    )
    return {**decision, "note": note}
