"""False-negative control: which candidates of a ranking may become negatives, and why others may not."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data import own_documents, row_runs
from sparring.components.data.groups import ids_of, known_positives, query_ids_of, rows_of
from sparring.components.data.tables import ANSWERED, RANKING, SCREENED, by_query, check, pieces, read
from sparring.components.data.vectors import DocumentVectors, Lists
from sparring.components.files import replacing, write_json
from sparring.components.retrieval import screening
from sparring.components.retrieval.screening import REASONS, RankingRows, ScreenConfig
from sparring.components.rng import keyed_rng
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.store.cost import Cost, Ranking, Sizes, Work
from sparring.workflows.store.dag import Description

CASES = "cases.json"
"""Examples of removed candidates, for the report."""
CASES_EACH = 4
"""Examples of each reason."""
ROWS = 1_000_000
"""Rows of the ranking in memory at once; changes no result."""


def _cost(site: Any, *, data: Sizes, ranking: Ranking, split: str, **rest: Any) -> Cost:
    """Every candidate is looked at."""
    made = Ranking(data.asked(split), ranking.k)
    return Cost(work=(Work("rows", 6.0 * made.rows),), makes=made, kept=made.bytes)


@Description(part="groups and negatives", shows=(CASES,), version=2, cost=_cost)
def screen(
    out: Path,
    cluster: Cluster,
    *,
    data: Path,
    tokens: Path,
    ranking: Path,
    split: str,
    votes: Path | None,
    vectors: Path | None,
    config: ScreenConfig,
) -> dict[str, Any]:
    """Write the ranking of the split's judged queries with one more column: `reason`, empty for what may be a negative.

    `votes` is the ranking in a ranker's order, with its scores; `vectors` are the documents' that made the ranking.
    The summary counts candidates before and after, and those removed by reason; `cases.json` has examples. A margin is
    taken to the best-ranked relevant document. It removes nothing for queries whose list has none (`without_positive`).
    """
    answered = config.answering or "hit" in pq.read_schema(ranking / "ranking.parquet").names
    schema = ANSWERED if answered else RANKING
    wanted = query_ids_of(data, [split])
    look = _Look(data, tokens, votes, vectors, config)
    told: list[_Seen] = []
    rows = lists = without = 0
    with replacing(out / "ranking.parquet") as path, pq.ParquetWriter(path, _told(schema)) as writer:
        for piece in by_query(ranking / "ranking.parquet", schema, rows=ROWS):
            table = piece.filter(pc.is_in(piece["query_id"], value_set=wanted)).combine_chunks()
            if not len(table):
                continue
            candidates, seen = look(table)
            number = len(np.unique(candidates.queries))
            lists, without = lists + number, without + number - len(np.unique(candidates.queries[seen.relevant]))
            told.append(seen.shifted(rows))
            rows += len(table)
            names = pa.array(["", *REASONS]).take(pa.array(seen.reason.astype(np.int64) + 1))
            writer.write_table(check(table.append_column("reason", names), _told(schema), source="screened ranking"))
    whole = _Seen(*(np.concatenate(column) for column in zip(*told, strict=True))) if told else _NOTHING
    write_json(out / CASES, _cases(out / "ranking.parquet", whole))
    counts = {name: int((whole.reason == number).sum()) for number, name in enumerate(REASONS)}
    return {
        "queries": lists,
        "before": len(whole.reason),
        "after": int((whole.reason < 0).sum()),
        "removed": {name: count for name, count in counts.items() if count},
        "without_positive": without,
    }


def _told(schema: pa.Schema) -> pa.Schema:
    """A ranking with reasons, and with hits where it had them."""
    return pa.schema([*SCREENED, *([ANSWERED.field("hit")] if schema is ANSWERED else [])])


class _Seen(NamedTuple):
    """Of each row the number of its reason, -1 for none; whether it is relevant; the score and the row of the positive
    that it is held against; the first row of its query that says the same."""

    reason: np.ndarray
    relevant: np.ndarray
    score: np.ndarray
    place: np.ndarray
    first: np.ndarray

    def shifted(self, rows: int) -> "_Seen":
        """The same where so many rows stand before."""
        return self._replace(place=np.where(self.place >= 0, self.place + rows, -1), first=self.first + rows)


_NOTHING = _Seen(
    np.empty(0, np.int8), np.empty(0, bool), np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
)


class _Look:
    """What is looked at of a piece of the ranking, whole queries of it."""

    def __init__(
        self, data: Path, tokens: Path, votes: Path | None, vectors: Path | None, config: ScreenConfig
    ) -> None:
        self._config, self._votes = config, votes
        self._queries = ids_of(data / "queries.parquet", "query_id")
        self._documents = ids_of(data / "documents.parquet", "doc_id")
        self._of_queries = known_positives(data, tokens)
        known = [(q, d) for q, relevant in self._of_queries.items() for d in relevant]
        self._relevant = np.asarray(known, np.int64).reshape(-1, 2)
        self._same = np.load(tokens / "documents.same.npy")
        self._own = own_documents.rows(data)
        self._vectors = DocumentVectors(vectors) if config.reciprocal is not None and vectors is not None else None

    def __call__(self, table: pa.Table) -> tuple[RankingRows, _Seen]:
        config = self._config
        candidates = RankingRows(
            rows_of(table["query_id"], self._queries, source="ranking"),
            rows_of(table["doc_id"], self._documents, source="ranking"),
            table["score"].to_numpy(),
        )
        is_judged = screening.judged(candidates, self._relevant)
        score, place = screening.positive_scores(candidates, is_judged)
        flags = {
            "qrel": is_judged,
            "own document": screening.copies(candidates, self._own, self._same),
            "duplicate text": screening.duplicates(candidates, self._relevant, self._same),
            "margin": screening.too_near(candidates, score, config),
        }
        if config.answering:
            flags["answer"] = table["hit"].to_numpy()
        if config.vote is not None:
            assert self._votes is not None
            of = [("query_id", "in", pc.unique(table["query_id"]).to_pylist())]
            flags["ranker's vote"] = _voted(
                table, read(self._votes / "ranking.parquet", RANKING, filters=of), config.vote
            )
        if config.reciprocal is not None:
            assert self._vectors is not None
            flags["reciprocal neighbour"] = _reciprocal(candidates, self._of_queries, self._vectors, config.reciprocal)
        texts = np.stack([candidates.queries, self._same[candidates.documents]], 1)
        _, firsts, which = np.unique(texts, axis=0, return_index=True, return_inverse=True)
        return candidates, _Seen(screening.first_reason(flags), is_judged, score, place, firsts[which.reshape(-1)])


def _voted(table: pa.Table, votes: pa.Table, vote: screening.Vote) -> np.ndarray:
    """Which candidates a ranker takes for relevant: those that it scored above the threshold."""
    pairs = table.select(["query_id", "doc_id"]).append_column("row", pa.array(np.arange(len(table))))
    pairs = pairs.filter(pc.less_equal(table["rank"], vote.depth))
    scores = votes.select(["query_id", "doc_id", "score"])
    asked = pairs.join(scores, ["query_id", "doc_id"], join_type="inner")
    least = float(np.log(vote.above / (1 - vote.above)))
    flags = np.zeros(len(table), bool)
    flags[asked.filter(pc.greater(asked["score"], least))["row"].to_numpy()] = True
    return flags


def _reciprocal(candidates: RankingRows, relevant: dict[int, np.ndarray], vectors: DocumentVectors, k: int) -> Any:
    """Which candidates and a relevant document of their query are near in both directions."""
    import torch

    starts = row_runs.starts(candidates.queries)
    parts = np.split(candidates.documents, starts[1:]) if len(starts) else []
    known = [relevant.get(int(query), np.empty(0, np.int64)) for query in candidates.queries[starts]]
    lists = [np.concatenate([listed, np.setdiff1d(own, listed)]) for listed, own in zip(parts, known, strict=True)]
    offsets = np.cumsum([0, *map(len, lists)])
    padded = Lists(candidates.queries[starts], np.concatenate([np.empty(0, np.int64), *lists]), offsets)
    documents, there = padded.padded(padded.documents), padded.mask
    is_relevant = there & np.asarray([np.isin(row, own) for row, own in zip(documents, known, strict=True)])
    flags = []
    for part, held in vectors.lists(documents, 64):
        at = screening.reciprocal(
            torch.from_numpy(held).float(), torch.from_numpy(is_relevant[part]), torch.from_numpy(there[part]), k
        ).numpy()
        flags += [row[: len(listed)] for row, listed in zip(at, parts[part], strict=True)]
    return np.concatenate([np.empty(0, bool), *flags])


def _cases(ranking: Path, seen: _Seen) -> list[dict[str, Any]]:
    """Some removed candidates of each reason, with the positive they are held against, and of a copy what stands before
    it and says the same (`copy_of`; null where only a relevant document that was not found does)."""
    chosen: list[tuple[str, int]] = []
    for number, name in enumerate(REASONS):
        rows = np.flatnonzero(seen.reason == number)
        chosen += [(name, at) for at in np.sort(keyed_rng("cases", name).permutation(rows)[:CASES_EACH]).tolist()]
    told = _rows(ranking, {row for _, at in chosen for row in (at, int(seen.place[at]), int(seen.first[at]))})
    cases = []
    for name, at in chosen:
        best = told[int(seen.place[at])]["doc_id"] if seen.place[at] >= 0 else None
        about = {key: told[at][key] for key in ("query_id", "doc_id", "rank", "score")}
        positive = {"positive": best, "positive_score": float(seen.score[at]) if best is not None else None}
        first = int(seen.first[at])
        copied = told[first]["doc_id"] if name == "duplicate text" and first < at else None
        cases.append({"reason": name, **about, **positive, "copy_of": copied})
    return cases


def _rows(ranking: Path, wanted: set[int]) -> dict[int, dict[str, Any]]:
    """Some rows of a ranking by their number; one pass over it."""
    rows: dict[int, dict[str, Any]] = {}
    first = 0
    for piece in pieces(ranking, RANKING, rows=ROWS):
        own = sorted(row for row in wanted if first <= row < first + len(piece))
        rows.update(zip(own, piece.take(pa.array([row - first for row in own], pa.int64())).to_pylist(), strict=True))
        first += len(piece)
    return rows
