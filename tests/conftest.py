"""What several tests share: a toy collection, models that begin from a toy encoder, a run, and one Ray session."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is first imported: the models are tiny

import numpy as np
import pytest

from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.session import ray_session, stop_ray
from tests.support import synced, tiny, toy
from tests.support.endpoint import KEY, Endpoint, serving

# A shell starts what it runs in the background with SIGINT ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

TOGETHER = {
    "ray": re.compile(r'usefixtures\("ray"|\bray: Machine'),
    "plans": re.compile(r"from tests\.support\.planned import"),
}
"""How files of tests name what takes long and is made once in a process: the Ray session, the plans of all configs."""

pytest.register_assert_rewrite("tests.support.trainings")  # so that what it compares is shown where it differs


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files of tests go to whichever process is free, but all that share the Ray session to one, and likewise those
    that share the plans."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileAndShared(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            text = (config.rootpath / file).read_text()
            return next((name for name, words in TOGETHER.items() if words.search(text)), file)

    return ByFileAndShared(config, log)


@pytest.fixture(scope="session", autouse=True)
def all_is_synced() -> Iterator[set[str]]:
    """Every step that a test runs in its own process has its files on the disk before its record."""
    with synced.spied_on() as seen:
        yield seen


@pytest.fixture(scope="session", autouse=True)
def one_package() -> Iterator[None]:
    """No test imports a module under a second name, which would be another module."""
    yield
    assert [name for name in ("components", "workflows") if name in sys.modules] == []


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is made once lies; nothing writes to it afterwards."""
    return tmp_path_factory.mktemp("toys")


@pytest.fixture(scope="session")
def encoder(toys: Path) -> Path:
    """A BERT-like encoder of two layers with its tokenizer, in a directory."""
    return toy.write_encoder(toys / "encoder")


@pytest.fixture(scope="session")
def data(toys: Path) -> Path:
    """A data artifact: 40 documents, 24 queries, their judgements."""
    return toy.write_data(toys / "data")


@pytest.fixture(scope="session")
def retriever(toys: Path, encoder: Path) -> Path:
    """The artifact of a start retriever: one tower, mean pooling, cosine."""
    return toy.started(toys / "retriever", toy.retriever_config(encoder, pooling="mean", similarity="cosine"))


@pytest.fixture(scope="session")
def ranker(toys: Path, encoder: Path) -> Path:
    """The artifact of a start ranker with a head on the mean."""
    return toy.started(toys / "ranker", toy.ranker_config(encoder, pooling="mean"))


@pytest.fixture(scope="session")
def language_model(toys: Path, encoder: Path) -> Path:
    """The artifact of a masked language model: the same encoder, with a new head."""
    return toy.started(toys / "language-model", toy.language_model_config(encoder))


@pytest.fixture(scope="session")
def tokens(toys: Path, data: Path, retriever: Path) -> Path:
    """The token store of the collection."""
    from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize

    folder = toys / "tokens"
    folder.mkdir()
    tokenize(folder, toy.INLINE, data=data, model=retriever, config=TokenizeConfig())
    return folder


@pytest.fixture(scope="session")
def twins(toys: Path, tokens: Path) -> Path:
    """What a token store says of texts that are the same, were query q2 a copy of q1 under another id."""
    folder = toys / "twins"
    folder.mkdir()
    shutil.copyfile(tokens / "documents.same.npy", folder / "documents.same.npy")
    same = np.load(tokens / "queries.same.npy")
    np.save(folder / "queries.same.npy", np.where(same == same[2], same[1], same))
    return folder


@pytest.fixture(scope="session")
def beir(toys: Path, data: Path) -> Path:
    """The collection as a BEIR folder."""
    return tiny.write_beir(toys / "toy", data)


@pytest.fixture(scope="session")
def played(toys: Path, beir: Path, encoder: Path) -> tiny.Place:
    """A finished run of AR2 with both controls; `copy` it to do something to it."""
    place = tiny.place(toys / "played", tiny.ar2(beir, encoder))
    assert place("run") == 0
    return place


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bf16 where they are asked for, also on a processor that emulates them."""
    monkeypatch.setattr("sparring.components.compute.precision.has_bf16", lambda device: True)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> tiny.Said:
    """What was printed since it was last asked: standard output and errors."""
    return lambda: (printed := capsys.readouterr()) and (printed.out, printed.err)


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """An address on loopback that scores and embeds. The variable RERANK_KEY has its key."""
    monkeypatch.setenv("RERANK_KEY", KEY)
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A Ray session on this machine for all tests that need one; the machine that it runs on."""
    cluster = Cluster(
        device="cpu",
        object_store_mb=200,
        max_tokens_per_pass=256,
        retries=0,
        train={"workers": 2, "threads": 1},
        map={"workers": 2, "threads": 1},
    )
    ray_session(cluster)
    yield resolve_machine(cluster)
    stop_ray()
