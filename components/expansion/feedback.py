"""Sampling expansions of queries from what they retrieve (`components.expansion.relevance_model`): gathering the texts,
counting terms, and a worker's share of the queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.compute.processor import configure_process
from sparring.components.data.groups import queries_of
from sparring.components.data.tables import EXPANSIONS, TEXT
from sparring.components.expansion import expansions, relevance_model
from sparring.components.expansion.relevance_model import Document, Frequencies, RelevanceConfig
from sparring.components.files import read_json, replacing, write_array, write_json
from sparring.components.rng import keyed_rng

SAMPLED = 100_000
"""Number of documents in which terms are counted, spread over the collection. It is enough to know the common terms."""
TEXTS, ROWS, OFFSETS, COUNTS = "feedback.arrow", "feedback-rows.arrow", "feedback-offsets.npy", "frequencies.json"
FILES = (TEXTS, ROWS, OFFSETS, COUNTS)
"""Files that workers read. They are made once for all workers."""


def gather(out: Path, data: Path, ranking: pa.Table, queries: pa.Array) -> None:
    """Write the part of a ranking that workers read without holding all of it.

    One pass over the collection writes the texts of the retrieved documents. A second table holds, query by query in
    the order of `queries`, the rows of its documents among these texts and their scores.
    """
    if (out / OFFSETS).exists():
        return
    retrieved, ids = pc.unique(ranking["doc_id"]), [pa.array([], TEXT)]
    schema = pa.schema([("title", TEXT), ("text", TEXT)])
    with _arrow_file(out / TEXTS, schema) as writer:
        columns = ["doc_id", *schema.names]
        for batch in pq.ParquetFile(data / "documents.parquet").iter_batches(columns=columns):
            part = pa.Table.from_batches([batch.filter(pc.is_in(batch["doc_id"], value_set=retrieved))])
            ids += part["doc_id"].cast(TEXT).chunks
            writer.write_table(part.select(schema.names).cast(schema))
    places = pc.index_in(ranking["query_id"].combine_chunks(), value_set=queries).to_numpy(zero_copy_only=False)
    order = np.argsort(places, kind="stable")
    rows = pc.index_in(ranking["doc_id"].combine_chunks(), value_set=pa.concat_arrays(ids))
    feedback = pa.table({"row": rows, "score": ranking["score"]}).take(pa.array(order))
    with _arrow_file(out / ROWS, feedback.schema) as writer:
        writer.write_table(feedback)
    write_array(out / OFFSETS, np.searchsorted(places[order], np.arange(len(queries) + 1)))


@contextmanager
def _arrow_file(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Open a file of batches that appears whole or not at all."""
    with replacing(path) as temporary, pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        yield writer


def count(path: Path, data: Path) -> None:
    """Write the number of documents that have each term."""
    if not path.exists():
        write_json(path, frequencies(data)._asdict())


def frequencies(data: Path) -> Frequencies:
    """Count the documents that have each term."""
    return relevance_model.frequencies(_sampled(data))


def read_frequencies(path: Path) -> Frequencies:
    """Read what `count` wrote."""
    return Frequencies(**read_json(path))


def _sampled(data: Path) -> Iterator[str]:
    """Yield title and text of documents at equal distances in the collection."""
    file = pq.ParquetFile(data / "documents.parquet")
    step, offset = -(-file.metadata.num_rows // SAMPLED), 0
    for batch in file.iter_batches(columns=["title", "text"]):
        titles, texts = (column.to_pylist() for column in batch.columns)
        yield from (f"{titles[row]} {texts[row]}" for row in range(-offset % step, len(texts), step))
        offset += len(texts)


class Sampler:
    """Samples the expansions of some queries from what they retrieve."""

    def __init__(
        self, *, work: Path, data: Path, splits: list[str], seed: list[Any], config: RelevanceConfig, threads: int
    ) -> None:
        configure_process(threads)
        self._config, self._seed = config, seed
        self._queries = queries_of(data, splits, ["query_id", "text"])
        self._texts, self._rows = (
            pa.ipc.open_file(pa.memory_map(str(work / name))).read_all() for name in (TEXTS, ROWS)
        )
        self._offsets = np.load(work / OFFSETS)
        self._frequencies = read_frequencies(work / COUNTS)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the expansions of a task's queries."""
        queries, rows = self._queries.take(task["rows"]).to_pylist(), []
        for query, documents in zip(queries, self._feedback(task["rows"]), strict=True):
            drawn = relevance_model.expansions(
                query["text"],
                documents,
                self._frequencies,
                self._config,
                partial(keyed_rng, *self._seed, "expand", query["query_id"]),
            )
            rows += expansions.rows(query["query_id"], drawn)
        pq.write_table(pa.Table.from_pylist(rows, schema=EXPANSIONS), path)

    def _feedback(self, places: list[int]) -> Iterator[list[Document]]:
        """Yield the feedback documents of each query."""
        spans = [self._offsets[place : place + 2].tolist() for place in places]
        rows = pa.concat_tables([self._rows.slice(start, stop - start) for start, stop in spans])
        texts = self._texts.take(rows["row"].combine_chunks())
        columns = (texts["title"], texts["text"], rows["score"])
        documents = (Document(*fields) for fields in zip(*(column.to_pylist() for column in columns), strict=True))
        return (list(islice(documents, stop - start)) for start, stop in spans)
