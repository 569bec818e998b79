"""Training data of sentence-transformers: a table of queries, positives and negatives.

The first text column is the query. The next are a positive and negatives. There may be a column of labels or scores.
The trainers of sentence-transformers use the order of columns, not their names, except for `label`, `labels`, `score`
and `scores` (`sentence_transformers/base/data_collator.py`). All formats of `mine_hard_negatives` are read: triplets
and n-tuples, with `scores` (the positive's first) or without, labelled pairs, and labelled lists.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
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
"""Expected positions among the text columns of columns with these names."""
ROWS = 10_000
"""Number of rows in memory at once when a table is written."""


class Source(training_groups.GroupSource):
    """The keys of `format: sentence_transformers`."""

    columns: list[str] = []
    """Columns with texts, in the order query, positive, negatives. If empty, all columns except labels, in the table's
    order."""
    labels: Literal["relevance", "teacher"] | None = None
    """Meaning of the labels: `relevance`, or the scores of a `teacher`. `null`: by the column's name. `label` and
    `labels` are relevance. `score` and `scores` are a teacher's scores."""
    positive: float = 1.0
    """Minimum label of a relevant text. It applies to relevance labels, and to tables of pairs. In all other tables
    with a teacher's scores, the first text after the query is the positive."""

    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """Return a pair, a triplet, an n-tuple, or a list."""
        labelled = next((name for name in LABELS if name in row), None)
        columns = self.columns or [name for name in row if name not in (*LABELS, *NO_TEXT)]
        if len(columns) < 2 or any(name not in row for name in columns):
            expected = listing(self.columns or ["two columns of text"])
            return Bad("wrong columns", place, f"expected {expected}, but it has {', '.join(row)}")
        if not self.columns and (reason := _misplaced(columns)):
            hint = "Name the text columns in `columns`, in the order query, positive, negatives"
            return Bad("wrong columns", place, f"{reason}. {hint}")
        query, *cells = (row[name] for name in columns)
        pair = len(cells) == 1 and not isinstance(cells[0], list)
        if len(cells) > 1 and cells[0] is None:
            return Bad("wrong columns", place, f"the positive, {columns[1]!r}, is null")
        texts = cells[0] if len(cells) == 1 and not pair else cells
        texts = [text for text in texts if text is not None]  # n-tuples in a table may have different lengths
        if not texts:
            return Bad("wrong columns", place, "a query without a text after it")
        targets = [1.0] + [0.0] * (len(texts) - 1)
        label = row[labelled] if labelled is not None else None
        if label is None:
            return without_ids(query, texts, targets, None, split, place)
        values = scores(label if isinstance(label, list) else [label], place)
        if isinstance(values, Bad):
            return values
        if len(values) != len(texts):
            detail = (
                f"got {len(values)} in {labelled!r} for {len(texts)} texts, expected one for each text after the query"
            )
            return Bad("labels that do not fit", place, detail)
        taught = self.labels == "teacher" or (self.labels is None and str(labelled).startswith("score"))
        if not taught or (pair and not isinstance(label, list)):
            targets = [float(value >= self.positive) for value in values]
        return without_ids(query, texts, targets, values if taught else None, split, place)


def _misplaced(columns: list[str]) -> str:
    """Return a reason why the order of columns cannot be trusted. Return "" if there is none."""
    for number, name in enumerate(columns):
        if name == "id" or name.endswith("_id"):
            return f"{name!r} is a column of ids, not of texts"
        if PLACES.get(name, min(number, 2)) != min(number, 2):
            return f"{name!r} is column {number + 1} of the texts"
    return ""


def write_groups(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write n-tuples as Parquet, a row per positive.

    Columns are `anchor`, `positive`, `negative_1` ..., and `scores` if there is a teacher. Raise UserError if groups
    have different numbers of negatives.
    """
    path = folder / f"{name}.parquet"
    with replacing(path) as temporary, ExitStack() as stack:
        writer, rows = None, (row for record in records for row in _tuples(record))
        while (batch := list(islice(rows, ROWS))) or writer is None:
            if writer is None:
                names = list(batch[0]) if batch else ["anchor", "positive"]
                types = [pa.list_(pa.float32()) if name == "scores" else pa.large_string() for name in names]
                schema = pa.schema(list(zip(names, types, strict=True)))
                writer = stack.enter_context(pq.ParquetWriter(temporary, schema))
            if unlike := next((row for row in batch if list(row) != names), None):
                raise UserError(
                    f"The groups differ in their numbers of negatives, or only some have scores: columns "
                    f"{', '.join(names)} and {', '.join(unlike)}. A table of sentence-transformers needs the same "
                    "columns for all."
                )
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return path


def _tuples(record: Given) -> Iterator[dict[str, Any]]:
    texts, teacher, (positives, negatives) = passages(record), record.teacher, divided(record)
    for positive in positives:
        row = {"anchor": record.query, "positive": texts[positive]}
        row |= {f"negative_{number}": texts[place] for number, place in enumerate(negatives, 1)}
        yield row | ({"scores": [teacher[place] for place in (positive, *negatives)]} if teacher is not None else {})
