"""Read a source into the tables of a collection, and check that the tables fit together.

A collection may be larger than memory. Records are read in batches, and only 64-bit hashes of their ids are kept, with
the ids of queries that a sample is drawn from. If two hashes are equal, the table is written again, this time comparing
the ids themselves.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import UserError, listing
from sparring.components.data import own_documents
from sparring.components.data.tables import DOCUMENTS, EXAMPLES, GIVEN, QRELS, QUERIES, TEXT, pieces, read, write
from sparring.components.digests import sha256
from sparring.components.files import remove_leftovers, replacing
from sparring.components.sources.base import AnySource, Source, sought
from sparring.components.sources.forms import other_form
from sparring.components.sources.labelled import LabelledSource
from sparring.components.sources.reading import regular
from sparring.components.sources.records import Bad, Document, Example, Judgement, Query, refused
from sparring.components.sources.splits import Drawn
from sparring.components.sources.training_groups import GivenGroup, GroupSource
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

ROWS, CHARACTERS = 10_000, 32_000_000
"""Maximum number of records, and of characters, in memory at once and in one row group."""
SHOWN = 5
"""Number of dropped records that the summary shows for each reason."""

Record = Document | Query | Judgement | Example | GivenGroup
Clash = Callable[[Any, Any], Bad | None]
"""A function that describes what is wrong with a second record of the same id. It returns None if the two merge."""


@Description(part="data", makes="collection", version=2, in_worker=True)
def ingest(out: Path, machine: Any, *, source: AnySource) -> dict[str, Any]:
    """Write `documents.parquet`, `queries.parquet` and `qrels.parquet`.

    Labelled sentences also give `examples.parquet`, training data `given.parquet`, and queries that are documents
    themselves `own.parquet`.
    """
    remove_leftovers(out)
    _declared(source)
    dropped = Dropped(source.on_bad)
    with Progress(out, total=None, unit="records") as progress:
        drawn = Drawn(source)
        documents = _write(out / "documents.parquet", DOCUMENTS, drawn.documents, _again, dropped, progress)
        if not documents.rows:
            raise UserError(
                f"format {source.format}: no documents" + (" are left" if dropped.counts else ""),
                key="data",
                code="no-documents",
            )

        def read_queries() -> Iterator[Query | Bad]:
            return drawn.of(source.read_queries())

        queries = _write(out / "queries.parquet", QUERIES, read_queries, _asked_again, dropped, progress)

        def fitting() -> Iterator[Judgement | Bad]:
            return _fitting(drawn.of(source.read_qrels()), documents, queries, source)

        qrels = _write(out / "qrels.parquet", QRELS, fitting, _judged_again, dropped, progress)
        self_documents = _own_documents(out, source)
        labels: dict[str, Any] = {}
        if isinstance(source, LabelledSource):
            read = source.read_examples
            examples = _write(out / "examples.parquet", EXAMPLES, read, _labelled_again, dropped, progress)
            labels = {"examples": dict(examples.splits)}
        if isinstance(source, GroupSource):
            groups = source.read_groups

            def offered() -> Iterator[GivenGroup | Bad]:
                return _offered(drawn.of(groups()), documents, queries)

            labels = {"given": _write(out / "given.parquet", GIVEN, offered, _again, dropped, progress).rows}
    return {
        "documents": documents.rows,
        "queries": dict(queries.splits),
        "judgements": dict(qrels.splits - self_documents.judgements),
        "mean_words": {"documents": documents.mean_words(), "queries": queries.mean_words()},
        "dropped": dropped.summary(),
        **_note(
            dropped.note(),
            _partly(documents.rows, drawn.read),
            _trained_on(out / "queries.parquet"),
            self_documents.note,
        ),
        **({"own_documents": self_documents.queries} if self_documents.queries else {}),
        **(
            {"undecided": self_documents.note}
            if self_documents.queries and self_documents.note and source.own_document is None
            else {}
        ),
        **({"of_documents": drawn.read} if documents.rows < drawn.read else {}),
        **labels,
        **source.about(),
    }


class _Own(NamedTuple):
    """Queries that are documents of the collection themselves."""

    queries: int
    judgements: Counter[str]
    """Number of judgements of a query's own document that do not count, by split."""
    note: str
    """Remark for readers of the results."""


