"""Token ids are read back text by text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparring.components.data.tokens import Tokens


def test_a_token_store_gives_each_text(tmp_path: Path) -> None:
    np.save(tmp_path / "documents.ids.npy", np.array([5, 6, 7, 8], np.uint16))
    np.save(tmp_path / "documents.offsets.npy", np.array([0, 2, 2, 4]))
    tokens = Tokens.open(tmp_path, "documents")
    assert len(tokens) == 3
    assert [tokens[i].tolist() for i in range(3)] == [[5, 6], [], [7, 8]]
    assert tokens.lengths().tolist() == [2, 0, 2]
    assert tokens.lengths(np.array([2, 1])).tolist() == [2, 0]
