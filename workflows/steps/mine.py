"""Mine groups: queries of a split with their positives, and negatives sampled from a ranking."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from sparring.components.config import Config, UserError, listing
from sparring.components.data import row_runs
from sparring.components.data.groups import flat, ids_of, judged_queries, positives, query_ids_of, rows_of
from sparring.components.data.own_documents import never_negatives
from sparring.components.data.tables import ANSWERED, GIVEN, GROUPS, QUERIES, RANKING, SCREENED, pieces, read, write
from sparring.components.evaluation.gate import is_open
from sparring.components.files import replacing
from sparring.components.functions import FunctionRef
from sparring.components.rng import keyed_rng
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

GIVING = ("tevatron", "flagembedding", "sentence_transformers")
"""Formats of sources that provide each query's candidates."""


class Sampler(FunctionRef):
    """A function that chooses among a query's candidates (`components.sampling`)."""

    takes = ("scores", "count", "rng", "positive")
    may_take = ("visit",)
    built_in = "components.sampling"

    def drawn(
        self, scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, **visit: int
    ) -> np.ndarray:
        """Choose positions (int64) of at most `count` distinct candidates. UserError for any other result."""
        positions = np.asarray(self.called(scores, count, rng, positive, **visit))
        if not positions.size:
            return np.zeros(0, np.int64)
        complaint = ""
        if positions.ndim != 1 or not np.issubdtype(positions.dtype, np.integer):
            complaint = f"an array of {positions.dtype}, shape {positions.shape}"
        elif len(positions) > count or len(np.unique(positions)) < len(positions):
            complaint = f"{len(positions)} positions, {len(np.unique(positions))} different"
        elif positions.min() < 0 or positions.max() >= len(scores):
            complaint = f"positions from {positions.min()} to {positions.max()}"
        if complaint:
            raise UserError(
                f"{self.function} returned {complaint}; accepted: at most {count} different whole numbers from 0 to "
                f"{len(scores) - 1}, the positions of candidates"
            )
        return positions.astype(np.int64)


class MineConfig(Config):
    """Source and number of negatives."""

    negatives: int = Field(15, ge=0)
    """Number of negatives per group that are sampled from the ranking."""
    depth: int = Field(100, ge=1)
    """Number of candidates of a ranking to sample from, or all of a shorter ranking (`k`). Zhang et al. (2022) use the
    first 100."""
    skip: int = Field(0, ge=0)
    """Number of first candidates to skip. With `depth` it makes a window of ranks."""
    random: int = Field(0, ge=0)
    """Number of further negatives per group, sampled from the whole collection."""
    draw: Sampler = Sampler(function="components.sampling.uniform")
    """Function that samples negatives from the candidates."""
    positives: Literal["judged", "answering"] = "judged"
    """Positives of a query. `judged`: queries without a relevant document are left out, as in AR2's paper. `answering`:
    such a query gets the first document of this ranking that contains an answer, down to rank `depth`. AR2's public
    code does this once, before the game."""
    given: Literal["negatives", "scores"] | None = Field(None, exclude_if=lambda value: value is None)
    """Candidates that a source of training data provides (`tevatron`, `flagembedding`, `sentence_transformers`).
    `negatives`: sample from the negatives that the source provides for each query instead of from a ranking. They have
    the source's order, with scores 0, -1, -2 and so on. If there are too few, random documents are added. `scores`: use
    the scores of the source's teacher too. A group with fewer candidates is then smaller, and queries without any are
    left out. Null samples from a ranking."""

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.skip >= self.depth:
            raise ValueError(f"skip: {self.skip} leaves nothing of a depth of {self.depth}")
        return self

    @model_validator(mode="after")
    def _given_fits(self) -> Self:
        if self.given == "scores" and self.random:
            raise ValueError(f"random: {self.random}: random negatives have no scores; accepted with given: scores: 0")
        if self.given is not None and self.positives == "answering":
            raise ValueError("positives: answering: answers are found in a ranking; accepted with given: judged")
        return self


def _refuses(data: Path, split: str, config: MineConfig, gate: Path | None) -> None:
    """Refuse a split that has nothing to learn from, and negatives that the source does not provide."""
    if gate is not None and not is_open(gate):
        return
    if config.given is not None and not (data / "given.parquet").exists():
        raise UserError(
            f"mine: given: {config.given}: the collection's source provides none; accepted: null, or a `data.format` "
            f"that provides them: {listing(GIVING)}"
        )
    names = query_ids_of(data, [split])
    if config.given is not None and not _is_given(data / "given.parquet", names, scored=config.given == "scores"):
        missing = "negatives with scores" if config.given == "scores" else "negatives"
        raise UserError(
            f"mine: given: {config.given}: the source provides no query of {split!r} with {missing}; accepted: null"
        )
    if config.positives == "judged" and not len(judged_queries(data, split, None)):
        raise UserError(f"no query of the split {split!r} has a relevant document")


