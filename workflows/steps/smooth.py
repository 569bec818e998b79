"""Build groups of whole ranking contexts, and smooth the labels of their candidates (Zerveas et al., 2023, section
3.2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config, UserError
from sparring.components.data import row_runs
from sparring.components.data.groups import (
    CANDIDATES,
    Groups,
    ids_of,
    measured_queries,
    positives,
    rows_of,
    write_lists,
)
from sparring.components.data.own_documents import never_negatives
from sparring.components.data.tables import GROUPS, QUERIES, RANKING, TEXT, Placed, read
from sparring.components.data.vectors import DocumentVectors, Lists, QueryVectors, context_vectors
from sparring.components.files import remove, replacing, save_array, write_array
from sparring.components.neighbours.reciprocal import contexts_per_batch
from sparring.components.neighbours.smoothing import SmoothingConfig
from sparring.components.rng import keyed_sample
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_rows
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

GROUPS_AT_ONCE, QUERIES_AT_ONCE = 512, 10_000
"""Number of groups in one shard, and number of queries whose contexts are made together. Neither changes a result."""


class ContextConfig(Config):
    """Candidates in the ranking context of a query."""

    size: int = Field(100, ge=1)
    """Number of candidates per query: its relevant documents, followed by the first documents of the ranking that are
    not relevant."""
    queries: int | None = Field(None, ge=1)
    """Number of the split's queries to sample. Null takes all."""
    labelled: int | None = Field(None, ge=1, exclude_if=lambda labelled: labelled is None)
    """Number of relevant documents that a query is labelled with, sampled at random. Its remaining relevant documents
    may stand among its candidates with target 0, as in a sparsely judged collection. If null, all are labelled."""


class SmoothConfig(SmoothingConfig):
    """Smoothing of the labels in groups."""

    context: int | None = Field(None, ge=1)
    """N, the number of candidates of a group that are compared: the relevant ones, then the first others. The remaining
    candidates get target 0, except with `uniform`. Null compares the whole group. The paper finds a few tens
    enough."""


@Description(part="soft labels", version=2, workers_read={"data": ("documents.parquet",)})
def contexts(
    out: Path, machine: Machine, *, data: Path, tokens: Path, ranking: Path, split: str, config: ContextConfig
) -> dict[str, Any]:
    """Write `groups.parquet`: the ranking context of each query of the split, with target 1 for every relevant
    document.

    The relevant documents come first, followed by the remaining ones in the order of the ranking. Repeated texts are
    left out. So are documents that are relevant to another query with the same text, a query's own document, and
    queries without a relevant document or a ranking. With `labelled`, the relevant documents are those that were
    sampled.
    """
    document_ids = ids_of(data / "documents.parquet", "doc_id")
    query_ids, same = ids_of(data / "queries.parquet", "query_id"), np.load(tokens / "documents.same.npy")
    relevant, no_negatives = positives(data), never_negatives(data, tokens)
    splits = read(data / "queries.parquet", QUERIES, columns=["split"])["split"]
    wanted = np.flatnonzero(pc.equal(splits, split).to_numpy(zero_copy_only=False)).tolist()
    if config.queries is not None:
        sample = pa.array(measured_queries(data, split, config.queries), TEXT)
        wanted = rows_of(sample, query_ids, source=split).tolist()
    placed = Placed(ranking / "ranking.parquet", RANKING, query_ids.take(pa.array(wanted, pa.int64())))
    groups = candidates = 0
    with (
        replacing(out / "groups.parquet") as path,
        pq.ParquetWriter(path, GROUPS) as writer,
        Progress(out, len(wanted), "queries") as progress,
    ):
        for start in range(0, len(wanted), QUERIES_AT_ONCE):
            block = wanted[start : start + QUERIES_AT_ONCE]
            table = placed.rows(np.arange(start, start + len(block)))
            near = table.filter(pc.less_equal(table["rank"], 2 * config.size))  # more than needed, since texts repeat
            ranked = _ranked(near, query_ids, document_ids)
            rows = []
            for query in block:
                if query not in relevant or query not in ranked:
                    continue
                labelled, barred = relevant[query], no_negatives[query]
                if config.labelled is not None:
                    labelled = _labelled(labelled, document_ids, config.labelled, query_ids[query].as_py())
                    barred = np.union1d(np.setdiff1d(barred, relevant[query]), labelled)
                unlabelled = ranked[query][~np.isin(same[ranked[query]], same[barred])]
                documents = np.concatenate([labelled, unlabelled])
                first = np.sort(np.unique(same[documents], return_index=True)[1])
                chosen = first[: max(config.size, int((first < len(labelled)).sum()))]
                rows.append(
                    {
                        "query_id": query_ids[query].as_py(),
                        "visit": 0,
                        "doc_ids": document_ids.take(pa.array(documents[chosen])).to_pylist(),
                        "targets": (chosen < len(labelled)).astype(np.float32),
                        "teacher": None,
                    }
                )
                candidates += len(chosen)
            writer.write_table(pa.Table.from_pylist(rows, schema=GROUPS))
            groups += len(rows)
            progress.add(len(block))
        if not groups:
            raise UserError(f"no query of the split {split!r} has a relevant document and a ranking")
    return {"groups": groups, "of": len(wanted), "candidates": candidates}