def _own_documents(out: Path, source: Source) -> _Own:
    """Write which document each query is, if any. If these documents are left out, drop their judgements too."""

    def rows(name: str, schema: pa.Schema, *columns: str) -> Iterator[Any]:
        for piece in pieces(out / f"{name}.parquet", schema, columns=columns, rows=ROWS):
            yield from zip(*piece.to_pydict().values(), strict=True)

    def relevant() -> Iterator[tuple[str, str]]:
        return (row[:2] for row in rows("qrels", QRELS, "query_id", "doc_id", "relevance") if row[2] > 0)

    decision = source.own_document
    pairs = own_documents.find(
        lambda: rows("queries", QUERIES, "query_id", "text"),
        rows("documents", DOCUMENTS, *DOCUMENTS.names),
        relevant,
        decision,
    )
    own_documents.save(pairs, out, decision)
    queries, total = len({pair.query_id for pair in pairs}), pq.read_metadata(out / "queries.parquet").num_rows
    if decision is None:
        return _Own(queries, Counter(), own_documents.remark(pairs, total))
    if decision == "keep":
        return _Own(queries, Counter(), "")
    judged = {pair.query_id for pair in pairs if pair.judged}
    removed = Counter[str]()
    if judged:
        qrels = read(out / "qrels.parquet", QRELS)
        itself = pc.equal(qrels["query_id"], qrels["doc_id"])
        itself = pc.and_(itself, pc.is_in(qrels["query_id"], value_set=pa.array(judged, TEXT)))
        removed.update(qrels.filter(itself)["split"].to_pylist())
        write(out / "qrels.parquet", qrels.filter(pc.invert(itself)), QRELS)
    beginning = f"own_document: {decision}: "
    if total and not queries:
        return _Own(0, removed, f"{beginning}no query is a document of the collection, so nothing is left out")
    if removed:
        count = "1 judgement" if removed.total() == 1 else f"{removed.total():,} judgements"
        does = "does" if removed.total() == 1 else "do"
        return _Own(queries, removed, f"{beginning}{count} of a query's own document {does} not count")
    return _Own(queries, removed, "")


class Dropped:
    """Bad records. Either the first is an error, or each is dropped and counted by its reason."""

    def __init__(self, on_bad: Literal["fail", "drop"]) -> None:
        self.on_bad = on_bad
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, bad: Bad) -> None:
        """Drop a record, or raise a UserError that names its place."""
        if self.on_bad == "fail":
            raise refused(bad)
        self.counts[bad.reason] += 1
        examples = self.examples.setdefault(bad.reason, [])
        if len(examples) < SHOWN:
            examples.append(bad.id or bad.place)

    def update(self, dropped: "Dropped") -> None:
        """Add the counts of another pass."""
        self.counts += dropped.counts
        for reason, examples in dropped.examples.items():
            self.examples[reason] = [*self.examples.get(reason, []), *examples][:SHOWN]

    def note(self) -> str:
        """Return a remark for readers of the results if records were dropped, otherwise ""."""
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in self.counts.items())
        return f"on_bad: drop left out {self.counts.total():,} records ({reasons})" if reasons else ""

    def summary(self) -> dict[str, Any]:
        """Return counts and a few ids, by reason."""
        return {reason: {"count": n, "examples": self.examples[reason]} for reason, n in self.counts.items()}


def _note(*notes: str) -> dict[str, str]:
    note = "; ".join(filter(None, notes))
    return {"note": note} if note else {}


def _partly(kept: int, read: int) -> str:
    """Describe the share of a collection that is searched. Return "" if it is the whole."""
    if kept >= read:
        return ""
    return (
        f"only_judged keeps {kept:,} of {read:,} documents, those that a judgement names. Measures are higher than "
        "over the whole collection"
    )


def _trained_on(queries: Path) -> str:
    """Count the queries of other splits that have the text of a training query. Return "" if there are none."""
    hashes: dict[str, array[int]] = {}
    with pq.ParquetFile(queries) as file:
        for batch in file.iter_batches(ROWS, columns=["split", "text"]):
            for split, text in zip(*batch.to_pydict().values(), strict=True):
                hashes.setdefault(split, array("q")).append(hash(text))
    train = np.unique(np.array(hashes.pop("train", array("q")), dtype=np.int64))
    counts = {split: int(np.isin(np.array(values), train).sum()) for split, values in hashes.items()}
    parts = [f"{count:,} of the {len(hashes[split]):,} of {split}" for split, count in counts.items() if count]
    return (
        f"queries with the text of a training query, which flatters trained systems: {listing(parts)}" if parts else ""
    )


