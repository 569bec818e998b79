"""What a system's description may say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import parse
from sparring.components.systems import config
from sparring.components.systems.config import SystemConfig
from tests.support.errors import refused

LEXICAL = {"kind": "lexical", "analysis": {}, "k": 10}
DENSE = {"kind": "dense", "k": 20, "query_tokens": 8}
FUSED = {"kind": "fused", "how": "interleave", "of": ["lexical", "dense"], "depth": 25}
RANKER = {"kind": "ranker", "of": "dense", "depth": 5}
EXPANSION = {"kind": "expansion", "of": "lexical", "relevance": {}, "frequencies": "frequencies.json"}
READER = {"kind": "reader", "of": "lexical", "passages": 3, "passage_tokens": 24, "new_tokens": 4}
BASE = {"version": config.VERSION, "name": "one", "documents": 50}


@pytest.mark.parametrize(
    ("stages", "key", "code"),
    [
        ({}, "stages", "too-short"),
        ({"dense": {"k": 3}}, "stages.dense", "missing-key"),
        ({"dense": {**DENSE, "kind": "nothing"}}, "stages.dense", "unknown-kind"),
        ({"dense": DENSE, "fusion": FUSED}, "stages.fusion", "unknown-stage"),
        ({"ranker": RANKER, "dense": DENSE}, "stages.ranker", "unknown-stage"),
        ({"dense": DENSE, "lexical": LEXICAL}, "stages", "unread-stage"),
        ({"lexical": LEXICAL, "near": {"kind": "neighbours", "of": "lexical"}}, "stages.near.of", "no-vectors"),
        ({"dense": DENSE, "more": {**EXPANSION, "of": "dense"}}, "stages.more.of", "no-words"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "relevance": None}}, "stages.more", "one-of"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "generate": {}}}, "stages.more", "one-of"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "frequencies": None}}, "stages.more", "missing-key"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "choice": "lowest"}}, "stages.more", "needed-together"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "choice": "all"}}, "stages.more", "needed-together"),
        (
            {"lexical": LEXICAL, "reader": READER, "ranker": {**RANKER, "of": "reader"}},
            "stages.ranker",
            "reads-a-reader",
        ),
        ({"dense": DENSE, "ranker": {**RANKER, "priors": {"lexical": 1.0}}}, "stages.ranker", "unknown-stage"),
    ],
)
def test_stages_that_do_not_fit_together(stages: dict[str, Any], key: str, code: str) -> None:
    with refused(key, code):
        parse(SystemConfig, {**BASE, "stages": stages}, where="x")


@pytest.mark.parametrize(
    ("stages", "limit"),
    [
        ({"dense": DENSE}, 50),
        ({"lexical": LEXICAL, "ranker": {**RANKER, "of": "lexical"}}, 50),
        ({"dense": DENSE, "lexical": LEXICAL, "fusion": FUSED}, 25),
        ({"dense": DENSE, "lexical": LEXICAL, "ranker": {**RANKER, "priors": {"lexical": 0.5}}}, 20),
    ],
)
def test_how_many_documents_a_system_ranks(stages: dict[str, Any], limit: int) -> None:
    assert SystemConfig.model_validate({**BASE, "stages": stages}).limit == limit


@pytest.mark.parametrize(
    ("text", "key", "code"),
    [
        ("{", "system.json", "other-format"),
        ("[]", "version", "other-version"),
        (json.dumps({**BASE, "version": 1}), "version", "other-version"),
    ],
)
def test_a_description_that_cannot_be_read(tmp_path: Path, text: str, key: str, code: str) -> None:
    (tmp_path / "system.json").write_text(text)
    with refused(key, code, f"{tmp_path}/system.json"):
        config.read(tmp_path)


def test_a_folder_that_is_no_system(tmp_path: Path) -> None:
    with refused(tmp_path.name, "missing-file"):
        config.read(tmp_path)
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "system.json").touch()
    with refused(tmp_path.name, "missing-file", f"{tmp_path}/system?"):
        config.read(tmp_path)
