"""Mine groups: queries of a split with their positives, and negatives sampled from a ranking."""

import inspect
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from sparring.components.config import Config, UserError, listing
from sparring.components.data import row_runs
from sparring.components.data.groups import (
    CANDIDATES,
    NO_NUMBERS,
    MappedIds,
    document_rows,
    flat,
    ids_of,
    judged_queries,
    positives,
    query_ids_of,
    rows_of,
)
from sparring.components.data.own_documents import never_negatives
from sparring.components.data.ragged import Ragged
from sparring.components.data.tables import (
    ANSWERED,
    GIVEN,
    GROUPS,
    MINED,
    QUERIES,
    RANKED,
    RANKING,
    SCREENED,
    columns_of,
    notes,
    pieces,
    read,
    write,
    write_part,
)
from sparring.components.evaluation.gate import is_open
from sparring.components.files import made_once, read_json, remove, write_json
from sparring.components.functions import FunctionRef
from sparring.components.rng import keyed_rng
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from sparring.workflows.store.dag import Description

GROUPS_OF_PART, GROUPS_AT_ONCE = 10_000, 5_000
"""Number of groups in a part of the table, and in a part's row group."""
FILE, POOL, IDS = "groups.parquet", ".pool", ".ids"

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
                f"{len(scores) - 1}, the positions of candidates",
                code="wrong-sample",
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
            f"that provides them: {listing(GIVING)}",
            code="no-negatives",
        )
    names = query_ids_of(data, [split])
    if config.given is not None and not _is_given(data / "given.parquet", names, scored=config.given == "scores"):
        missing = "negatives with scores" if config.given == "scores" else "negatives"
        raise UserError(
            f"mine: given: {config.given}: the source provides no query of {split!r} with {missing}; accepted: null",
            code="no-negatives",
        )
    if config.positives == "judged" and not len(judged_queries(data, split, None)):
        raise UserError(f"no query of the split {split!r} has a relevant document", code="no-relevant-document")


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
    workers_read={
        "data": ("documents.parquet",),
        "tokens": ("*",),
        "ranking": ("*",),
        "out": ("groups.parquet/*",),
    },
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
        write(out / FILE, GROUPS.empty_table(), GROUPS)
        return {"groups": 0}
    shards = row_shards(groups, GROUPS_OF_PART, f"{FILE}/{{:08d}}.parquet")
    map_shards(
        _Mining,
        shards,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="groups",
        work=str(out),
        data=data,
        tokens=tokens,
        ranking=ranking,
        split=split,
        seed=seed,
        config=config,
    )
    remove(out, f"{POOL}*", f"{IDS}*")
    count, by_answer, left_out = notes(out / FILE, "pool")[0]
    filled, short = (sum(notes(out / FILE, name)) for name in ("filled", "missing"))
    note = " ".join(_notes(config, left_out, filled, short, groups))
    return {
        "groups": groups,
        "queries": min(groups, count),
        "of": count,
        "by_answer": by_answer,
        "filled": filled,
        **({"missing": short} if short else {}),
        **({"note": note} if note else {}),
    }