class Written:
    """Counts of a table that was written, and the hashes of its ids."""

    def __init__(self) -> None:
        self.rows = self.words = 0
        self.splits: Counter[str] = Counter()
        self._hashes = array("q")
        self._codes = array("h")  # codes of the splits, by row
        self._names: list[str] = []

    def add(self, records: list[Record], table: pa.Table) -> None:
        """Count a batch."""
        self.rows += len(records)
        self._hashes.extend(map(_hash, records))
        if "split" in table.column_names:
            splits = table["split"].to_pylist()
            self.splits.update(splits)
            self._names = list(self.splits)  # a Counter keeps the order of first sight
            self._codes.extend(map(self._names.index, splits))
        if "text" in table.column_names:
            self.words += pc.sum(pc.count_substring_regex(table["text"], r"\S+")).as_py()

    def close(self) -> frozenset[int]:
        """Prepare look-ups, and return the hashes that came more than once."""
        hashes = np.array(self._hashes, dtype=np.int64)
        self._hashes = array("q")
        if self._codes:
            order = np.argsort(hashes, kind="stable")
            self._codes_in_order = np.array(self._codes, dtype=np.int16)[order]
            hashes = hashes[order]
        else:
            hashes.sort()
        self._in_order = hashes
        return frozenset(hashes[1:][hashes[1:] == hashes[:-1]].tolist())

    def find(self, ids: Iterable[str]) -> np.ndarray:
        """Return the place of each id in order of hashes, -1 for an id that is missing."""
        sought = np.fromiter(map(hash, ids), dtype=np.int64)
        if not self.rows:
            return np.full(len(sought), -1)
        places = np.minimum(np.searchsorted(self._in_order, sought), self.rows - 1)
        return np.where(self._in_order[places] == sought, places, -1)

    def has(self, name: str) -> bool:
        """Check whether an id is in the table."""
        return bool(self.find([name])[0] >= 0)

    def split(self, place: int) -> str:
        """Return the split of the record at a place that `find` returned."""
        return self._names[self._codes_in_order[place]]

    def mean_words(self) -> float | None:
        """Return the mean number of words per text."""
        return round(self.words / self.rows, 1) if self.rows else None


def _write(
    path: Path,
    schema: pa.Schema,
    read: Callable[[], Iterator[Any]],
    clash: Clash,
    dropped: Dropped,
    progress: Progress,
) -> Written:
    """Write one table with each id once."""
    with replacing(path) as temporary:
        bad = Dropped(dropped.on_bad)
        written = _pass(temporary, schema, _unique(read(), frozenset(), clash, bad), progress)
        repeated = written.close()
        if repeated:
            bad = Dropped(dropped.on_bad)
            written = _pass(temporary, schema, _unique(read(), repeated, clash, bad), progress)
            written.close()
    dropped.update(bad)
    return written


def _pass(path: Path, schema: pa.Schema, records: Iterator[Record], progress: Progress) -> Written:
    """Write records as they come."""
    written = Written()
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for batch in _batches(records):
            columns = zip(*batch, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=False)]
            table = pa.table(arrays, schema=schema)  # without the last column, the places in the source
            file.write_table(table, row_group_size=ROWS)
            written.add(batch, table)
            progress.add(len(batch))
    return written


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    waiting = 0
    for record in records:
        batch.append(record)
        waiting += sum(len(value) for value in record if isinstance(value, str))
        if len(batch) == ROWS or waiting >= CHARACTERS:
            yield batch
            batch, waiting = [], 0
    if batch:
        yield batch


def _unique(
    records: Iterator[Record | Bad], suspects: frozenset[int], clash: Clash, dropped: Dropped
) -> Iterator[Record]:
    """Yield the good records. Of those with a suspect hash each id passes once. Rows of training data have no ids, and
    all pass."""
    first: dict[Any, Record] = {}
    for record in records:
        if isinstance(record, Bad):
            dropped.add(record)
            continue
        if suspects and not isinstance(record, GivenGroup) and _hash(record) in suspects:
            before = first.setdefault(_key(record), record)
            if before is not record:
                bad = clash(before, record)
                if bad is not None:
                    dropped.add(bad)
                continue
        yield record


def _key(record: Record) -> Any:
    """Return the part of a record that must be unique in its table."""
    if isinstance(record, GivenGroup):
        return record.place
    return (record.query_id, record.doc_id) if isinstance(record, Judgement) else record[0]


def _hash(record: Record) -> int:
    # Python's own hash is 64 bits of SipHash and costs nothing; it differs between processes, which nothing here sees.
    return hash(_key(record))


def _again(before: Document, record: Document) -> Bad:
    return Bad("duplicate document id", record.place, f"first at {before.place}", record.doc_id)


