"""Base of formats for training data of other projects: queries with positives, mined negatives, and maybe scores.

The scores are a teacher's. Such a file is a collection too: its passages are the documents, and its positives are the
judgements. The candidates of each query are stored next to the tables in `given.parquet`. `mine` can make groups of
them (`mine: {given: negatives}` or `mine: {given: scores}`). A record is a line of such a file.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from sparring.components.data.tables import document_text
from sparring.components.sources import base
from sparring.components.sources.reading import matching, named
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, judgement, query
from sparring.components.sources.table_files import files_of, read_table
from sparring.components.sources.trec import LARGEST


class Given(NamedTuple):
    """A query with its candidates."""

    query_id: Any
    query: Any
    doc_ids: list[Any]
    documents: list[Document | Bad]
    """Texts of the candidates. Empty if they are in a separate corpus."""
    targets: list[float]
    """Targets of the candidates: 1 for a positive, 0 for a negative."""
    teacher: list[float] | None
    split: str
    place: str


class GivenGroup(NamedTuple):
    """A row of `given.parquet` (`components.data.tables.GIVEN`)."""

    query_id: str
    doc_ids: list[str]
    targets: list[float]
    teacher: list[float] | None
    split: str
    place: str


class GroupSource(base.Source):
    """The keys that formats of training data share."""

    path: str
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    groups: dict[str, str | Annotated[list[str], Field(min_length=1)]] = Field(min_length=1)
    """File of each split, or a list of files. For example `{train: train.jsonl}`. Files are JSON lines or a JSON array,
    plain or .gz, Parquet, or a folder that `save_to_disk` wrote. A pattern such as `train-*.parquet` or `*/*.jsonl`
    names several files."""

    def files(self) -> dict[str, Path]:
        """Return the files of every split."""
        return self._files(*(pattern for _, pattern in self._patterns()))

    def _patterns(self) -> Iterator[tuple[str, str]]:
        """Yield each split with the names of its files."""
        for split, files in self.groups.items():
            for pattern in [files] if isinstance(files, str) else files:
                yield split, pattern

    def _files(self, *patterns: str) -> dict[str, Path]:
        folder = base.locate(self.path)
        tables = [table for pattern in patterns for table in matching(folder, pattern)]
        return named(folder, (path for table in tables for path in files_of(table)))

    @abstractmethod
    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """Return the query and candidates of a row."""

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield each passage once. Two numbers per passage are kept in memory. Only this method reports bad rows."""
        contents: dict[int, int] = {}
        for record in self._read():
            if isinstance(record, Bad):
                yield record
                continue
            for passage in record.documents:
                if isinstance(passage, Bad):
                    yield passage
                    continue
                key, content = hash(self.id_in_form(passage.doc_id)), hash((passage.title, passage.text))
                if key not in contents:
                    contents[key] = content
                    yield passage
                elif contents[key] != content:
                    yield Bad("duplicate document id", passage.place, "its text was different before", passage.doc_id)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the query of each row."""
        for record in self._good():
            yield query(record.query_id, record.query, None, record.split, record.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the positives of each row."""
        for record in self._good():
            for doc_id, target in zip(record.doc_ids, record.targets, strict=True):
                if target > 0:
                    yield judgement(record.query_id, doc_id, 1, record.split, record.place)

    def read_groups(self) -> Iterator[GivenGroup]:
        """Yield the candidates of each row."""
        for record in self._good():
            ids = [str(doc_id) for doc_id in record.doc_ids]
            yield GivenGroup(str(record.query_id), ids, record.targets, record.teacher, record.split, record.place)

    def _good(self) -> Iterator[Given]:
        return (record for record in self._read() if isinstance(record, Given))

    def _read(self) -> Iterator[Given | Bad]:
        for split, pattern in self._patterns():
            for table in matching(base.locate(self.path), pattern):
                for row in read_table(table):
                    yield row if isinstance(row, Bad) else self.given(row.value, split, row.place)


def without_ids(
    query_text: Any, texts: list[Any], targets: list[float], teacher: list[float] | None, split: str, place: str
) -> Given | Bad:
    """Make a record for a format that has texts, but no ids. The id of a text is its digest."""
    if not isinstance(query_text, str) or not all(isinstance(text, str) for text in texts):
        return Bad("wrong columns", place, "queries and passages must be text")
    documents = [document(text_id(text), None, text, place) for text in texts]
    ids = [text_id(text) for text in texts]
    return Given(text_id(query_text), query_text, ids, documents, targets, teacher, split, place)


def text_id(text: str) -> str:
    """Compute a digest of a text as its id."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:20]


def scores(values: Iterable[Any], place: str) -> list[float] | Bad:
    """Check a teacher's scores, which must be finite numbers, and convert them to floats."""
    numbers: list[float] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
            return Bad("score that is not a number", place, f"got {value!r:.40}, expected less than {LARGEST}")
        numbers.append(float(value))
    return numbers


def divided(record: Given) -> tuple[list[int], list[int]]:
    """Return the positions of a record's positives and negatives."""
    positives = [place for place, target in enumerate(record.targets) if target > 0]
    return positives, [place for place, target in enumerate(record.targets) if target <= 0]


def passages(record: Given) -> list[str]:
    """Return the candidates' texts in the form that models read: title and text joined."""
    return [document_text(passage.title, passage.text) for passage in record.documents if isinstance(passage, Document)]
