"""The file by which a running service is found, where there are several."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.serving import running
from sparring.workflows.serving.running import FILE, announced


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The services that answer, which all have the identity x."""
    urls = {"http://127.0.0.1:1", "http://127.0.0.1:2"}

    def asked(url: str, *_: Any) -> dict[str, str]:
        if url.removesuffix("/health") not in urls:
            raise ConnectionRefusedError
        return {"identity": "x"}

    monkeypatch.setattr(running, "_request", asked)
    return urls


LIMITS = {"k": 100, "query_characters": 4_000}


def note(folder: Path) -> Any:
    return json.loads((folder / FILE).read_text()) if (folder / FILE).exists() else None


def test_a_second_service_that_answers_no_more_leaves_the_first_to_be_found(tmp_path: Path) -> None:
    both, single = {"retriever": "a", "ranker": "b"}, {"retriever": "a"}
    with announced(tmp_path, "http://127.0.0.1:1", "x", both, LIMITS) as first:
        with announced(tmp_path, "http://127.0.0.1:2", "x", single, LIMITS) as second:
            assert (first, second) == (True, False)
            assert note(tmp_path)["url"] == "http://127.0.0.1:1"
        assert note(tmp_path)["url"] == "http://127.0.0.1:1"
    assert note(tmp_path) is None


def test_one_that_answers_more_is_found_until_it_ends(tmp_path: Path) -> None:
    with announced(tmp_path, "http://127.0.0.1:1", "x", {}, LIMITS):
        with announced(tmp_path, "http://127.0.0.1:2", "x", {"retriever": "a"}, LIMITS):
            assert note(tmp_path)["url"] == "http://127.0.0.1:2"
        assert note(tmp_path)["url"] == "http://127.0.0.1:1"
    assert note(tmp_path) is None


def test_what_a_killed_service_or_one_of_another_run_has_left_is_written_over(
    tmp_path: Path, answering: set[str]
) -> None:
    """Though another process has its number by now, as in a container that starts again."""
    record = {
        "url": "http://127.0.0.1:1",
        "pid": 2**22 + 1,
        "identity": "x",
        "systems": {"retriever": "a"},
        "limits": {},
    }
    pid = os.getpid()
    for change in ({}, {"identity": "y", "pid": 1}, {"systems": []}, {"url": "http://127.0.0.1:3", "pid": pid}):
        (tmp_path / FILE).write_text(json.dumps({**record, **change}))
        with announced(tmp_path, "http://127.0.0.1:2", "x", {}, LIMITS):
            assert note(tmp_path)["url"] == "http://127.0.0.1:2"
        assert note(tmp_path) is None
