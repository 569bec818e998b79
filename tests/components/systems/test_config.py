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

LEXICAL = {"kind": "lexical", "analysis": {}, "k": 10}
DENSE = {"kind": "dense", "k": 20, "query_tokens": 8}
FUSED = {"kind": "fused", "how": "interleave", "of": ["lexical", "dense"], "depth": 25}
RANKER = {"kind": "ranker", "of": "dense", "depth": 5}
EXPANSION = {"kind": "expansion", "of": "lexical", "relevance": {}, "frequencies": "frequencies.json"}
READER = {"kind": "reader", "of": "lexical", "passages": 3, "passage_tokens": 24, "new_tokens": 4}
BASE = {"version": config.VERSION, "name": "one", "documents": 50}


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ({}, "stages"),
        ({"dense": DENSE, "fusion": FUSED}, "stages.fusion: it reads 'lexical'; accepted: dense"),
        ({"ranker": RANKER, "dense": DENSE}, "stages.ranker: it reads 'dense'; accepted: (none)"),
        (
            {"dense": DENSE, "lexical": LEXICAL},
            "stages: no stage reads dense; accepted: without it",
        ),
        ({"lexical": LEXICAL, "near": {"kind": "neighbours", "of": "lexical"}}, "stages.near.of: 'lexical' has no vec"),
        ({"dense": DENSE, "more": {**EXPANSION, "of": "dense"}}, "stages.more.of: 'dense' has no Lucene index"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "relevance": None}}, "relevance, generate: accepted: one of them"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "generate": {}}}, "relevance, generate: accepted: one of them"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "frequencies": None}}, "frequencies: none; accepted: the file"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "choice": "lowest"}}, "reranker: accepted with `choice: lowest`"),
        ({"lexical": LEXICAL, "more": {**EXPANSION, "choice": "all"}}, "fusion: accepted for several expansions"),
        (
            {"lexical": LEXICAL, "reader": READER, "ranker": {**RANKER, "of": "reader"}},
            "stages.ranker: 'reader' is a reader; accepted: a reader as the last stage",
        ),
        ({"dense": DENSE, "ranker": {**RANKER, "priors": {"lexical": 1.0}}}, "stages.ranker: it reads 'lexical'"),
    ],
)
def test_stages_that_do_not_fit_together(stages: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=r"^x: ") as caught:
        parse(SystemConfig, {**BASE, "stages": stages}, where="x")
    assert says in str(caught.value)


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
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "version: got None; accepted: 2; export the system again"),
        (json.dumps({**BASE, "version": 1}), "version: got 1; accepted: 2; export the system again"),
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
