"""What a system's description may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError, parse
from sparring.components.systems import config
from sparring.components.systems.config import SystemConfig
from tests.support.errors import refused

LEXICAL = {"analysis": {}, "k": 10}
DENSE = {"k": 20, "query_tokens": 8}
BASE = {"version": 1, "name": "one", "documents": 50}
WEIGHTS = {"ranker": 1.0, "retriever": 2.0, "bm25": 0.5}


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ({}, "a system retrieves by `lexical`, `dense` or both; it has neither"),
        ({"dense": DENSE, "fusion": {"how": "reciprocal"}}, "fusion: there is one list; accepted: null"),
        ({"dense": DENSE, "lexical": LEXICAL}, "there are two lists; accepted: one, or `fusion`, or `ranker.weights`"),
        ({"dense": DENSE, "ranker": {"depth": 5, "weights": WEIGHTS}}, "ranker.weights.bm25: there is no `lexical`"),
        (
            {"lexical": LEXICAL, "ranker": {"depth": 5, "weights": WEIGHTS}},
            "ranker.weights.retriever: there is no `den",
        ),
    ],
)
def test_stages_that_do_not_fit_together(stages: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=r"^x: ") as caught:
        parse(SystemConfig, {**BASE, **stages}, where="x")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "limit"),
    [
        ({"dense": DENSE}, 50),
        ({"lexical": LEXICAL, "ranker": {"depth": 5}}, 50),
        ({"dense": DENSE, "lexical": LEXICAL, "fusion": {"how": "interleave", "depth": 25}}, 25),
        ({"dense": DENSE, "lexical": LEXICAL, "ranker": {"depth": 5, "weights": WEIGHTS}}, 20),
    ],
)
def test_how_many_documents_a_system_ranks(stages: dict[str, Any], limit: int) -> None:
    assert SystemConfig.model_validate({**BASE, **stages}).limit == limit


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "version: got None; accepted: 1; export the system again"),
        (json.dumps({**BASE, "version": 2}), "version: got 2; accepted: 1; export the system again"),
    ],
)
def test_a_description_that_cannot_be_read(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "system.json").write_text(text)
    with pytest.raises(UserError) as caught:
        config.read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/system.json: {says}")


def test_a_folder_that_is_no_system(tmp_path: Path) -> None:
    with refused(tmp_path.name, "missing-file"):
        config.read(tmp_path)
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "system.json").touch()
    with pytest.raises(UserError, match=rf"as `export` writes it; did you mean {tmp_path}/system\?$"):
        config.read(tmp_path)