def _labelled(relevant: np.ndarray, document_ids: pa.Array, count: int, query_id: str) -> np.ndarray:
    """Sample `count` rows of a query's relevant documents, by their ids."""
    ids = document_ids.take(pa.array(relevant)).to_pylist()
    drawn = keyed_sample(ids, count, "labelled", query_id)
    return relevant[np.array([doc_id in drawn for doc_id in ids])]


def _ranked(table: pa.Table, query_ids: pa.Array, document_ids: pa.Array) -> dict[int, np.ndarray]:
    """Map each query row to its document rows, best first."""
    if not len(table):
        return {}
    queries = rows_of(table["query_id"], query_ids, source="ranking")
    documents = rows_of(table["doc_id"], document_ids, source="ranking")
    starts = row_runs.starts(queries)
    return dict(zip(queries[starts].tolist(), np.split(documents, starts[1:]), strict=True))


@Description(part="soft labels", version=2, workers_read={"vectors": ("documents-*.npy",)})
def smooth(
    out: Path, machine: Machine, *, data: Path, vectors: Path, queries: Path, groups: Path, config: SmoothConfig
) -> dict[str, Any]:
    """Write the same groups with soft labels as targets, which sum to 1 in each group (Algorithm 1).

    `vectors` are the documents', `queries` those of the groups' queries. The ground truth are the candidates whose
    target is above 0. A group without any keeps targets of 0. The summary describes the spread of the targets, on
    average over the groups that have some. It has the entropy (natural logarithm), the number of candidates with a
    share, and the share of the ground truth.
    """
    offsets, truth = _lists(out, data, queries, groups)
    targets, _ = map_rows(
        Smoother,
        len(offsets) - 1,
        GROUPS_AT_ONCE,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="groups",
        work=out,
        vectors=vectors,
        queries=queries,
        config=config,
    )
    write_lists(groups / "groups.parquet", "targets", targets, out / "groups.parquet")
    remove(out, "lists.*.npy", "part-*.npy", "truth.npy")
    return {"groups": len(offsets) - 1, "candidates": len(targets), **_spread(targets, truth, offsets)}


