"""Inputs of a query reranker (Chuang et al., 2023, section 3.4.2).

Retrieval-independent (RI): `[CLS] question ? expansion [SEP]`. Retrieval-dependent (RD): `[CLS] question ? expansion
[SEP] passage [SEP]`, where the passage is the first that the expanded query retrieves, with its title before it as for
every other model.

The public code has other templates: `[CLS] question [SEP] expansion [SEP]`, and for RD `[CLS] question [SEP] expansion
[SEP] title [SEP] passage [SEP]`, all in one segment and cut at the end.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data.batches import Batch
from sparring.components.data.tables import DOCUMENTS, TEXT, check
from sparring.components.data.template import Template
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokens import Tokens

TOP = "top.npy"
"""In an artifact of candidates: the row of the passage of each expanded query."""
PARTS = "parts.npy"
"""In an artifact of candidates: the rows of the parts of each expanded query, in the public code's template."""


class Passages(NamedTuple):
    """The passages that expanded queries retrieve first."""

    documents: pa.Table
    """Each passage once."""
    rows: np.ndarray
    """(N,) row of each expanded query's passage. The number of passages if the query retrieved nothing."""


class Candidates(NamedTuple):
    """Texts that a query reranker reads."""

    documents: pa.Table
    """Expanded queries, followed by the other texts. A reranker reads title and text of each."""
    top: np.ndarray | None = None
    """(N,) row of the passage of each expanded query, if the reranker reads passages."""
    parts: np.ndarray | None = None
    """(N, P) rows of the parts of each expanded query, in the public code's template."""


def candidates(names: pa.ChunkedArray, texts: pa.ChunkedArray, passages: Passages | None) -> Candidates:
    """Lay out expanded queries, by their ids and texts, as the paper's template reads them.

    The expanded queries are followed by the passages, each once, and by an empty one for queries that retrieved
    nothing.
    """
    table = pa.table([names, pa.array([""] * len(names), TEXT), texts], names=DOCUMENTS.names)
    tables = [check(table, DOCUMENTS, source="expanded queries")]
    if passages is None:
        return Candidates(tables[0])
    empty = pa.table({"doc_id": ["#"], "title": [""], "text": [""]}, schema=DOCUMENTS)
    return Candidates(pa.concat_tables([*tables, passages.documents, empty]), top=passages.rows + len(names))


def candidates_released(expansions: pa.Table, queries: pa.Table, passages: Passages | None) -> Candidates:
    """Lay out expansions as the public code's template reads them: question, expansion, title and passage are separate
    texts. `queries` has `query_id` and `text`."""
    queries = queries.filter(pc.is_in(queries["query_id"], value_set=pc.unique(expansions["query_id"])))
    questions = [text.rstrip(" ?") for text in queries["text"].to_pylist()]
    texts = [expansions["text"].to_pylist(), questions]
    names = [expansions["doc_id"].to_pylist(), [f"question {name}" for name in queries["query_id"].to_pylist()]]
    places = pc.index_in(expansions["query_id"], value_set=queries["query_id"].combine_chunks()).to_numpy()
    parts = [len(expansions) + places, np.arange(len(expansions))]
    if passages is not None:
        for field in ("title", "text"):
            parts.append(sum(map(len, texts)) + passages.rows)
            texts.append([*passages.documents[field].to_pylist(), ""])
            names.append([f"{field} {name}" for name in [*passages.documents["doc_id"].to_pylist(), "#"]])
    columns = [list(chain(*names)), [""] * sum(map(len, texts)), list(chain(*texts))]
    return Candidates(pa.table(columns, schema=DOCUMENTS), parts=np.stack(parts, 1).astype(np.int64))


class RerankerInputs:
    """Expanded queries as a query reranker reads them, by their rows.

    With rows of parts the public code's template is used, with rows of passages the retrieval-dependent one, otherwise
    the retrieval-independent one.
    """

    def __init__(
        self,
        template: Template,
        documents: Tokens,
        limit: int,
        *,
        top: np.ndarray | None = None,
        parts: np.ndarray | None = None,
    ) -> None:
        """`documents`, `top` and `parts` are those of `Candidates`."""
        self._template, self._documents, self._limit = template, documents, limit
        self._top, self._parts = top, parts

    @classmethod
    def stored(cls, data: Path, tokens: TokenStore, limit: int) -> Self:
        """Read an artifact of candidates."""
        top, parts = (np.load(data / name, mmap_mode="r") if (data / name).exists() else None for name in (TOP, PARTS))
        return cls(tokens.template, tokens.documents, limit, top=top, parts=parts)

    def batch(self, rows: np.ndarray) -> Batch:
        """Return a batch of expanded queries, each cut to the limit."""
        template, documents = self._template, self._documents
        if self._parts is not None:
            return template.sequences(documents, np.asarray(self._parts[rows]), self._limit)
        if self._top is None:
            return template.texts(documents, rows, self._limit)
        return template.pairs(documents, documents, self._pairs(rows), self._limit)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the lengths (N,) of the rows of `batch`."""
        template, documents = self._template, self._documents
        if self._parts is not None:
            return template.sequence_lengths(documents, np.asarray(self._parts[rows]), self._limit)
        if self._top is None:
            return template.lengths(documents, rows, self._limit)
        return template.pair_lengths(documents, documents, self._pairs(rows), self._limit)

    def _pairs(self, rows: np.ndarray) -> np.ndarray:
        assert self._top is not None
        return np.stack([rows, self._top[rows]], 1)
