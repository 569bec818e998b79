"""Training data of sentence-transformers: a table whose first text column is the query and whose next ones are a
positive and negatives; perhaps a column of labels or scores.

Its trainers go by the order of columns, not by their names, but for `label`, `labels`, `score` and `scores`
(`sentence_transformers/base/data_collator.py`). `mine_hard_negatives` writes what is read here: triplets and n-tuples,
with `scores` (the positive's first) or without, labelled pairs, and labelled lists.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.config import UserError, listing
from sparring.components.files import replacing
from sparring.components.sources import training_groups
from sparring.components.sources.records import Bad
from sparring.components.sources.training_groups import Given, divided, passages, scores, without_ids

LABELS = ("label", "labels", "score", "scores")
NO_TEXT = ("dataset_name",)
PLACES = {"anchor": 0, "query": 0, "question": 0, "positive": 1, "negative": 2}
"""Where a column of this name stands."""
ROWS = 10_000
"""Rows in memory at once when a table is written."""


class Source(training_groups.GroupSource):
    """The keys of `format: sentence_transformers`."""

    columns: list[str] = []
    """The columns with texts: the query's, the positive's, the negatives'. Empty for all but labels, in the table's
    order."""
    labels: Literal["relevance", "teacher"] | None = None
    """What the labels are: `relevance`, or a `teacher`'s scores. Null goes by the column's name: `label` and `labels`
    are relevance, `score` and `scores` a teacher's."""
    positive: float = 1.0
    """The least label of a relevant text. It counts for relevance, and for tables of pairs: in others with scores of a
    teacher the first text after the query is the positive."""

    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """A pair, a triplet, an n-tuple, or a list."""
        named = next((name for name in LABELS if name in row), None)
        columns = self.columns or [name for name in row if name not in (*LABELS, *NO_TEXT)]
        if len(columns) < 2 or any(name not in row for name in columns):
            return Bad(
                "wrong columns",
                place,
                f"expected {listing(self.columns or ['two columns of text'])}; it has {', '.join(row)}",
            )
        if not self.columns and (why := _misplaced(columns)):
            detail = (
                f"{why}; `columns` names those with texts in their order: the query's, the positive's, the negatives'"
            )
            return Bad("wrong columns", place, detail)
        asked, *others = (row[name] for name in columns)
        pair = len(others) == 1 and not isinstance(others[0], list)
        texts = others[0] if len(others) == 1 and not pair else others
        if len(others) > 1 and others[0] is None:
            return Bad("wrong columns", place, f"{columns[1]!r}, the positive, is null")
        texts = [text for text in texts if text is not None]  # n-tuples of several lengths in one table
        if not texts:
            return Bad("wrong columns", place, "a query without a text after it")
        label = row[named] if named is not None else None
        if label is None:
            return without_ids(asked, texts, [1.0] + [0.0] * (len(texts) - 1), None, split, place)
        values = scores(label if isinstance(label, list) else [label], place)
        if isinstance(values, Bad):
            return values
        if len(values) != len(texts):
            detail = f"{len(values)} in {named!r} for {len(texts)} texts; accepted: one for each text after the query"
            return Bad("labels that do not fit", place, detail)
        taught = self.labels == "teacher" or (self.labels is None and str(named).startswith("score"))
        targets = [1.0] + [0.0] * (len(texts) - 1)
        if not taught or (pair and not isinstance(label, list)):
            targets = [float(value >= self.positive) for value in values]
        return without_ids(asked, texts, targets, values if taught else None, split, place)


def _misplaced(columns: list[str]) -> str:
    """What speaks against taking columns by their order; empty where nothing does."""
    for at, name in enumerate(columns):
        if name == "id" or name.endswith("_id"):
            return f"{name!r} has no texts, but ids"
        if PLACES.get(name, min(at, 2)) != min(at, 2):
            return f"{name!r} is column {at + 1} of the texts"
    return ""


def write_groups(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write n-tuples as Parquet, a row a positive: `anchor`, `positive`, `negative_1` ..., and `scores` where there is
    a teacher. UserError where groups have different numbers of negatives."""
    path = folder / f"{name}.parquet"
    with replacing(path) as temporary:
        writer, rows = None, []
        for record in records:
            rows += _tuples(record)
            if len(rows) >= ROWS:
                writer = _written(writer, temporary, rows)
                rows = []
        writer = _written(writer, temporary, rows)
        writer.close()
    return path


def _tuples(record: Given) -> list[dict[str, Any]]:
    texts, teacher, (positives, negatives) = passages(record), record.teacher, divided(record)
    return [
        {
            "anchor": record.query,
            "positive": texts[positive],
            **{f"negative_{number}": texts[at] for number, at in enumerate(negatives, 1)},
            **({"scores": [teacher[at] for at in (positive, *negatives)]} if teacher is not None else {}),
        }
        for positive in positives
    ]


def _written(writer: Any, path: Path, rows: list[dict[str, Any]]) -> Any:
    """Write some rows; the writer, which the first rows open."""
    names = list(rows[0]) if writer is None and rows else (writer.schema.names if writer else ["anchor", "positive"])
    types = [pa.list_(pa.float32()) if name == "scores" else pa.large_string() for name in names]
    schema = pa.schema(list(zip(names, types, strict=True)))
    for row in rows:
        if list(row) != names:
            raise UserError(
                f"groups with different numbers of negatives, or scores of some alone: columns {', '.join(names)} and "
                f"{', '.join(row)}; accepted in a table of sentence-transformers: the same for all"
            )
    writer = writer or pq.ParquetWriter(path, schema)
    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return writer
