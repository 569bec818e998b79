"""What a query reranker reads (Chuang et al., 2023, section 3.4.2).

Retrieval-independent (RI): `[CLS] question ? expansion [SEP]`. Retrieval-dependent (RD): `[CLS] question ? expansion
[SEP] passage [SEP]`, where the passage is the first that the expanded query retrieves, with its title before it as for
every other model.

The public code has other templates: `[CLS] question [SEP] expansion [SEP]`, and for RD `[CLS] question [SEP] expansion
[SEP] title [SEP] passage [SEP]`, all in one segment and cut at the end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparring.components.data.batches import Batch
from sparring.components.data.token_store import TokenStore

TOP = "top.npy"
"""In an artifact of candidates: the row of the passage of each expanded query."""
PARTS = "parts.npy"
"""In an artifact of candidates: the rows of the parts of each expanded query, in the public code's template."""


class RerankerInputs:
    """Expanded queries as a query reranker reads them, by their rows in an artifact of candidates.

    The artifact's documents are expanded queries, followed by passages. With a file `parts.npy` the public code's
    template is used, with `top.npy` the retrieval-dependent one, otherwise the retrieval-independent one.
    """

    def __init__(self, data: Path, tokens: TokenStore, limit: int) -> None:
        self._tokens, self._limit = tokens, limit
        self._top = np.load(data / TOP, mmap_mode="r") if (data / TOP).exists() else None
        self._parts = np.load(data / PARTS, mmap_mode="r") if (data / PARTS).exists() else None

    def batch(self, rows: np.ndarray) -> Batch:
        """Return a batch of expanded queries, each cut to the limit."""
        template, documents = self._tokens.template, self._tokens.documents
        if self._parts is not None:
            return template.sequences(documents, np.asarray(self._parts[rows]), self._limit)
        if self._top is None:
            return template.texts(documents, rows, self._limit)
        return template.pairs(documents, documents, self._pairs(rows), self._limit)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the lengths (N,) of the rows of `batch`."""
        template, documents = self._tokens.template, self._tokens.documents
        if self._parts is not None:
            return template.sequence_lengths(documents, np.asarray(self._parts[rows]), self._limit)
        if self._top is None:
            return template.lengths(documents, rows, self._limit)
        return template.pair_lengths(documents, documents, self._pairs(rows), self._limit)

    def _pairs(self, rows: np.ndarray) -> np.ndarray:
        assert self._top is not None
        return np.stack([rows, self._top[rows]], 1)
