"""What a query reranker reads, as paper 002 has it (section 3.4.2).

Retrieval-independent (RI): `[CLS] question ? expansion [SEP]`. Retrieval-dependent (RD): `[CLS] question ? expansion
[SEP] passage [SEP]`, the passage being the first that the expanded query finds. The public code puts [SEP] for `?`, and
a passage's title into a part of its own: here a passage reads as title and text, as for every other model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from components.text import Batch, TokenStore

TOP = "top.npy"


class Reading:
    """Expansions as a model reads them: rows of a candidates artifact's documents.

    Its documents are expanded queries, and behind them passages. Where `top.npy` is there it names the row of each
    expanded query's passage: that makes the reranker a retrieval-dependent one.
    """

    def __init__(self, data: Path, tokens: TokenStore, limit: int) -> None:
        self._tokens, self._limit = tokens, limit
        self._top = np.load(data / TOP, mmap_mode="r") if (data / TOP).exists() else None

    def batch(self, rows: np.ndarray) -> Batch:
        """Some expansions. What is too long is cut at its end, a passage before the expanded query."""
        template, documents = self._tokens.template, self._tokens.documents
        if self._top is None:
            return template.texts(documents, rows, self._limit)
        return template.pairs(documents, documents, self._pairs(rows), self._limit)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(N,) how long they are."""
        template, documents = self._tokens.template, self._tokens.documents
        if self._top is None:
            return template.lengths(documents, rows, self._limit)
        return template.pair_lengths(documents, documents, self._pairs(rows), self._limit)

    def _pairs(self, rows: np.ndarray) -> np.ndarray:
        assert self._top is not None
        return np.stack([rows, self._top[rows]], 1)
