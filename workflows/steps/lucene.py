"""BM25: build a Lucene index of the documents and retrieve from it. Each worker runs Java in a child process."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from sparring.components.data.groups import check_k, queries_of, query_ids_of
from sparring.components.data.own_documents import LeftOut
from sparring.components.data.tables import RANKING, counts, write_ranking_part
from sparring.components.retrieval import lucene
from sparring.components.retrieval.kinds.lexical import Lexical, LuceneIndex, read_details
from sparring.components.retrieval.lucene import AnalyzerConfig, BM25Config, RM3Config
from sparring.workflows.distributed.indexing import build_index_files
from sparring.workflows.distributed.java import InChild
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards, row_shards
from sparring.workflows.store.dag import Description

# It changes no result. Every worker must have several shards, and a shard must outlast Java's warm-up.
QUERIES_A_SHARD = 512


class LuceneIndexConfig(AnalyzerConfig):
    """Rules by which documents become index terms."""


class VectorIndexConfig(LuceneIndexConfig):
    """Rules for an index with term vectors, which relevance feedback needs."""

    vectors: Literal[True] = True
    """Store term vectors."""


@Description(
    part="BM25",
    workers_read={
        "data": ("documents.parquet",),
        "out": ("index/_*", "index/segments*", "index/write.lock", "index/doc_ids.*", "part-*"),
    },
)
def lucene_index(out: Path, machine: Machine, *, data: Path, config: LuceneIndexConfig) -> dict[str, Any]:
    """Write `index/`, a Lucene index of title and text that Pyserini opens."""
    lucene.runtime()
    analysis = AnalyzerConfig(**config.model_dump(include=set(AnalyzerConfig.model_fields)))
    index = LuceneIndex(analysis, vectors=isinstance(config, VectorIndexConfig))
    build_index_files(out, machine, kind="lexical", documents=data, index=index)
    return read_details(out / lucene.INDEX)


def _refuses(data: Path, splits: list[str], k: int) -> None:
    """Refuse a split without queries, and more documents for a query than the collection has."""
    check_k(k, data)
    query_ids_of(data, splits)


SEARCHED = {"data": ("*.parquet",), "index": ("*",), "out": ("ranking.parquet/*",)}
"""Files that only the workers read."""


@Description(part="BM25", version=2, refuses=_refuses, workers_read=SEARCHED)
def lucene_search(
    out: Path, machine: Machine, *, data: Path, index: Path, splits: list[str], k: int, config: BM25Config
) -> dict[str, Any]:
    """Write `ranking.parquet`: for every query of the splits, in their order, its k best documents by BM25.

    A query that retrieves nothing has no rows. Ranks are those of Pyserini's `LuceneSearcher.batch_search`. Scores are
    Lucene's, before Pyserini rounds them and separates equal ones.
    """
    return _searched(out, machine, data=data, index=index, splits=splits, k=k, config=config)


@Description(part="BM25", version=2, refuses=_refuses, workers_read=SEARCHED)
def lucene_feedback(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    index: Path,
    splits: list[str],
    k: int,
    config: BM25Config,
    rm3: RM3Config,
) -> dict[str, Any]:
    """Search with relevance feedback by RM3, as Pyserini does after `set_rm3`. The index must have term vectors."""
    return _searched(out, machine, data=data, index=index, splits=splits, k=k, config=config, rm3=rm3)


def _searched(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    index: Path,
    splits: list[str],
    k: int,
    config: BM25Config,
    rm3: RM3Config | None = None,
) -> dict[str, Any]:
    _refuses(data, splits, k)
    queries = len(query_ids_of(data, splits))
    lucene.runtime()
    map_shards(
        InChild,
        # without queries, one part without rows
        row_shards(queries, QUERIES_A_SHARD, "ranking.parquet/{:08d}.parquet") or [_NOTHING],
        out=out,
        machine=machine,
        pool=machine.cluster.java,
        unit="queries",
        work=_Retrieval,
        data=str(data),
        index=str(index),
        splits=splits,
        k=k,
        config=config,
        rm3=rm3,
    )
    return {"queries": queries, **counts(out / "ranking.parquet")}


_NOTHING = Shard("ranking.parquet/00000000.parquet", 0, {"start": 0, "stop": 0})


class _Retrieval:
    """A worker that ranks documents for runs of queries."""

    on_demand: ClassVar = {"data": ("documents.parquet",)}

    def __init__(
        self,
        *,
        threads: int,
        data: str,
        index: str,
        splits: list[str],
        k: int,
        config: BM25Config,
        rm3: RM3Config | None = None,
    ) -> None:
        self._searcher = Lexical().open_index(Path(index) / lucene.INDEX, config=config, rm3=rm3, threads=threads)
        self._queries = queries_of(Path(data), splits, ["query_id", "text"])
        self._k, self._left_out = k, LeftOut(Path(data))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        queries, most = self._queries[task["start"] : task["stop"]], self._k + self._left_out.most
        retrieved = list(self._searcher.search(queries["text"].to_pylist(), most))
        lengths = [len(scores) for _, scores in retrieved]
        columns = [
            queries["query_id"].take(np.repeat(np.arange(len(queries)), lengths)),
            pa.chunked_array([doc_ids for doc_ids, _ in retrieved], RANKING.field("doc_id").type),
            np.concatenate([np.empty(0, np.int32), *(np.arange(1, n + 1, dtype=np.int32) for n in lengths)]),
            np.concatenate([np.empty(0, np.float32), *(scores for _, scores in retrieved)]),
        ]
        write_ranking_part(path, [self._left_out(pa.table(columns, schema=RANKING), self._k)], RANKING)

    def close(self) -> None:
        self._searcher.close()
