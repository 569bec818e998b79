"""The dense kind: what it exports, and the indexes that it builds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.components.retrieval.kinds import dense
from sparring.components.retrieval.kinds.dense import Dense
from tests.support import toy


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_other_vectors_than_ours_are_not_exported(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, towers: str
) -> None:
    config = toy.retriever_config(encoder, pooling="mean", towers=towers, projection=8, query_prompt="bara: ")
    folder = toy.started(tmp_path / "retriever", config) / "model"
    Dense().check_export(folder)
    changed = shutil.copytree(folder, tmp_path / "changed")
    pooling = changed / ("1_Pooling" if towers == "shared" else "document_pooling") / "config.json"
    wrong = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), **wrong}))
    side = "query" if towers == "shared" else "document"
    with pytest.raises(UserError, match=rf"gives other vectors in sentence-transformers: of a {side} by [\d.]+"):
        Dense().check_export(changed)
    monkeypatch.setattr(dense, "find_spec", lambda name: None)
    Dense().check_export(changed)
