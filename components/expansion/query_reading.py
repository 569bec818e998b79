"""What a query reranker reads, as paper 002 has it (section 3.4.2).

Retrieval-independent (RI): `[CLS] question ? expansion [SEP]`. Retrieval-dependent (RD): `[CLS] question ? expansion
[SEP] passage [SEP]`, the passage being the first that the expanded query finds, with its title before it as for every
other model.

The public code has other templates: `[CLS] question [SEP] expansion [SEP]`, and for RD `[CLS] question [SEP] expansion
[SEP] title [SEP] passage [SEP]`, all in one segment, cut at the end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.text import Batch, TokenStore

TOP = "top.npy"
PARTS = "parts.npy"


class Reading:
    """Expansions as a model reads them: rows of a candidates artifact's documents.

    Its documents are expanded queries, and behind them passages. Where `top.npy` is there it names the row of each
    expanded query's passage: that makes the reranker a retrieval-dependent one. Where `parts.npy` is there it names the
    rows of all that stands in the public code's template.
    """

    def __init__(self, data: Path, tokens: TokenStore, limit: int) -> None:
        self._tokens, self._limit = tokens, limit
        self._top = np.load(data / TOP, mmap_mode="r") if (data / TOP).exists() else None
        self._parts = np.load(data / PARTS, mmap_mode="r") if (data / PARTS).exists() else None

    def batch(self, rows: np.ndarray) -> Batch:
        """Some expansions. What is too long is cut at its end, a passage before the expanded query."""
        template, documents = self._tokens.template, self._tokens.documents
        if self._parts is not None:
            return template.several(documents, np.asarray(self._parts[rows]), self._limit)
        if self._top is None:
            return template.texts(documents, rows, self._limit)
        return template.pairs(documents, documents, self._pairs(rows), self._limit)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(N,) how long they are."""
        template, documents = self._tokens.template, self._tokens.documents
        if self._parts is not None:
            return template.several_lengths(documents, np.asarray(self._parts[rows]), self._limit)
        if self._top is None:
            return template.lengths(documents, rows, self._limit)
        return template.pair_lengths(documents, documents, self._pairs(rows), self._limit)

    def _pairs(self, rows: np.ndarray) -> np.ndarray:
        assert self._top is not None
        return np.stack([rows, self._top[rows]], 1)