def _notes(config: MineConfig, left_out: int, filled: int, short: int, groups: int) -> Iterator[str]:
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
    if left_out:
        which = "1 query has" if left_out == 1 else f"{left_out:,} queries have"
        noun = "negative with a score" if scored else "candidate"
        yield f"{which} no {noun}, and {'is' if left_out == 1 else 'are'} left out."


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
        self._config, self._data = config, data
        self._query_ids = ids_of(data / "queries.parquet", "query_id")
        self._same = np.load(tokens / "documents.same.npy", mmap_mode="r")
        self.positives, self._no_negatives = positives(data), never_negatives(data, tokens)
        self.taught = False
        """True if a teacher's scores are among the source's candidates."""
        self.ranked = self._read(ranking) if ranking is not None else None
        judged, self._offered = set(self.positives), set[int]()
        if config.given is not None:
            self.ranked = self._given(data)
        splits = read(data / "queries.parquet", QUERIES, columns=["split"])["split"]
        of_split = np.flatnonzero(pc.equal(splits, split).to_numpy(zero_copy_only=False)).tolist()
        wanted = of_split
        if self.ranked is not None:
            wanted = [row for row in wanted if row in self.ranked]
        self.by_answer = self._answering(wanted) if config.positives == "answering" else []
        self.queries = [row for row in wanted if row in self.positives]
        if config.given == "scores":
            ranked, same = self.ranked or {}, self._same
            self.queries = [
                row
                for row in self.queries
                if len(_candidates(ranked[row], same, set(same[self.barred(row)].tolist()), config)[0])
            ]
        if config.given is not None:  # queries without candidates are not trained on
            judged &= self._offered
        self.left_out = len(judged.intersection(of_split).difference(self.queries))
        """Number of judged queries that are left out: the ranking has nothing for them or, with a teacher, no candidate
        with a score."""

    def barred(self, query: int) -> np.ndarray:
        """Return the documents that must not become negatives of a query."""
        relevant = self.positives[query]
        return np.union1d(relevant, self._no_negatives.get(query, relevant))

    def save(self, folder: Path) -> None:
        """Write all that groups are sampled from, for `_Mining`."""
        folder.mkdir()
        np.save(folder / "queries.npy", np.array(self.queries, np.int64))
        write_json(folder / "facts.json", [len(self.queries), len(self.by_answer), self.left_out, self.taught])
        _ragged((self.positives[query],) for query in self.queries).save(folder / "positives")
        _ragged((self.barred(query),) for query in self.queries).save(folder / "barred")
        if (ranked := self.ranked) is not None:
            _ragged(ranked[query] for query in self.queries).save(folder / "ranked")

    def _answering(self, queries: list[int]) -> list[int]:
        """Give each query without a relevant document the first document that contains an answer. Return the queries
        that got one."""
        assert self.ranked is not None
        without = [row for row in queries if row not in self.positives and self.ranked[row].hits.any()]
        for row in without:
            ranked = self.ranked[row]
            self.positives[row] = ranked.documents[[int(ranked.hits.argmax())]]
        return without

    def _read(self, ranking: Path) -> dict[int, _Ranked]:
        """Read the ranking of each query row, to the configured depth and as many rows further as a query may have
        positives.

        A screened ranking is read whole, because removed candidates are among its first rows. Ids become numbers at
        once.
        """
        path = ranking / "ranking.parquet"
        most = max(map(len, self._no_negatives.values()), default=0)
        columns = columns_of(path)
        screened, by_answer = "reason" in columns, self._config.positives == "answering"
        further = [*([ANSWERED.field("hit")] if by_answer else []), *([SCREENED.field("reason")] if screened else [])]
        located = "doc_row" in columns
        further += [RANKED.field("doc_row")] if located else []
        parts = []
        for table in _gathered(
            (
                table if screened else table.filter(pc.less_equal(table["rank"], self._config.depth + most))
                for table in pieces(path, pa.schema([*RANKING, *further]))
            ),
            CANDIDATES,
        ):
            parts.append(
                (
                    rows_of(table["query_id"], self._query_ids, source=str(ranking)),
                    table["doc_row"].to_numpy()
                    if located
                    else document_rows(table["doc_id"], self._data, source=str(ranking)),
                    table["score"].to_numpy(),
                    table["hit"].to_numpy() if by_answer else np.zeros(len(table), bool),
                    pc.equal(table["reason"], "").to_numpy() if screened else np.ones(len(table), bool),
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
            documents = document_rows(lists.flatten(), data, source=str(path)).tolist()
            teacher = flat(table["teacher"]).tolist() if scored else None
            ends = np.cumsum(lists.value_lengths().to_numpy()).tolist()
            for query, start, end in zip(queries, [0, *ends], ends, strict=False):
                by_document = candidates.setdefault(query, {})
                for position in range(start, end):
                    score = teacher[position] if teacher is not None else -float(len(by_document))
                    by_document.setdefault(documents[position], score)
        if scored:
            self.taught = bool(candidates)
            for query, by_document in candidates.items():
                relevant = self.positives.pop(query, np.empty(0, np.int64))
                if len(kept := relevant[np.isin(relevant, list(by_document))]):
                    self.positives[query] = kept
        ranked = {}
        for query, by_document in candidates.items():
            documents, scores = np.array(list(by_document), np.int64), np.array(list(by_document.values()), np.float32)
            order = np.argsort(-scores, kind="stable")
            none = np.zeros(len(order), bool)
            ranked[query] = _Ranked(documents[order], scores[order], none, ~none)
        return ranked


def _ragged(rows: Iterable[tuple[np.ndarray, ...]]) -> Ragged:
    """Join rows of one or more arrays each. The first array tells a row's length."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return Ragged(np.r_[0, np.cumsum(list(map(len, columns[0])))], tuple(map(np.concatenate, columns)))


def _gathered(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Join tables until they have `rows` rows. Each lookup of ids reads all ids of the collection."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= rows:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _candidates(
    ranked: _Ranked, same: np.ndarray, taken: set[int], config: MineConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents that a query's negatives are sampled from, best first, and their scores. Texts in `taken`
    are left out."""
    keys = same[ranked.documents]
    free = np.zeros(len(keys), bool)
    free[np.unique(keys, return_index=True)[1]] = True  # each text once, at its first place
    free &= ranked.passed & ~np.isin(keys, list(taken))
    window = slice(config.skip, config.depth)
    return ranked.documents[free][window], ranked.scores[free][window]


def _write_pool(data: Path, tokens: Path, ranking: Path | None, split: str, config: MineConfig, folder: Path) -> None:
    """Write the pool that groups are sampled from. UserError if no query can be trained on."""
    pool = _Pool(data, tokens, ranking, split, config)
    if not pool.queries:
        raise UserError(
            f"no query of the split {split!r} has a relevant document"
            + (" and a ranking" if ranking else "")
            + (f" and candidates for `given: {config.given}`" if config.given is not None else "")
            + ". Check that judgements and queries have the same ids."
        )
    pool.save(folder)


class _Mining:
    """A worker that samples groups. The first worker on a node reads the ranking for all."""

    on_demand: ClassVar = {
        "work": ("*",),
        "data": ("documents.parquet",),
        "tokens": ("*.ids.npy", "*.offsets.npy"),
    }

    def __init__(
        self,
        *,
        threads: int,
        work: str,
        data: Path,
        tokens: Path,
        ranking: Path | None,
        split: str,
        seed: list[Any],
        config: MineConfig,
    ) -> None:
        pool = Path(work) / POOL
        made_once(pool, partial(_write_pool, data, tokens, ranking, split, config))
        self._config, self._seed = config, seed
        self._visit_counts = "visit" in inspect.signature(config.draw.resolve()).parameters
        self._document_ids = MappedIds(data, Path(work) / IDS).ids
        self._query_ids = ids_of(data / "queries.parquet", "query_id")
        self._same = np.load(tokens / "documents.same.npy", mmap_mode="r").view(np.ndarray)
        *self._facts, self._taught = read_json(pool / "facts.json")
        self._queries = np.load(pool / "queries.npy")
        self._positives, self._barred = (Ragged.open(pool / name) for name in ("positives", "barred"))
        self._ranked = Ragged.open(pool / "ranked") if (pool / "ranked").exists() else None
        self._orders: dict[int, np.ndarray] = {}

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write a part of the groups."""
        noted = {"pool": self._facts, "filled": 0, "missing": 0}
        write_part(path, self._tables(task["start"], task["stop"], noted), MINED, noted)

    def _tables(self, start: int, stop: int, noted: dict[str, Any]) -> Iterator[pa.Table]:
        """Sample the groups from `start` up to, but without, `stop`. Count what is random for lack of candidates, and
        what is missing."""
        for first in range(start, stop, GROUPS_AT_ONCE):
            groups = []
            for number in range(first, min(first + GROUPS_AT_ONCE, stop)):
                visit, place = divmod(number, len(self._queries))
                group, filled, missing = self._group(int(self._order(visit)[place]), visit)
                noted["filled"] += filled
                noted["missing"] += missing
                groups.append(group)
            yield self._table(groups)

    def _order(self, visit: int) -> np.ndarray:
        """Return the order of the queries in one pass over them."""
        if visit not in self._orders:
            order = keyed_rng(*self._seed, "order", visit).permutation(len(self._queries))
            self._orders = {visit: order}  # passes follow one another
        return self._orders[visit]

    def _table(self, groups: list["_Group"]) -> pa.Table:
        candidates = _ragged((group.documents, group.teacher) for group in groups)
        documents, teacher_scores = candidates.values
        offsets = pa.array(candidates.offsets)
        targets = np.zeros(len(documents), np.float32)
        targets[candidates.offsets[:-1]] = 1.0
        teacher = pa.nulls(len(groups), MINED.field("teacher").type)
        if self._taught:
            teacher = pa.LargeListArray.from_arrays(offsets, pa.array(teacher_scores, pa.float32()))
        columns = [
            self._query_ids.take(pa.array([group.query for group in groups])),
            pa.array([group.visit for group in groups], pa.int32()),
            pa.LargeListArray.from_arrays(offsets, self._document_ids.take(pa.array(documents))),
            pa.LargeListArray.from_arrays(offsets, pa.array(targets)),
            teacher,
            pa.LargeListArray.from_arrays(offsets, pa.array(documents)),
        ]
        return pa.table(columns, schema=MINED)

    def _group(self, position: int, visit: int) -> tuple["_Group", int, int]:
        """Sample a group.

        Also return the number of its negatives that are random for lack of candidates, and the number that are missing.
        Negatives are missing if the collection has no more, or if only documents with a teacher's score count.
        """
        query, same, config = int(self._queries[position]), self._same, self._config
        rng = keyed_rng(*self._seed, "group", self._query_ids[query].as_py(), visit)
        relevant = self._positives.row(position)[0]
        chosen = [int(relevant[rng.integers(len(relevant))])]
        excluded, missing = set(same[self._barred.row(position)[0]].tolist()), 0
        ranked = None
        if self._ranked is not None:
            ranked = _Ranked(*self._ranked.row(position))
            documents, scores = _candidates(ranked, same, excluded, config)
            positive_scores = ranked.scores[same[ranked.documents] == same[chosen[0]]]
            positive = float(positive_scores[0] if len(positive_scores) else ranked.scores[-1])
            further = {"visit": visit} if self._visit_counts else {}
            drawn = config.draw.drawn(scores, config.negatives, rng, positive, **further)
            chosen += documents[drawn].tolist()
            excluded |= set(same[documents[drawn]].tolist())
            missing = config.negatives - len(drawn)
        random = []
        if not self._taught:  # the teacher scores no random document
            random = self._random(config.random + missing, excluded, rng)
            chosen += random
        filled = min(missing, len(random))
        missing += (0 if self._taught else config.random) - len(random)
        teacher = NO_NUMBERS
        if self._taught and ranked is not None:
            by_document = dict(zip(ranked.documents.tolist(), ranked.scores.tolist(), strict=True))
            teacher = np.array([by_document[row] for row in chosen], np.float32)
        return _Group(query, visit, np.array(chosen, np.int64), teacher), filled, missing

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


class _Group(NamedTuple):
    """A sampled group, its positive first."""

    query: int
    visit: int
    documents: np.ndarray
    teacher: np.ndarray
    """A teacher's scores of the documents, or nothing."""
