"""Sampling expansions of queries from what they retrieve (`components.expansion.relevance_model`): gathering the texts,
counting terms, and a worker's share of the queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.compute.processor import configure_process
from components.data.groups import queries_of
from components.data.tables import EXPANSIONS, RANKING, read
from components.expansion import expansions, relevance_model
from components.expansion.relevance_model import Document, Frequencies, RelevanceConfig
from components.files import replacing, write_json
from components.rng import keyed_rng

SAMPLED = 100_000
"""How many documents terms are counted in, spread over the collection: enough to know the common terms."""
TEXTS, COUNTS = "feedback.arrow", "frequencies.json"


def gather(path: Path, data: Path, ranking: pa.Table) -> None:
    """The documents of a ranking in one file that workers read without holding it: one pass over the collection."""
    if path.exists():
        return
    wanted = pc.unique(ranking["doc_id"])
    with replacing(path) as temporary, pa.OSFile(str(temporary), "wb") as file:
        schema = pq.read_schema(data / "documents.parquet").empty_table().select(["doc_id", "title", "text"]).schema
        with pa.ipc.new_file(file, schema) as writer:
            for batch in pq.ParquetFile(data / "documents.parquet").iter_batches(columns=schema.names):
                writer.write_batch(batch.filter(pc.is_in(batch["doc_id"], value_set=wanted)))


def count(path: Path, data: Path) -> None:
    """How many documents have which terms, in a file."""
    if path.exists():
        return
    counted = relevance_model.frequencies(_sampled(data))
    write_json(path, {"documents": counted.documents, "counts": counted.counts})


def _sampled(data: Path) -> Iterator[str]:
    """Titles and texts of documents at equal distances in the collection."""
    file = pq.ParquetFile(data / "documents.parquet")
    step, at = -(-file.metadata.num_rows // SAMPLED), 0
    for batch in file.iter_batches(columns=["title", "text"]):
        titles, texts = (column.to_pylist() for column in batch.columns)
        yield from (f"{titles[row]} {texts[row]}" for row in range(-at % step, len(texts), step))
        at += len(texts)


class Sampler:
    """Samples the expansions of some queries from what they retrieve."""

    def __init__(
        self, *, work: Path, data: Path, splits: list[str], ranking: Path, seed: list[Any], config: RelevanceConfig,
        threads: int,
    ) -> None:  # fmt: skip
        configure_process(threads)
        self._config, self._seed, self._ranking = config, seed, ranking / "ranking.parquet"
        self._queries = queries_of(data, splits, ["query_id", "text"])
        self._texts = pa.ipc.open_file(pa.memory_map(str(work / TEXTS))).read_all()
        self._ids = self._texts["doc_id"].combine_chunks()
        self._frequencies = Frequencies(**json.loads((work / COUNTS).read_text()))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the expansions of some queries."""
        asked = self._queries.take(task["rows"]).to_pylist()
        feedback = self._feedback([one["query_id"] for one in asked])
        rows = []
        for one in asked:
            drawn = relevance_model.expansions(
                one["text"], feedback.get(one["query_id"], []), self._frequencies, self._config,
                partial(keyed_rng, *self._seed, "expand", one["query_id"]),
            )  # fmt: skip
            rows += expansions.rows(one["query_id"], drawn)
        pq.write_table(pa.Table.from_pylist(rows, schema=EXPANSIONS), path)

    def _feedback(self, queries: list[str]) -> dict[str, list[Document]]:
        """The feedback documents of some queries."""
        wanted = [("query_id", "in", queries), ("rank", "<=", self._config.documents)]
        table = read(self._ranking, RANKING, columns=["query_id", "doc_id", "score"], filters=wanted)
        texts = self._texts.take(pc.index_in(table["doc_id"].combine_chunks(), value_set=self._ids))
        feedback: dict[str, list[Document]] = {}
        columns = (table["query_id"], texts["title"], texts["text"], table["score"])
        for query, title, text, score in zip(*(column.to_pylist() for column in columns), strict=True):
            feedback.setdefault(query, []).append(Document(title, text, score))
        return feedback
