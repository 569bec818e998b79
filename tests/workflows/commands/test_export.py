"""What is exported is tried in sentence-transformers where that is installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from components.config import UserError
from tests.support import toy
from workflows.commands import export


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_other_vectors_than_ours_are_not_exported(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, towers: str
) -> None:
    config = toy.retriever_config(encoder, pooling="mean", towers=towers, projection=8, query_prompt="bara: ")
    folder = toy.started(tmp_path / "retriever", config) / "model"
    export._compare(folder)
    changed = shutil.copytree(folder, tmp_path / "changed")
    pooling = changed / ("1_Pooling" if towers == "shared" else "document_pooling") / "config.json"
    wrong = {"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), **wrong}))
    side = "query" if towers == "shared" else "document"
    with pytest.raises(UserError, match=rf"gives other vectors in sentence-transformers: of a {side} by [\d.]+"):
        export._compare(changed)
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    export._compare(changed)