def _lists(out: Path, data: Path, queries: Path, groups: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write what the workers read of all groups.

    Return where each group begins among the candidates (G + 1,), and which candidates are ground truth (C,). Only these
    stay in memory.
    """
    table = Groups(groups / "groups.parquet", data)
    truth = table.targets > 0
    query_ids = ids_of(data / "queries.parquet", "query_id").take(pa.array(table.queries))
    Lists(QueryVectors(queries).rows(query_ids), table.documents, table.offsets).save(out)
    write_array(out / "truth.npy", truth)
    return table.offsets, truth


def _spread(targets: np.ndarray, truth: np.ndarray, offsets: np.ndarray) -> dict[str, float]:
    """Compute the spread of the targets, as means over the groups that have some."""
    labelled = len(np.unique(np.searchsorted(offsets, np.flatnonzero(truth), side="right")))
    entropy, with_a_share, ground_truth = 0.0, 0, 0.0
    for start in range(0, len(targets), CANDIDATES):
        some = targets[start : start + CANDIDATES].astype(np.float64)
        shares = some[some > 0]
        entropy -= float((shares * np.log(shares)).sum())
        with_a_share += len(shares)
        ground_truth += float(some[truth[start : start + CANDIDATES]].sum())
    sums = {"entropy": entropy, "with_a_share": with_a_share, "ground_truth": ground_truth}
    return {"labelled": labelled, **{name: value / max(1, labelled) for name, value in sums.items()}}


class Smoother:
    """A worker that smooths the labels of groups."""

    def __init__(
        self, *, work: Path, vectors: Path, queries: Path, config: SmoothConfig, cuda: bool, threads: int
    ) -> None:
        configure_process(threads)
        self._work, self._config = work, config
        self._queries, self._documents = QueryVectors(queries), DocumentVectors(vectors)
        self._device = "cuda" if cuda else "cpu"

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the targets of some groups."""
        lists = Lists.load(self._work, task["start"], task["stop"])
        first = np.load(self._work / "lists.offsets.npy", mmap_mode="r")[task["start"]]
        truth = np.load(self._work / "truth.npy", mmap_mode="r")[first : first + len(lists.documents)]
        targets = self.targets(lists, lists.padded(truth))[lists.mask]
        save_array(path, targets)

    def targets(self, lists: Lists, truth: np.ndarray) -> np.ndarray:
        """Compute fp32 targets (Q, N), 0 behind the shorter groups. `truth` (Q, N) marks the ground truth."""
        import torch

        from sparring.components.neighbours.smoothing import uniform

        config = self._config
        if config.labels != "uniform":
            return self._similar(lists, truth)
        if config.epsilon is None:
            similar = self._similar(lists, truth).astype(np.float64)
            epsilon = torch.from_numpy((similar * ~truth).sum(1))
        else:
            epsilon = torch.full((len(truth),), config.epsilon, dtype=torch.float64)
        return uniform(torch.from_numpy(truth), torch.from_numpy(lists.mask), epsilon).float().numpy()

    def _similar(self, lists: Lists, truth: np.ndarray) -> np.ndarray:
        """Compute targets (Q, N) in fp32 by similarity within each group's context."""
        import torch

        from sparring.components.neighbours.smoothing import targets

        similar = np.zeros(truth.shape, np.float32)
        chosen = self._context(lists.mask, truth)
        places = np.argsort(~chosen, axis=1, kind="stable")[:, : chosen.sum(1).max()]
        documents, true, mask = (
            np.take_along_axis(array, places, 1) for array in (lists.padded(lists.documents), truth, chosen)
        )
        batch = contexts_per_batch(documents.shape[1], self._device)
        with torch.inference_mode():
            for part, *vectors in context_vectors(self._queries, self._documents, lists.queries, documents, batch):
                query_vectors, document_vectors, labels, real = (
                    torch.from_numpy(array).to(self._device) for array in (*vectors, true[part], mask[part])
                )
                shares = (
                    targets(query_vectors.float(), document_vectors.float(), labels, real, self._config).cpu().numpy()
                )
                np.put_along_axis(similar[part], places[part], shares, 1)
        return similar

    def _context(self, mask: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return the candidates (Q, N) among which similarities are computed."""
        if self._config.context is None:
            return mask
        unlabelled = mask & ~truth
        room = self._config.context - truth.sum(1, keepdims=True)
        return truth | (unlabelled & (np.cumsum(unlabelled, 1) <= room))
