"""BM25: build a Lucene index of the documents, and retrieve from it, each worker in a child process with Java."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.data.groups import check_k, queries_of, query_ids_of
from sparring.components.data.own_documents import LeftOut
from sparring.components.data.tables import RANKING, counts, read
from sparring.components.files import read_json, remove, replacing, write_json
from sparring.components.retrieval import lucene, lucene_ids
from sparring.components.retrieval.lucene import BM25Config, RM3Config
from sparring.components.retrieval.lucene_search import Searcher
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.java import InChild
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards, row_shards
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

T = TypeVar("T")

INDEX = "index"
ABOUT = "sparring.json"
DOCUMENTS_AT_ONCE = 2_000
# Changes no result: few enough that every worker has several shards, enough to outlast Java's warm-up.
QUERIES_A_SHARD = 512
# What Java strips before it calls a document empty.
BLANK = "".join(map(chr, range(33)))


class LuceneIndexConfig(lucene.AnalyzerConfig):
    """How documents become index terms."""


class VectorIndexConfig(LuceneIndexConfig):
    """The same with term vectors, which relevance feedback needs."""

    vectors: Literal[True] = True
    """Term vectors are stored."""


@Description(part="BM25")
def lucene_index(out: Path, machine: Machine, *, data: Path, config: LuceneIndexConfig) -> dict[str, Any]:
    """Write `index/`, a Lucene index of title and text that Pyserini opens."""
    lucene.runtime()
    most = machine.task_threads
    pool = Pool(workers=1, threads=min(most, (machine.cluster.java.workers or most) * machine.cluster.java.threads))
    documents = pq.read_metadata(data / "documents.parquet").num_rows
    map_shards(
        InChild,
        [Shard(INDEX, documents, {})],
        out=out,
        machine=machine,
        pool=pool,
        unit="documents",
        work=_Indexing,
        data=str(data),
        vectors=isinstance(config, VectorIndexConfig),
        analysis=config.model_dump(mode="json", include=set(lucene.AnalyzerConfig.model_fields)),
    )
    return _about(out)


def _refuses(data: Path, splits: list[str], k: int) -> None:
    """A split without queries, and more documents for a query than there are."""
    check_k(k, data)
    query_ids_of(data, splits)


@Description(part="BM25", version=2, refuses=_refuses)
def lucene_search(
    out: Path, machine: Machine, *, data: Path, index: Path, splits: list[str], k: int, config: BM25Config
) -> dict[str, Any]:
    """Write `ranking.parquet`: for every query of the splits, in their order, its k best documents by BM25.

    A query that retrieves nothing has no rows. Ranks are those of Pyserini's `LuceneSearcher.batch_search`, scores
    those of Lucene, before Pyserini rounds them and sets equal ones apart.
    """
    return _searched(out, machine, data=data, index=index, splits=splits, k=k, config=config)


@Description(part="BM25", version=2, refuses=_refuses)
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
    """The same with relevance feedback by RM3, as Pyserini has it after `set_rm3`. The index has term vectors."""
    return _searched(
        out, machine, data=data, index=index, splits=splits, k=k, config=config, rm3=rm3.model_dump(mode="json")
    )


def _searched(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    index: Path,
    splits: list[str],
    k: int,
    config: BM25Config,
    rm3: dict[str, Any] | None = None,
) -> dict[str, Any]:
    _refuses(data, splits, k)
    queries = len(query_ids_of(data, splits))
    shards = row_shards(queries, QUERIES_A_SHARD, "found-{:05d}.parquet")
    ranking = out / "ranking.parquet"
    if not ranking.exists():
        lucene.runtime()
        map_shards(
            InChild,
            shards,
            out=out,
            machine=machine,
            pool=machine.cluster.java,
            unit="queries",
            work=_Retrieval,
            data=str(data),
            index=str(index),
            splits=splits,
            k=k,
            k1=config.k1,
            b=config.b,
            rm3=rm3,
        )
        _join([out / shard.file for shard in shards], ranking)
    remove(out, "found-*.parquet")
    return {"queries": queries, **counts(ranking)}


def _join(parts: Iterable[Path], to: Path) -> None:
    """One Parquet file of all the parts' rows, a part in memory at a time."""
    with replacing(to) as path, pq.ParquetWriter(path, RANKING) as writer:
        for part in parts:
            writer.write_table(read(part, RANKING))


