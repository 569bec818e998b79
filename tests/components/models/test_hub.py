"""Models of the hub where it cannot be reached: the cache alone is looked at, at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from sparring.components.models import hub
from tests.support.hub import put_in_cache

ROOT = Path(__file__).parents[3]
LOAD = """
import socket

def refuse(*words, **options):
    raise socket.gaierror(-2, "Name or service not known")

socket.getaddrinfo = refuse
from sparring.components.config import UserError
from sparring.components.models.capabilities import token_counter
from sparring.components.models.dual_encoder import DualEncoder, DualEncoderConfig

def config(name):
    return DualEncoderConfig(model=name, query_tokens=8, document_tokens=16)

DualEncoder.start(config("me/toy"))
print(token_counter(config("me/toy"))(["a b"]))
try:
    DualEncoder.start(config("me/other"))
except UserError as error:
    print(error)
print(token_counter(config("me/other")))
"""


def test_without_a_way_to_the_hub_the_cache_is_all_there_is(tmp_path: Path, encoder: Path) -> None:
    """A model that was downloaded is read, another is refused in a line, and nobody waits for six requests a file."""
    put_in_cache(tmp_path / "hub", "me/toy", encoder)
    requests = {"hf_hub_offline", "transformers_offline", "http_proxy", "https_proxy", "all_proxy"}
    environment = {key: value for key, value in os.environ.items() if key.lower() not in requests}
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=ROOT,
        env={**environment, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    counts, refused, none = done.stdout.splitlines()
    assert counts.startswith("[")
    assert (
        refused
        == "model: me/other: cannot be loaded: huggingface.co cannot be reached, and the model is not in the cache"
    )
    assert none == "None"
    assert "Retry" not in done.stderr


def test_a_proxy_and_a_known_name_leave_the_hub_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost:9")
    for proxies in ({}, {"https": "http://proxy"}):
        monkeypatch.setattr(hub, "getproxies", lambda result=proxies: result)
        assert hub.go_offline_if_unreachable() is None
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words: (_ for _ in ()).throw(OSError))
    assert hub.go_offline_if_unreachable() is None  # the proxy knows the name
    assert constants.HF_HUB_OFFLINE is False


def test_a_hub_that_is_not_found_is_looked_for_again_where_it_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name comes back as long as this process stays offline, and nobody's own wish to be so is taken for that."""
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub, "_missing", set[str]())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words: (_ for _ in ()).throw(OSError))
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.go_offline_if_unreachable() is None  # the user's wish
    for _ in range(2):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for _ in range(2):
            assert hub.go_offline_if_unreachable() == "hub.invalid"
            assert constants.HF_HUB_OFFLINE is True
