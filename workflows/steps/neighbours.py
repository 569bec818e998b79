"""Rerank by reciprocal nearest neighbours among what a query retrieved (Zerveas et al., 2023, section 3.1)."""

from pathlib import Path
from typing import Any

from sparring.components.compute.processor import configure_process
from sparring.components.data.vectors import DocumentVectors, Lists, QueryVectors
from sparring.components.files import remove, save_array
from sparring.components.neighbours.reciprocal import NeighboursConfig
from sparring.components.neighbours.reranking import NeighboursRerankConfig, Reranking, best, list_scores
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_rows
from sparring.workflows.store.dag import Description

QUERIES = 1024
"""Number of queries in one shard. It changes no result."""


@Description(part="reranking by neighbours", version=2, workers_read={"vectors": ("documents-*.npy",)})
def rerank_by_neighbours(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    vectors: Path,
    queries: Path,
    ranking: Path,
    config: NeighboursRerankConfig | Path,
) -> dict[str, Any]:
    """Write `ranking.parquet`: the ranking with its first documents ordered by similarity in their context (Eq. 1).

    `vectors` are the documents', of which only those in contexts are read. `queries` are the vectors of the ranking's
    queries. Documents beyond the context follow in their old order, with scores below the last. `config` may be the
    artifact of `chosen`, whose best parameters are used.
    """
    numbers = config if isinstance(config, NeighboursRerankConfig) else best(config)
    reranking = Reranking(ranking, data, queries, numbers.context)
    lists = reranking.lists()
    lists.save(out)
    scores, _ = map_rows(
        Reranker,
        len(lists.queries),
        QUERIES,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="queries",
        lists=out,
        vectors=vectors,
        queries=queries,
        config=numbers,
    )
    _, changed = reranking.write(scores, out / "ranking.parquet")
    remove(out, "lists.*.npy", "part-*.npy")
    return {"queries": len(lists.queries), "documents": len(lists.documents), "first_changed": changed}


class Reranker:
    """A worker that scores lists of documents by their neighbours."""

    def __init__(
        self, *, lists: Path, vectors: Path, queries: Path, config: NeighboursConfig, cuda: bool, threads: int
    ) -> None:
        configure_process(threads)
        self._lists, self._config = lists, config
        self._queries, self._documents = QueryVectors(queries), DocumentVectors(vectors)
        self._device = "cuda" if cuda else "cpu"

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the scores of some queries' lists."""
        lists = Lists.load(self._lists, task["start"], task["stop"])
        save_array(path, list_scores(self._queries, self._documents, lists, self._config, self._device)[lists.mask])
