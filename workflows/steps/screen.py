"""False-negative control: a ranking that says of each candidate whether it may become a negative, and if not, why."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components import draws, screening
from components.files import write_json
from components.groups import ids_of, positives, queries_of, rows_of
from components.screening import REASONS, Found, ScreenConfig
from components.tables import ANSWERED, RANKING, SCREENED, read, write
from components.vectors import Lists, Vectors, query_rows
from workflows.cluster import Cluster

CASES = "cases.json"
"""Some removed candidates, for people."""
CASES_EACH = 4
"""Of each reason."""


def screen(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, ranking: Path, split: str, votes: Path | None,
    vectors: Path | None, config: ScreenConfig,
) -> dict[str, Any]:  # fmt: skip
    """The ranking of the split's judged queries with a column more: `reason`, empty for what may be a negative.

    `votes` is the ranking in a ranker's order, with its scores; `vectors` are those that made the ranking. The summary
    counts candidates before and after, and what was removed by reason; `cases.json` has some of each. A margin is
    taken to the best-ranked relevant document; of queries whose list has none (`without_positive`) it removes nothing.
    """
    answered = config.answering or "hit" in pq.read_schema(ranking / "ranking.parquet").names
    table = read(ranking / "ranking.parquet", ANSWERED if answered else RANKING)
    wanted = queries_of(data, [split], ["query_id"])["query_id"].combine_chunks()
    table = table.filter(pc.is_in(table["query_id"], value_set=wanted)).combine_chunks()
    found = Found(
        rows_of(table["query_id"], ids_of(data / "queries.parquet", "query_id"), what=str(ranking)),
        rows_of(table["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what=str(ranking)),
        table["score"].to_numpy(),
    )
    of_queries = positives(data)
    relevant = np.asarray([(q, d) for q, known in of_queries.items() for d in known], np.int64).reshape(-1, 2)
    is_judged = screening.judged(found, relevant)
    score, place = screening.positive_scores(found, is_judged)
    same = np.load(tokens / "documents.same.npy")
    flags = {
        "qrel": is_judged,
        "duplicate text": screening.copies(found, relevant, same),
        "margin": screening.too_near(found, score, config),
    }
    if config.same_id:
        flags["same id"] = pc.equal(table["query_id"], table["doc_id"]).to_numpy()
    if config.answering:
        flags["answer"] = table["hit"].to_numpy()
    if config.vote is not None:
        assert votes is not None
        flags["ranker's vote"] = _voted(table, read(votes / "ranking.parquet", RANKING), config.vote)
    if config.reciprocal is not None:
        assert vectors is not None
        rows = query_rows(vectors, table["query_id"])
        flags["reciprocal neighbour"] = _reciprocal(found, rows, of_queries, Vectors(vectors), config.reciprocal)
    reason = screening.first_reason(flags)
    names = pa.array(["", *REASONS]).take(pa.array(reason.astype(np.int64) + 1))
    told = table.append_column("reason", names)
    write(out / "ranking.parquet", told, pa.schema([*SCREENED, *([ANSWERED.field("hit")] if answered else [])]))
    write_json(out / CASES, _cases(table, reason, score, place, found, same[found.documents]))
    counts = {name: int((reason == number).sum()) for number, name in enumerate(REASONS)}
    lists = np.unique(found.queries)
    return {
        "queries": len(lists), "before": len(table), "after": int((reason < 0).sum()),
        "removed": {name: count for name, count in counts.items() if count},
        "without_positive": len(lists) - len(np.unique(found.queries[is_judged])),
    }  # fmt: skip


def _voted(table: pa.Table, votes: pa.Table, vote: screening.Vote) -> np.ndarray:
    """Which candidates a ranker takes for relevant: those that it was asked about and gave more than the threshold."""
    pairs = table.select(["query_id", "doc_id"]).append_column("row", pa.array(np.arange(len(table))))
    pairs = pairs.filter(pc.less_equal(table["rank"], vote.depth))
    scores = votes.select(["query_id", "doc_id", "score"])
    asked = pairs.join(scores, ["query_id", "doc_id"], join_type="inner")
    least = float(np.log(vote.above / (1 - vote.above)))
    flags = np.zeros(len(table), bool)
    flags[asked.filter(pc.greater(asked["score"], least))["row"].to_numpy()] = True
    return flags


def _reciprocal(found: Found, queries: np.ndarray, relevant: dict[int, np.ndarray], vectors: Vectors, k: int) -> Any:
    """Which candidates and a relevant document of their query are near in both directions."""
    import torch

    starts = np.flatnonzero(np.r_[True, found.queries[1:] != found.queries[:-1]][: len(found.queries)])
    parts = np.split(found.documents, starts[1:]) if len(starts) else []
    known = [relevant.get(int(query), np.empty(0, np.int64)) for query in found.queries[starts]]
    lists = [np.concatenate([listed, np.setdiff1d(own, listed)]) for listed, own in zip(parts, known, strict=True)]
    offsets = np.cumsum([0, *map(len, lists)])
    padded = Lists(queries[starts], np.concatenate([np.empty(0, np.int64), *lists]), offsets)
    documents, there = padded.padded(padded.documents), padded.there
    is_relevant = there & np.asarray([np.isin(row, own) for row, own in zip(documents, known, strict=True)])
    flags = []
    for part, _, held in vectors.contexts(padded.queries, documents, 64):
        at = screening.reciprocal(
            torch.from_numpy(held).float(), torch.from_numpy(is_relevant[part]), torch.from_numpy(there[part]), k
        ).numpy()
        flags += [row[: len(listed)] for row, listed in zip(at, parts[part], strict=True)]
    return np.concatenate([np.empty(0, bool), *flags])


def _cases(
    table: pa.Table, reason: np.ndarray, score: np.ndarray, place: np.ndarray, found: Found, texts: np.ndarray
) -> list[dict[str, Any]]:
    """Some removed candidates of each reason, with the positive they are held against, and of a copy what stands before
    it and says the same (`copy_of`; null where only a relevant document that was not found does)."""
    cases = []
    for number, name in enumerate(REASONS):
        rows = np.flatnonzero(reason == number)
        for at in np.sort(draws.generator("cases", name).permutation(rows)[:CASES_EACH]).tolist():
            row = table.slice(at, 1).to_pylist()[0]
            best = table["doc_id"][int(place[at])].as_py() if place[at] >= 0 else None
            about = {key: row[key] for key in ("query_id", "doc_id", "rank", "score")}
            positive = {"positive": best, "positive_score": float(score[at]) if best is not None else None}
            first = int(np.flatnonzero((found.queries == found.queries[at]) & (texts == texts[at]))[0])
            copied = table["doc_id"][first].as_py() if name == "duplicate text" and first < at else None
            cases.append({"reason": name, **about, **positive, "copy_of": copied})
    return cases