def _asked_again(before: Query, record: Query) -> Bad | None:
    if before.split != record.split:
        detail = f"{record.split} here, {before.split} at {before.place}"
        return Bad("query in two splits", record.place, detail, record.query_id)
    if (before.text, before.answers) != (record.text, record.answers):
        field = "text" if before.text != record.text else "answers"
        detail = f"with another {field} at {before.place}" if field == "text" else f"other answers at {before.place}"
        return Bad("duplicate query id", record.place, detail, record.query_id)
    return None


def _judged_again(before: Judgement, record: Judgement) -> Bad | None:
    if before.relevance == record.relevance:
        return None
    detail = f"{record.doc_id!r} has {record.relevance} here, {before.relevance} at {before.place}"
    return Bad("two relevances for one pair", record.place, detail, record.query_id)


def _labelled_again(before: Example, record: Example) -> Bad:
    return Bad("duplicate example id", record.place, f"first at {before.place}", record.example_id)


def _fitting(
    records: Iterator[Judgement | Bad], documents: Written, queries: Written, source: Source
) -> Iterator[Judgement | Bad]:
    """Yield the judgements. A judgement is bad if its query or document is missing, or if its query is of another
    split."""
    strange_queries = strange_documents = True  # all records named so far are missing
    while batch := list(islice(records, ROWS)):
        good = [record for record in batch if isinstance(record, Judgement)]
        all_asked, all_judged = queries.find(r.query_id for r in good), documents.find(r.doc_id for r in good)
        strange_queries &= bool((all_asked < 0).all())
        strange_documents &= bool((all_judged < 0).all())
        why_queries = _strange("query_id", source) if strange_queries and good else ""
        why_documents = _strange("doc_id", source) if strange_documents and good else ""
        rows = iter(zip(all_asked, all_judged, strict=True))
        for record in batch:
            if isinstance(record, Bad):
                yield record
                continue
            query, document = next(rows)
            if query < 0:
                cause = other_form(record.query_id, queries.has) or why_queries
                yield Bad("judgement of a missing query", record.place, cause, record.query_id)
            elif document < 0:
                cause = other_form(record.doc_id, documents.has) or why_documents
                yield Bad("judgement of a missing document", record.place, cause, record.doc_id)
            elif queries.split(query) != record.split:
                detail = f"{record.split} here, {queries.split(query)} before"
                yield Bad("query in two splits", record.place, detail, record.query_id)
            else:
                yield record


def _strange(column: str, source: Source) -> str:
    """Explain a possible cause if judgements name no record of the collection."""
    records: Iterator[Any] = source.read_documents() if column == "doc_id" else source.read_queries()
    first = next((getattr(record, column) for record in records if not isinstance(record, Bad)), None)
    noun = "documents" if column == "doc_id" else "queries"
    called = f"there are no {noun}" if first is None else f"the {noun} are called such as {first!r}"
    key = source.key_of(column)
    question = f"; is `{key}` the right column?" if key else ""
    return f"nor is any other there that a judgement names; {called}{question}"


def _offered(records: Iterator[GivenGroup | Bad], documents: Written, queries: Written) -> Iterator[GivenGroup | Bad]:
    """Yield the rows of training data. A row is bad if its query or a document is missing."""
    for record in records:
        if isinstance(record, Bad):
            yield record
        elif (query := queries.find([record.query_id])[0]) < 0:
            cause = other_form(record.query_id, queries.has)
            yield Bad("group of a missing query", record.place, cause, record.query_id)
        elif queries.split(query) != record.split:
            detail = f"{record.split} here, {queries.split(query)} before"
            yield Bad("query in two splits", record.place, detail, record.query_id)
        elif (places := documents.find(record.doc_ids)).min(initial=0) < 0:
            missing = record.doc_ids[int(places.argmin())]
            yield Bad("group with a missing document", record.place, other_form(missing, documents.has), missing)
        else:
            yield record


def _declared(source: Source) -> None:
    """Check the source's files. UserError if they are missing, or are not those that were declared."""
    missing = source.missing()
    if missing:
        raise UserError(f"format {source.format}: {sought(missing)}", key="data", code="missing-file")
    files = source.files()
    for name, expected in source.sha256.items():
        if name not in files:
            raise UserError(
                f"format {source.format}: sha256 of {name!r}, which is not read; it reads {listing(files)}",
                key="data.sha256",
                code="unread-file",
            )
        if (digest := sha256(regular(files[name]))) != expected:
            raise UserError(
                f"{files[name]}: sha256 is {digest}, but the source declares {expected}", code="other-digest"
            )
