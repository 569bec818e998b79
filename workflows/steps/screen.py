"""Control false negatives: mark which candidates of a ranking may become negatives, and why others may not."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data import own_documents, row_runs
from sparring.components.data.groups import ids_of, known_positives, query_ids_of, rows_of
from sparring.components.data.tables import ANSWERED, RANKING, SCREENED, by_query, check, columns_of, pieces, read
from sparring.components.data.vectors import DocumentVectors, Lists
from sparring.components.files import replacing, write_json
from sparring.components.retrieval import screening
from sparring.components.retrieval.screening import REASONS, RankingRows, ScreenConfig
from sparring.components.rng import keyed_rng
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

CASES = "cases.json"
"""Examples of removed candidates, for the report."""
CASES_EACH = 4
"""Number of examples for each reason."""
ROWS = 1_000_000
"""Number of rows of the ranking in memory at once. It changes no result."""


@Description(part="groups and negatives", makes="screened ranking", shows=(CASES,), version=2)
def screen(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    tokens: Path,
    ranking: Path,
    split: str,
    votes: Path | None,
    vectors: Path | None,
    config: ScreenConfig,
) -> dict[str, Any]:
    """Write the ranking of the split's judged queries with a column `reason`. It is empty for candidates that may
    become negatives.

    `votes` is the ranking in a ranker's order, with its scores. `vectors` are the documents' vectors that made the
    ranking. The summary counts candidates before and after, and those removed by reason. `cases.json` has examples. A
    margin is the distance to the best-ranked relevant document. It removes nothing for queries whose list has no
    relevant document (`without_positive`).
    """
    answered = config.answering or "hit" in columns_of(ranking / "ranking.parquet")
    schema = ANSWERED if answered else RANKING
    wanted = query_ids_of(data, [split])
    look = _Look(data, tokens, votes, vectors, config)
    seen_parts: list[_Seen] = []
    rows = lists = without = 0
    with replacing(out / "ranking.parquet") as path, pq.ParquetWriter(path, _told(schema)) as writer:
        for piece in by_query(ranking / "ranking.parquet", schema, rows=ROWS):
            table = piece.filter(pc.is_in(piece["query_id"], value_set=wanted)).combine_chunks()
            if not len(table):
                continue
            candidates, seen = look(table)
            number = len(np.unique(candidates.queries))
            lists, without = lists + number, without + number - len(np.unique(candidates.queries[seen.relevant]))
            seen_parts.append(seen.shifted(rows))
            rows += len(table)
            names = pa.array(["", *REASONS]).take(pa.array(seen.reason.astype(np.int64) + 1))
            writer.write_table(check(table.append_column("reason", names), _told(schema), source="screened ranking"))
    whole = _Seen(*(np.concatenate(column) for column in zip(*seen_parts, strict=True))) if seen_parts else _NOTHING
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
    """Return the schema of a ranking with reasons, and with hits if the ranking had them."""
    return pa.schema([*SCREENED, *([ANSWERED.field("hit")] if schema is ANSWERED else [])])


class _Seen(NamedTuple):
    """Arrays with a value for each row. `reason` is the number of the reason, -1 for none. `relevant` says whether the
    document is relevant. `score` and `place` are the score and the row of the positive that the row is compared with.
    `first` is the first row of the query with the same text."""

    reason: np.ndarray
    relevant: np.ndarray
    score: np.ndarray
    place: np.ndarray
    first: np.ndarray

    def shifted(self, rows: int) -> "_Seen":
        """Return the same arrays for a piece that has `rows` rows before it."""
        return self._replace(place=np.where(self.place >= 0, self.place + rows, -1), first=self.first + rows)


_NOTHING = _Seen(
    np.empty(0, np.int8), np.empty(0, bool), np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64)
)


class _Look:
    """Screening of a piece of the ranking, which has whole queries."""

    def __init__(
        self, data: Path, tokens: Path, votes: Path | None, vectors: Path | None, config: ScreenConfig
    ) -> None:
        self._config, self._votes = config, votes
        self._queries = ids_of(data / "queries.parquet", "query_id")
        self._documents = ids_of(data / "documents.parquet", "doc_id")
        self._of_queries = known_positives(data, tokens)
        pairs = [(q, d) for q, relevant in self._of_queries.items() for d in relevant]
        self._relevant = np.asarray(pairs, np.int64).reshape(-1, 2)
        self._same = np.load(tokens / "documents.same.npy")
        self._self_documents = own_documents.rows(data)
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
            "own document": screening.copies(candidates, self._self_documents, self._same),
            "duplicate text": screening.duplicates(candidates, self._relevant, self._same),
            "margin": screening.too_near(candidates, score, config),
        }
        if config.answering:
            flags["answer"] = table["hit"].to_numpy()
        if config.vote is not None:
            assert self._votes is not None
            filters = [("query_id", "in", pc.unique(table["query_id"]).to_pylist())]
            flags["ranker's vote"] = _voted(
                table, read(self._votes / "ranking.parquet", RANKING, filters=filters), config.vote
            )
        if config.reciprocal is not None:
            assert self._vectors is not None
            flags["reciprocal neighbour"] = _reciprocal(candidates, self._of_queries, self._vectors, config.reciprocal)
        texts = np.stack([candidates.queries, self._same[candidates.documents]], 1)
        _, firsts, which = np.unique(texts, axis=0, return_index=True, return_inverse=True)
        return candidates, _Seen(screening.first_reason(flags), is_judged, score, place, firsts[which.reshape(-1)])


def _voted(table: pa.Table, votes: pa.Table, vote: screening.Vote) -> np.ndarray:
    """Return which candidates a ranker takes for relevant: those that it scored above the threshold."""
    pairs = table.select(["query_id", "doc_id"]).append_column("row", pa.array(np.arange(len(table))))
    pairs = pairs.filter(pc.less_equal(table["rank"], vote.depth))
    scores = votes.select(["query_id", "doc_id", "score"])
    scored = pairs.join(scores, ["query_id", "doc_id"], join_type="inner")
    least = float(np.log(vote.above / (1 - vote.above)))
    flags = np.zeros(len(table), bool)
    flags[scored.filter(pc.greater(scored["score"], least))["row"].to_numpy()] = True
    return flags


def _reciprocal(candidates: RankingRows, relevant: dict[int, np.ndarray], vectors: DocumentVectors, k: int) -> Any:
    """Return which candidates and a relevant document of their query are near in both directions."""
    import torch

    starts = row_runs.starts(candidates.queries)
    parts = np.split(candidates.documents, starts[1:]) if len(starts) else []
    positives = [relevant.get(int(query), np.empty(0, np.int64)) for query in candidates.queries[starts]]
    lists = [
        np.concatenate([listed, np.setdiff1d(right, listed)]) for listed, right in zip(parts, positives, strict=True)
    ]
    offsets = np.cumsum([0, *map(len, lists)])
    padded = Lists(candidates.queries[starts], np.concatenate([np.empty(0, np.int64), *lists]), offsets)
    documents, mask = padded.padded(padded.documents), padded.mask
    is_relevant = mask & np.asarray([np.isin(row, right) for row, right in zip(documents, positives, strict=True)])
    flags = []
    for part, held in vectors.lists(documents, 64):
        near = screening.reciprocal(
            torch.from_numpy(held).float(), torch.from_numpy(is_relevant[part]), torch.from_numpy(mask[part]), k
        ).numpy()
        flags += [row[: len(listed)] for row, listed in zip(near, parts[part], strict=True)]
    return np.concatenate([np.empty(0, bool), *flags])


def _cases(ranking: Path, seen: _Seen) -> list[dict[str, Any]]:
    """Describe some removed candidates of each reason.

    Each has the positive that it is compared with. A copy also has the document before it with the same text
    (`copy_of`), null if only a relevant document that was not retrieved has the text.
    """
    chosen: list[tuple[str, int]] = []
    for number, name in enumerate(REASONS):
        rows = np.flatnonzero(seen.reason == number)
        chosen += [(name, index) for index in np.sort(keyed_rng("cases", name).permutation(rows)[:CASES_EACH]).tolist()]
    table = _rows(
        ranking, {row for _, index in chosen for row in (index, int(seen.place[index]), int(seen.first[index]))}
    )
    cases = []
    for name, index in chosen:
        best = table[int(seen.place[index])]["doc_id"] if seen.place[index] >= 0 else None
        fields = {key: table[index][key] for key in ("query_id", "doc_id", "rank", "score")}
        positive = {"positive": best, "positive_score": float(seen.score[index]) if best is not None else None}
        first = int(seen.first[index])
        copied = table[first]["doc_id"] if name == "duplicate text" and first < index else None
        cases.append({"reason": name, **fields, **positive, "copy_of": copied})
    return cases


def _rows(ranking: Path, sought: set[int]) -> dict[int, dict[str, Any]]:
    """Read some rows of a ranking by their number, in one pass over it."""
    rows: dict[int, dict[str, Any]] = {}
    first = 0
    for piece in pieces(ranking, RANKING, rows=ROWS):
        numbers = sorted(row for row in sought if first <= row < first + len(piece))
        rows.update(
            zip(numbers, piece.take(pa.array([row - first for row in numbers], pa.int64())).to_pylist(), strict=True)
        )
        first += len(piece)
    return rows
