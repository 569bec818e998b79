"""Add the scores of the rankings that a ranker reads to the ranker's scores (`components.retrieval.prior`)."""

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import UserError, listing
from sparring.components.data import row_runs
from sparring.components.data.groups import CANDIDATES, judged_queries, write_lists
from sparring.components.data.tables import GROUPS, QRELS, RANKING, pieces, read, write
from sparring.components.files import read_json, write_json
from sparring.components.retrieval.prior import WEIGHTS, fit, scores_in
from sparring.components.rng import keyed_int
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

WITHOUT_DEV = "hold some out (`data.hold_out: {dev: {share: 0.1}}`), or leave the prior out"
RANKER, BM25 = "ranker", "bm25"
WHOSE = {RANKER: "its score", "retriever": "the retriever's", BM25: "BM25's"}


class Prior(TypedDict):
    """A ranking whose scores are added to the ranker's."""

    name: str
    """Name of its weight: `retriever`, `bm25`."""
    ranking: Path
    lexical_k: int | None
    """Number of documents that were requested, for BM25's ranking. None for other rankings."""


def _refuses(data: Path, split: str) -> None:
    """Refuse a split without judgements to fit weights on."""
    if not len(judged_queries(data, split, None)):
        raise UserError(f"prior: {split!r} has no query with a relevant document to fit weights on; {WITHOUT_DEV}")


@Description(part="scoring by the ranker", version=3, refuses=_refuses)
def fit_prior(
    out: Path, machine: Machine, *, data: Path, reranked: Path, priors: list[Prior], split: str, depth: int
) -> dict[str, Any]:
    """Write `weights.json`, the weight of the ranker's scores and of each prior's, and `ranking.parquet`, the split's
    reranked queries in the order of the weighted sums.

    In `ranking.parquet` each half of the queries is ranked by weights that were fitted on the other half, so that the
    measures do not flatter the weights. `reranked` is what `rerank` wrote, to the same depth.
    """
    _refuses(data, split)
    table = read(reranked / "ranking.parquet", RANKING)
    first = _first(table, depth)
    features, relevant = _features(first, priors), _relevant(data, split, first)
    if not relevant.any():
        raise UserError(
            f"prior: no query of {split!r} has a relevant document among the first {depth} that the ranker read, so no "
            f"weights could be fitted; rerank deeper (`rerank.depth`), {WITHOUT_DEV}"
        )
    query = first["query_id"].combine_chunks().dictionary_encode()
    rows, halves = query.indices.to_numpy(), np.array([keyed_int("half", name) % 2 for name in query.dictionary])
    half_of_row, sums = halves[rows], np.zeros(len(first))
    for half in (0, 1):
        weights = fit(features[half_of_row != half], relevant[half_of_row != half], rows[half_of_row != half])
        sums[half_of_row == half] = _sums(features[half_of_row == half], weights)
    _write(out, table, sums, depth)
    weights = fit(features, relevant, rows)
    named = dict(zip([RANKER, *(prior["name"] for prior in priors)], weights.tolist(), strict=True))
    write_json(out / WEIGHTS, named)
    rounded = {name: round(value, 3) for name, value in named.items()}
    return {"weights": rounded, "queries": len(halves), "note": _note(named, split)}


def _note(weights: dict[str, float], split: str) -> str:
    """Explain a ranker's row to a reader."""
    ranker, *priors = (f"{value:.3g} x {WHOSE.get(name, name)}" for name, value in weights.items())
    return (
        f"This ranker's rows use the sum of {ranker}, {listing(priors)}, with weights fitted on the queries of "
        f"{split}. The ranker alone orders documents otherwise."
    )


@Description(part="scoring by the ranker", version=3)
def add_prior(
    out: Path, machine: Machine, *, reranked: Path, priors: list[Prior], weights: Path, depth: int
) -> dict[str, Any]:
    """Write `ranking.parquet`: the first `depth` documents of each query in the order of the weighted sums, followed by
    the remaining documents. `reranked` is what `rerank` wrote, to the same depth. `weights` is what `fit_prior`
    wrote."""
    table = read(reranked / "ranking.parquet", RANKING)
    _write(out, table, _sums(_features(_first(table, depth), priors), _weights(weights, priors)), depth)
    return {"rows": len(table)}


