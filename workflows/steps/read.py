"""Reading: training rows for a reader, its answers to questions, and how right they are (paper 002, section 3.4.6)."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components import draws
from components.config import UserError
from components.exact_match import MEASURES, best
from components.files import remove, write_array
from components.groups import ids_of, measured, queries_of, rows_of
from components.measures import PER_QUERY, means
from components.processor import settle
from components.reader_configs import ReadConfig
from components.tables import DOCUMENTS, GROUPS, QRELS, QUERIES, RANKING, read, write
from workflows.cluster import Cluster
from workflows.shards import map_shards, runs

ANSWERS = "answers.parquet"
WRITTEN = pa.schema([("query_id", pa.string()), ("answer", pa.string())])
"""What a reader says of a query; empty where it had nothing to read."""


def reading_groups(
    out: Path, cluster: Cluster, *, data: Path, ranking: Path, split: str, passages: int, visits: int, seed: list[Any]
) -> dict[str, Any]:
    """Write what a reader learns from: `groups.parquet`, questions with the first passages of their ranking, and the
    collection of their answers, whose documents are the groups' answers in turn.

    A question stands there once for each visit, each time with a draw of its answers, as in the released code.
    Questions without an answer or without a passage are left out and counted.
    """
    asked = queries_of(data, [split], QUERIES.names)
    names = asked["query_id"].combine_chunks()
    found = read(ranking / "ranking.parquet", RANKING, filters=[("rank", "<=", passages)])
    found = found.filter(pc.is_in(found["query_id"], value_set=names))
    lists: dict[str, list[str]] = {}
    for query, document in zip(found["query_id"].to_pylist(), found["doc_id"].to_pylist(), strict=True):
        lists.setdefault(query, []).append(document)
    able = [row for row in asked.to_pylist() if row["answers"] and row["query_id"] in lists]
    if not able:
        raise UserError(f"split {split!r}: no query has both an answer and a passage to read")
    groups, answers = [], []
    for visit in range(visits):
        for row in able:
            query, right = row["query_id"], row["answers"]
            chosen = right[draws.number(*seed, "answer", query, visit) % len(right)]
            own = lists[query]
            groups.append({"query_id": query, "visit": visit, "doc_ids": own, "targets": [0.0] * len(own),
                           "teacher": None})  # fmt: skip
            answers.append({"doc_id": f"{query}#{visit}", "title": "", "text": chosen})
    write(out / "groups.parquet", pa.Table.from_pylist(groups, schema=GROUPS), GROUPS)
    write(out / "documents.parquet", pa.Table.from_pylist(answers, schema=DOCUMENTS), DOCUMENTS)
    write(out / "queries.parquet", asked.select(QUERIES.names), QUERIES)
    write(out / "qrels.parquet", QRELS.empty_table(), QRELS)
    return {"groups": len(groups), "questions": len(able), "of": len(asked)}


def read_answers(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, ranking: Path, split: str, reader: Path,
    config: ReadConfig,
) -> dict[str, Any]:  # fmt: skip
    """Write `answers.parquet`, what a reader says of the split's queries that have an answer, out of the first
    passages of their ranking."""
    asked = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers", "split"])
    has = pc.and_(pc.equal(asked["split"], split), pc.greater(pc.list_value_length(asked["answers"]), 0))
    names = asked.filter(has)["query_id"].combine_chunks()
    if config.queries is not None:
        names = names.filter(pc.is_in(names, value_set=pa.array(measured(data, split, config.queries), pa.string())))
    if not len(names):
        raise UserError(f"passages: a reader's answers are held against right ones, and no query of {split!r} has one")
    table = read(ranking / "ranking.parquet", RANKING, filters=[("rank", "<=", config.passages)])
    at = pc.index_in(table["query_id"], value_set=names)
    table, places = table.filter(pc.is_valid(at)), at.drop_null().to_numpy()
    order = np.lexsort((table["rank"].to_numpy(), places))
    documents = rows_of(table["doc_id"], ids_of(data / "documents.parquet", "doc_id"), what=str(ranking))
    queries = rows_of(names, ids_of(data / "queries.parquet", "query_id"), what=str(data))
    write_array(out / "pairs.npy", np.stack([queries[places[order]], documents[order]], 1))
    write_array(out / "offsets.npy", np.searchsorted(places[order], np.arange(len(names) + 1)))
    shards = runs(len(names), config.shard, "part-{:05d}.parquet")
    cuda = cluster.cuda()
    counted = map_shards(
        Answerer, shards, out=out, cluster=cluster, pool=cluster.map, unit="questions", gpu=cuda, tokens=tokens,
        model=reader / "model", work=out, config=config, batch_tokens=cluster.tokens_at_once(cuda=cuda), cuda=cuda,
    )  # fmt: skip
    written = pa.concat_tables([pq.read_table(out / shard.file) for shard in shards])["answer"]
    write(out / ANSWERS, pa.table([names, written], names=WRITTEN.names), WRITTEN)
    remove(out, "pairs.npy", "offsets.npy", "part-*.parquet")
    return {"queries": len(names), "pairs": len(table), **counted}


class Answerer:
    """A reader that answers runs of questions."""

    def __init__(
        self, *, tokens: Path, model: Path, work: Path, config: ReadConfig, batch_tokens: int, cuda: bool, threads: int
    ) -> None:
        import torch

        from components.gradients import autocast
        from components.reader import Reader, Readings
        from components.text import TokenStore

        settle(threads)
        self._device = torch.device("cuda" if cuda else "cpu")
        self._reader = Reader.load(model).eval().to(self._device)
        self._readings = Readings(self._reader, TokenStore(tokens, model, pairs=False))
        self._pairs, self._offsets = np.load(work / "pairs.npy", mmap_mode="r"), np.load(work / "offsets.npy")
        self._config, self._batch_tokens, self._autocast = config, batch_tokens, autocast

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the answers to some questions."""
        from components.reader import answered

        cuts = self._offsets[task["start"] : task["stop"] + 1]
        questions = [np.array(self._pairs[a:b]) for a, b in pairwise(cuts)]
        with self._autocast(self._device, self._config.precision):
            texts = answered(
                self._reader, self._readings, questions, new_tokens=self._config.new_tokens,
                batch_tokens=self._batch_tokens, device=self._device,
            )  # fmt: skip
        pq.write_table(pa.table({"answer": pa.array(texts, pa.string())}), path)


def evaluate_answers(out: Path, cluster: Cluster, *, data: Path, answers: Path) -> dict[str, Any]:
    """Write `per_query.parquet`: exact match and F1 of each answer that a reader wrote (`components.exact_match`)."""
    written = read(answers / ANSWERS, WRITTEN)
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers"])
    right = queries["answers"].take(pc.index_in(written["query_id"], value_set=queries["query_id"].combine_chunks()))
    pairs = list(zip(written["answer"].to_pylist(), right.to_pylist(), strict=True))
    tables = [
        pa.table(
            [written["query_id"], pa.array([name] * len(pairs)), pa.array([best(measure, *pair) for pair in pairs])],
            names=PER_QUERY.names,
        )
        for name, measure in MEASURES.items()
    ]
    values = pa.concat_tables(tables)
    write(out / "per_query.parquet", values, PER_QUERY)
    return {"measures": means(values), "queries": len(pairs)}
