"""Rerank a ranking by reciprocal nearest neighbours among what a query found, on Ray Data (paper 003, section 3.1)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from components.files import save_array
from components.groups import ids_of, places_of, queries_of, rows_of
from components.neighbours import NeighboursConfig, at_once
from components.processor import settle
from components.tables import RANKING, read, write
from components.vectors import Lists, Vectors, query_rows
from workflows.cluster import Cluster
from workflows.shards import joined, map_shards, runs

QUERIES = 1024
"""Of one piece of work; changes no result."""


class NeighboursRerankConfig(NeighboursConfig):
    """How a ranking is reranked by neighbours."""

    context: int = Field(60, ge=1)
    """N: documents of each query among which neighbours are sought, and that get a new order. What follows them stays
    behind them; the public code leaves it out."""


def rerank_by_neighbours(
    out: Path, cluster: Cluster, *, data: Path, vectors: Path, ranking: Path, splits: list[str],
    config: NeighboursRerankConfig,
) -> dict[str, Any]:  # fmt: skip
    """Write `ranking.parquet`: the splits' ranking with its first documents by similarity in their context (Eq. 1).

    Only the vectors of those documents are read. Documents beyond the context follow in their old order, with scores
    below the last.
    """
    wanted = queries_of(data, splits, ["query_id"])["query_id"]
    table = read(ranking / "ranking.parquet", RANKING)
    table = table.filter(pc.is_in(table["query_id"], value_set=wanted.combine_chunks()))
    doc_ids = ids_of(data / "documents.parquet", "doc_id")
    rows = rows_of(table["doc_id"], doc_ids, what=str(ranking))
    ranks = table["rank"].to_numpy()
    begins, number = np.flatnonzero(ranks == 1), np.cumsum(ranks == 1) - 1
    first = ranks <= config.context
    offsets = np.searchsorted(number[first], np.arange(len(begins) + 1))
    Lists(query_rows(vectors, table["query_id"].take(begins)), rows[first], offsets).save(out)
    scores = np.empty(len(rows), np.float32)
    scores[first] = _scores(out, cluster, vectors, offsets, config)
    if len(begins):
        lowest = np.minimum.reduceat(scores[first], offsets[:-1])
        scores[~first] = (lowest[number] - (ranks - config.context))[~first]
    order = np.lexsort((places_of(doc_ids)[1][rows], -scores, number))
    changed = int((order[begins] != begins).sum())
    columns = [table["query_id"], table["doc_id"].take(order), table["rank"], pa.array(scores[order])]
    write(out / "ranking.parquet", pa.table(columns, names=RANKING.names), RANKING)
    for path in [*out.glob("lists.*.npy"), *out.glob("part-*.npy")]:
        path.unlink()
    return {"queries": len(begins), "documents": int(first.sum()), "first_changed": changed}


def _scores(out: Path, cluster: Cluster, vectors: Path, offsets: np.ndarray, config: NeighboursConfig) -> np.ndarray:
    """(documents,) the new scores, list after list."""
    shards = runs(len(offsets) - 1, QUERIES, "part-{:05d}.npy")
    cuda = cluster.cuda()
    map_shards(
        Reranker, shards, out=out, cluster=cluster, pool=cluster.map, unit="queries", gpu=cuda, lists=out,
        vectors=vectors, config=config, cuda=cuda,
    )  # fmt: skip
    return joined(out, shards, np.float32)


class Reranker:
    """Scores lists of documents by their neighbours."""

    def __init__(self, *, lists: Path, vectors: Path, config: NeighboursConfig, cuda: bool, threads: int) -> None:
        settle(threads)
        self._lists, self._vectors, self._config = lists, Vectors(vectors), config
        self._device = "cuda" if cuda else "cpu"

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the scores of some queries' lists."""
        lists = Lists.load(self._lists, task["start"], task["stop"])
        scores = self.scores(lists)[lists.there]
        save_array(path, scores)

    def scores(self, lists: Lists) -> np.ndarray:
        """(Q, N) fp32 scores, of no meaning behind the shorter lists."""
        import torch

        from components.neighbours import scores

        there, documents = torch.from_numpy(lists.there).to(self._device), lists.padded(lists.documents)
        found = []
        batch = at_once(documents.shape[1], self._device)
        with torch.inference_mode():
            for part, *vectors in self._vectors.contexts(lists.queries, documents, batch):
                asked, held = (torch.from_numpy(one).to(self._device).float() for one in vectors)
                found.append(scores(asked, held, self._config, there[part]))
        return torch.cat(found).cpu().numpy()