@Description(part="scoring by the ranker", version=3)
def teach_with_prior(
    out: Path, machine: Machine, *, groups: Path, priors: list[Prior], weights: Path
) -> dict[str, Any]:
    """Write `groups.parquet` with the weighted sums in place of the teacher's scores, which `score_groups` wrote."""
    path, weight_values, sums = groups / "groups.parquet", _weights(weights, priors), [np.zeros(0)]
    for piece in pieces(path, GROUPS, rows=CANDIDATES):
        lengths = pc.list_value_length(piece["doc_ids"]).to_numpy()
        pairs = pa.table(
            {
                "query_id": piece["query_id"].take(pa.array(np.repeat(np.arange(len(piece)), lengths))),
                "doc_id": pc.list_flatten(piece["doc_ids"]),
                "score": pc.list_flatten(piece["teacher"]),
            }
        )
        sums.append(_sums(_features(pairs, priors), weight_values))
    write_lists(path, "teacher", np.concatenate(sums).astype(np.float32), out / "groups.parquet")
    return {"pairs": sum(map(len, sums))}


def _first(table: pa.Table, depth: int) -> pa.Table:
    """Return the rows of a ranking that the ranker scored. `rerank` wrote the ranking."""
    return table.filter(pc.less_equal(table["rank"], depth))


def _features(pairs: pa.Table, priors: list[Prior]) -> npt.NDArray[np.float64]:
    """Return the scores (N, 1 + P) of each pair: the ranker's, and each prior's."""
    columns = [pairs["score"].to_numpy().astype(np.float64)]
    for prior in priors:
        ranked = pieces(prior["ranking"] / "ranking.parquet", RANKING)
        columns.append(scores_in(ranked, pairs["query_id"], pairs["doc_id"], lexical_k=prior["lexical_k"]))
    return np.stack(columns, 1)


def _sums(features: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the weighted sums (N,). Equal rows have equal sums, which a matrix product does not promise."""
    sums: npt.NDArray[np.float64] = (features * weights).sum(1)
    return sums


def _relevant(data: Path, split: str, pairs: pa.Table) -> npt.NDArray[np.bool_]:
    """Return whether each document is relevant to its query: (N,)."""
    qrels = read(data / "qrels.parquet", QRELS, filters=[("split", "=", split), ("relevance", ">", 0)])
    judged = set(zip(qrels["query_id"].to_pylist(), qrels["doc_id"].to_pylist(), strict=True))
    ranked = zip(pairs["query_id"].to_pylist(), pairs["doc_id"].to_pylist(), strict=True)
    return np.fromiter((pair in judged for pair in ranked), bool, len(pairs))


def _weights(artifact: Path, priors: list[Prior]) -> npt.NDArray[np.float64]:
    """Read the weights (1 + P,) of the ranker and of each prior."""
    named = read_json(artifact / WEIGHTS)
    return np.array([named[name] for name in (RANKER, *(prior["name"] for prior in priors))])


def _write(out: Path, table: pa.Table, sums: npt.NDArray[np.float64], depth: int) -> None:
    """Write a ranking with its first documents in the order of their sums. Documents with equal sums keep their
    order."""
    scored = pc.less_equal(table["rank"], depth).to_numpy()
    scores = np.zeros(len(table))
    scores[scored] = sums
    scores[~scored] = sums.min(initial=0.0) - table["rank"].to_numpy()[~scored]
    query = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((table["rank"].to_numpy(), -scores, query))
    written = table.set_column(3, "score", pa.array(scores, pa.float32())).take(pa.array(order))
    ranks = pa.array(row_runs.ranks(query[order]) + 1, pa.int32())
    write(out / "ranking.parquet", written.set_column(2, "rank", ranks), RANKING)