def _is_given(path: Path, queries: pa.Array, *, scored: bool) -> bool:
    """Check whether the source provides candidates for some of these queries, with scores if `scored`."""
    for table in pieces(path, GIVEN):
        of_split = pc.is_in(table["query_id"], value_set=queries)
        if pc.any(pc.and_(of_split, pc.is_valid(table["teacher"])) if scored else of_split).as_py():
            return True
    return False


@Description(
    part="groups and negatives",
    makes="groups",
    version=2,
    refuses=_refuses,
    workers_read={"data": ("documents.parquet",), "tokens": ("*.ids.npy", "*.offsets.npy")},
)
def mine(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    tokens: Path,
    ranking: Path | None,
    split: str,
    groups: int,
    seed: list[Any],
    config: MineConfig,
    gate: Path | None = None,
) -> dict[str, Any]:
    """Write `groups.parquet` with `groups` groups of the split's queries.

    These documents are never negatives: relevant documents, documents relevant to another query with the same text, the
    query's own document, and copies of all these.

    Each pass over the queries has its own order, and a training reads the rows in yet another. A query's sample depends
    on (seed, query, visit) alone. Queries for which the ranking has nothing are left out and counted. Queries with
    fewer candidates than `negatives` get random documents too, so that all groups have one size. Only groups with a
    teacher's scores may be smaller. From a ranking that `screen` wrote, only candidates that passed are sampled; random
    negatives are not screened. If the config asks for answers, `ranking` is one that `answering` wrote. If the source
    provides the candidates, there is no ranking. Behind a closed `gate` there are no groups.
    """
    _refuses(data, split, config, gate)
    if gate is not None and not is_open(gate):
        write(out / "groups.parquet", GROUPS.empty_table(), GROUPS)
        return {"groups": 0}
    pool = _Pool(data, tokens, ranking, split, config)
    if not len(pool.queries):
        raise UserError(
            f"no query of the split {split!r} has a relevant document"
            + (" and a ranking" if ranking else "")
            + (f" and the candidates that `given: {config.given}` asks for" if config.given is not None else "")
        )
    visits = -(-groups // len(pool.queries))
    order = np.concatenate([keyed_rng(*seed, "order", v).permutation(len(pool.queries)) for v in range(visits)])
    filled = short = 0
    with (
        replacing(out / "groups.parquet") as path,
        pq.ParquetWriter(path, GROUPS) as writer,
        Progress(out, groups, "groups") as progress,
    ):
        for start in range(0, groups, 5_000):
            rows = []
            for position in range(start, min(start + 5_000, groups)):
                row, random, missing = pool.group(int(order[position]), position // len(pool.queries), seed)
                filled, short = filled + random, short + missing
                rows.append(row)
            writer.write_table(pa.Table.from_pylist(rows, schema=GROUPS))
            progress.add(len(rows))
    note = " ".join(_notes(config, pool, filled, short, groups))
    return {
        "groups": groups,
        "queries": min(groups, len(pool.queries)),
        "of": len(pool.queries),
        "by_answer": len(pool.by_answer),
        "filled": filled,
        **({"missing": short} if short else {}),
        **({"note": note} if note else {}),
    }


def _notes(config: MineConfig, pool: "_Pool", filled: int, short: int, groups: int) -> Iterator[str]:
    """Explain how groups differ from what the config requests."""
    wanted, scored = groups * config.negatives, config.given == "scores"
    few = f"{filled:,} of {wanted:,} negatives are random documents, because the"
    if filled and config.given is not None:
        yield f"{few} source provides too few."
    elif 2 * filled > wanted:
        yield f"{few} ranking has too few candidates (`depth`)."
    if short:
        wanted += 0 if scored else groups * config.random
        reason = "source has too few with scores" if scored else "collection has too few documents"
        yield f"{short:,} of {wanted:,} negatives are missing, because the {reason}."
    if pool.left_out:
        which = "1 query has" if pool.left_out == 1 else f"{pool.left_out:,} queries have"
        noun = "negative with a score" if scored else "candidate"
        yield f"{which} no {noun}, and {'is' if pool.left_out == 1 else 'are'} left out."


class _Ranked(NamedTuple):
    """Ranked candidates of one query, best first."""

    documents: np.ndarray
    """Rows of the documents table."""
    scores: np.ndarray
    hits: np.ndarray
    """Marks of the documents that contain an answer. False if the ranking does not say."""
    passed: np.ndarray
    """Marks of the documents that passed the screening. True if there was none."""


class _Pool:
    """The queries of a split with their positives and ranked candidates, from which groups are sampled."""

    def __init__(self, data: Path, tokens: Path, ranking: Path | None, split: str, config: MineConfig) -> None:
        self._config = config
        self._visit_counts = "visit" in inspect.signature(config.draw.resolve()).parameters
        self._document_ids = ids_of(data / "documents.parquet", "doc_id")
        self._query_ids = ids_of(data / "queries.parquet", "query_id")
        self._same = np.load(tokens / "documents.same.npy", mmap_mode="r")
        self._positives, self._no_negatives = positives(data), never_negatives(data, tokens)
        self._teacher: dict[tuple[int, int], float] = {}
        self._ranked = self._read(ranking) if ranking is not None else None
        judged, self._offered = set(self._positives), set[int]()
        if config.given is not None:
            self._ranked = self._given(data)
        splits = read(data / "queries.parquet", QUERIES, columns=["split"])["split"]
        of_split = np.flatnonzero(pc.equal(splits, split).to_numpy(zero_copy_only=False)).tolist()
        wanted = of_split
        if self._ranked is not None:
            wanted = [row for row in wanted if row in self._ranked]
        self.by_answer = self._answering(wanted) if config.positives == "answering" else []
        self.queries = [row for row in wanted if row in self._positives]
        if config.given == "scores":
            self.queries = [row for row in self.queries if len(self._candidates(row, self._taken(row))[0])]
        if config.given is not None:  # queries without candidates are not trained on
            judged &= self._offered
        self.left_out = len(judged.intersection(of_split).difference(self.queries))
        """Number of judged queries that are left out: the ranking has nothing for them or, with a teacher, no candidate
        with a score."""

    def _answering(self, queries: list[int]) -> list[int]:
        """Give each query without a relevant document the first document that contains an answer. Return the queries
        that got one."""
        assert self._ranked is not None
        without = [row for row in queries if row not in self._positives and self._ranked[row].hits.any()]
        for row in without:
            ranked = self._ranked[row]
            self._positives[row] = ranked.documents[[int(ranked.hits.argmax())]]
        return without

    def _read(self, ranking: Path) -> dict[int, _Ranked]:
        """Read the ranking of each query row, to the configured depth and as many rows further as a query may have
        positives.

        A screened ranking is read whole, because removed candidates are among its first rows. Ids become numbers at
        once.
        """
        path = ranking / "ranking.parquet"
        most = max(map(len, self._no_negatives.values()), default=0)
        screened, by_answer = "reason" in pq.read_schema(path).names, self._config.positives == "answering"
        further = [*([ANSWERED.field("hit")] if by_answer else []), *([SCREENED.field("reason")] if screened else [])]
        parts = []
        for table in pieces(path, pa.schema([*RANKING, *further])):
            kept = table if screened else table.filter(pc.less_equal(table["rank"], self._config.depth + most))
            parts.append(
                (
                    rows_of(kept["query_id"], self._query_ids, source=str(ranking)),
                    rows_of(kept["doc_id"], self._document_ids, source=str(ranking)),
                    kept["score"].to_numpy(),
                    kept["hit"].to_numpy() if by_answer else np.zeros(len(kept), bool),
                    pc.equal(kept["reason"], "").to_numpy() if screened else np.ones(len(kept), bool),
                )
            )
        if not parts:
            return {}
        queries, documents, scores, hits, passed = map(np.concatenate, zip(*parts, strict=True))
        starts = row_runs.starts(queries)
        ends = np.r_[starts[1:], len(queries)]
        return {
            int(queries[a]): _Ranked(documents[a:b], scores[a:b], hits[a:b], passed[a:b])
            for a, b in zip(starts, ends, strict=True)
        }

    def _given(self, data: Path) -> dict[int, _Ranked]:
        """Read the candidates that the source provides for each query, best first.

        They are ordered by the teacher's scores if `given` is `scores`, otherwise as in the source. With scores, only
        documents that the teacher has scored are positives. UserError if it has scored nothing.
        """
        path, scored = data / "given.parquet", self._config.given == "scores"
        candidates: dict[int, dict[int, float]] = {}
        for table in pieces(path, GIVEN):
            if scored:
                self._offered |= set(rows_of(table["query_id"], self._query_ids, source=str(path)).tolist())
                table = table.filter(pc.is_valid(table["teacher"]))
            queries = rows_of(table["query_id"], self._query_ids, source=str(path)).tolist()
            lists = table["doc_ids"].combine_chunks()
            documents = rows_of(lists.flatten(), self._document_ids, source=str(path)).tolist()
            teacher = flat(table["teacher"]).tolist() if scored else None
            ends = np.cumsum(lists.value_lengths().to_numpy()).tolist()
            for query, start, end in zip(queries, [0, *ends], ends, strict=False):
                by_document = candidates.setdefault(query, {})
                for position in range(start, end):
                    score = teacher[position] if teacher is not None else -float(len(by_document))
                    by_document.setdefault(documents[position], score)
        if scored:
            self._teacher = {
                (query, document): s for query, by_document in candidates.items() for document, s in by_document.items()
            }
            for query, by_document in candidates.items():
                relevant = self._positives.pop(query, np.empty(0, np.int64))
                if len(kept := relevant[np.isin(relevant, list(by_document))]):
                    self._positives[query] = kept
        ranked = {}
        for query, by_document in candidates.items():
            documents, scores = np.array(list(by_document), np.int64), np.array(list(by_document.values()), np.float32)
            order = np.argsort(-scores, kind="stable")
            none = np.zeros(len(order), bool)
            ranked[query] = _Ranked(documents[order], scores[order], none, ~none)
        return ranked

    def group(self, position: int, visit: int, seed: list[Any]) -> tuple[dict[str, Any], int, int]:
        """Sample a group, and return it as a row of the table.

        Also return the number of its negatives that are random for lack of candidates, and the number that are missing.
        Negatives are missing if the collection has no more, or if only documents with a teacher's score count.
        """
        query = self.queries[position]
        rng = keyed_rng(*seed, "group", self._query_ids[query].as_py(), visit)
        relevant = self._positives[query]
        chosen = [int(relevant[rng.integers(len(relevant))])]
        excluded = self._taken(query)
        missing = 0
        if self._ranked is not None:
            ranked = self._ranked[query]
            documents, scores = self._candidates(query, excluded)
            positive_scores = ranked.scores[self._same[ranked.documents] == self._same[chosen[0]]]
            positive = float(positive_scores[0] if len(positive_scores) else ranked.scores[-1])
            further = {"visit": visit} if self._visit_counts else {}
            drawn = self._config.draw.drawn(scores, self._config.negatives, rng, positive, **further)
            chosen += documents[drawn].tolist()
            excluded |= set(self._same[documents[drawn]].tolist())
            missing = self._config.negatives - len(drawn)
        random = []
        if not self._teacher:  # the teacher scores no random document
            random = self._random(self._config.random + missing, excluded, rng)
            chosen += random
        filled = min(missing, len(random))
        missing += (0 if self._teacher else self._config.random) - len(random)
        targets = [1.0] + [0.0] * (len(chosen) - 1)
        ids = self._document_ids.take(pa.array(chosen)).to_pylist()
        return (
            {
                "query_id": self._query_ids[query].as_py(),
                "visit": visit,
                "doc_ids": ids,
                "targets": targets,
                "teacher": [self._teacher[query, row] for row in chosen] if self._teacher else None,
            },
            filled,
            missing,
        )

    def _taken(self, query: int) -> set[int]:
        """Return the texts that must not become negatives of a query."""
        relevant = self._positives[query]
        return set(self._same[np.union1d(relevant, self._no_negatives.get(query, relevant))].tolist())

    def _candidates(self, query: int, taken: set[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents that a query's negatives are sampled from, best first, and their scores. Texts in
        `taken` are left out."""
        assert self._ranked is not None
        ranked = self._ranked[query]
        keys = self._same[ranked.documents]
        free = np.zeros(len(keys), bool)
        free[np.unique(keys, return_index=True)[1]] = True  # each text once, at its first place
        free &= ranked.passed & ~np.isin(keys, list(taken))
        window = slice(self._config.skip, self._config.depth)
        return ranked.documents[free][window], ranked.scores[free][window]

    def _random(self, count: int, taken: set[int], rng: np.random.Generator) -> list[int]:
        """Sample documents of the whole collection whose texts are not taken yet."""
        rows: list[int] = []
        for _ in range(100 * count):
            if len(rows) == count:
                break
            row = int(rng.integers(len(self._document_ids)))
            if int(self._same[row]) not in taken:
                taken.add(int(self._same[row]))
                rows.append(row)
        return rows