def _about(index: Path) -> dict[str, Any]:
    """What the index says about itself."""
    return read_json(index / INDEX / ABOUT)


class _Indexing:
    """The one shard of an index: all documents."""

    def __init__(self, *, threads: int, data: str, analysis: dict[str, Any], vectors: bool = False) -> None:
        self._documents, self._vectors = Path(data) / "documents.parquet", vectors
        self._analysis = lucene.AnalyzerConfig.model_validate(analysis)
        self._threads = threads

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        file = pq.ParquetFile(self._documents)
        total, added, blank = file.metadata.num_rows, 0, 0
        with (
            file,
            Progress(path.parent, total, "documents") as progress,
            lucene.IndexWriter(path, self._analysis, threads=self._threads, vectors=self._vectors) as writer,
        ):
            for documents, blanks in _ahead(_documents(file)):
                added += writer.add(documents)
                blank += blanks
                progress.add(len(documents))
        lucene_ids.write(path)
        with closing(Searcher(path, self._analysis, k1=0.9, b=0.4, threads=1)) as searcher:
            indexed = len(searcher)
        if not indexed == added == total - blank:  # Anserini logs what goes wrong and carries on
            raise RuntimeError(f"Lucene indexed {indexed} of {total - blank} documents; its messages are in the log")
        details = {"documents": total, "blank": blank, "analysis": self._analysis.model_dump(mode="json")}
        write_json(path / ABOUT, details)


def _documents(file: pq.ParquetFile) -> Iterator[tuple[list[str], int]]:
    """A collection's documents as the indexer takes them, some at a time, and how many of those are blank."""
    for batch in file.iter_batches(DOCUMENTS_AT_ONCE, columns=["doc_id", "title", "text"]):
        doc_ids, titles, texts = (column.to_pylist() for column in batch.columns)
        bodies = [lucene.contents(title, text) for title, text in zip(titles, texts, strict=True)]
        yield lucene.as_json(doc_ids, bodies), sum(not body.strip(BLANK) for body in bodies)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made while the one before is indexed, as Java does not hold Python's lock."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


class _Retrieval:
    """Rankings for runs of queries."""

    def __init__(
        self,
        *,
        threads: int,
        data: str,
        index: str,
        splits: list[str],
        k: int,
        k1: float,
        b: float,
        rm3: dict[str, Any] | None = None,
    ) -> None:
        analysis = lucene.AnalyzerConfig.model_validate(_about(Path(index))["analysis"])
        self._searcher = Searcher(Path(index) / INDEX, analysis, k1=k1, b=b, threads=threads)
        if rm3 is not None:
            self._searcher.feed_back(**rm3)
        self._queries = queries_of(Path(data), splits, ["query_id", "text"])
        self._k, self._left_out = k, LeftOut(Path(data))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        queries, most = self._queries[task["start"] : task["stop"]], self._k + self._left_out.most
        doc_ids, scores = zip(*self._searcher.search(queries["text"].to_pylist(), most), strict=True)
        lengths = [len(of_query) for of_query in scores]
        columns = [
            queries["query_id"].take(np.repeat(np.arange(len(queries)), lengths)),
            pa.chunked_array(doc_ids, RANKING.field("doc_id").type),
            np.concatenate([np.arange(1, length + 1, dtype=np.int32) for length in lengths]),
            np.concatenate(scores),
        ]
        pq.write_table(self._left_out(pa.table(columns, schema=RANKING), self._k), path)

    def close(self) -> None:
        self._searcher.close()
