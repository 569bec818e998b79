"""Training rows for a reader, its answers to questions, and their measures (Chuang et al., 2023, section 3.4.6)."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.compute.processor import configure_process
from sparring.components.config import UserError
from sparring.components.data.groups import ids_of, queries_of, rows_of
from sparring.components.data.tables import DOCUMENTS, GROUPS, QRELS, QUERIES, RANKING, TEXT, read, write
from sparring.components.evaluation.exact_match import MEASURES, best_over_answers
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE, means
from sparring.components.files import remove, write_array
from sparring.components.models.reader_configs import ReadConfig
from sparring.components.rng import keyed_int, keyed_sample
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import map_shards, row_shards
from sparring.workflows.store.dag import Description

ANSWERS = "answers.parquet"
WRITTEN = pa.schema([("query_id", TEXT), ("answer", TEXT)])
"""Columns of a reader's answers to queries. The answer is empty if the reader had nothing to read."""


def _refuses(data: Path, split: str) -> None:
    """Refuse a split without answers."""
    answers = queries_of(data, [split], ["answers"])["answers"]
    if not pc.any(pc.greater(pc.list_value_length(answers), 0)).as_py():
        raise UserError(f"split {split!r}: no query has an answer to compare the reader's answers with")


@Description(part="reading", refuses=_refuses)
def reading_groups(
    out: Path, machine: Machine, *, data: Path, ranking: Path, split: str, passages: int, visits: int, seed: list[Any]
) -> dict[str, Any]:
    """Write the rows that a reader is trained on. `groups.parquet` has questions with the first passages of their
    ranking. A collection beside it has the groups' answers as its documents, in the same order.

    Each visit of a question samples one of its answers, as in the released code. Questions without an answer or without
    a passage are left out and counted.
    """
    _refuses(data, split)
    queries = queries_of(data, [split], QUERIES.names)
    names = queries["query_id"].combine_chunks()
    first = read(ranking / "ranking.parquet", RANKING, filters=[("rank", "<=", passages)])
    first = first.filter(pc.is_in(first["query_id"], value_set=names))
    lists: dict[str, list[str]] = {}
    for query, document in zip(first["query_id"].to_pylist(), first["doc_id"].to_pylist(), strict=True):
        lists.setdefault(query, []).append(document)
    able = [row for row in queries.to_pylist() if row["answers"] and row["query_id"] in lists]
    if not able:
        raise UserError(f"split {split!r}: no query has both an answer and a passage to read")
    groups, answers = [], []
    for visit in range(visits):
        for row in able:
            query, right = row["query_id"], row["answers"]
            chosen = right[keyed_int(*seed, "answer", query, visit) % len(right)]
            retrieved = lists[query]
            groups.append(
                {
                    "query_id": query,
                    "visit": visit,
                    "doc_ids": retrieved,
                    "targets": [0.0] * len(retrieved),
                    "teacher": None,
                }
            )
            answers.append({"doc_id": f"{query}#{visit}", "title": "", "text": chosen})
    write(out / "groups.parquet", pa.Table.from_pylist(groups, schema=GROUPS), GROUPS)
    write(out / "documents.parquet", pa.Table.from_pylist(answers, schema=DOCUMENTS), DOCUMENTS)
    write(out / "queries.parquet", queries.select(QUERIES.names), QUERIES)
    write(out / "qrels.parquet", QRELS.empty_table(), QRELS)
    return {"groups": len(groups), "questions": len(able), "of": len(queries)}


@Description(part="reading", refuses=_refuses)
def read_answers(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    tokens: Path,
    ranking: Path,
    split: str,
    reader: Path,
    config: ReadConfig,
) -> dict[str, Any]:
    """Write `answers.parquet`: a reader's answers to the split's queries that have a right answer. The reader reads the
    first passages of each query's ranking."""
    _refuses(data, split)
    query_table = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers", "split"])
    answerable = pc.and_(
        pc.equal(query_table["split"], split), pc.greater(pc.list_value_length(query_table["answers"]), 0)
    )
    names = query_table.filter(answerable)["query_id"].combine_chunks()
    if config.queries is not None:
        sample = pa.array(keyed_sample(names.to_pylist(), config.queries, "measured"), TEXT)
        names = names.filter(pc.is_in(names, value_set=sample))
    table = read(ranking / "ranking.parquet", RANKING, filters=[("rank", "<=", config.passages)])
    query_places = pc.index_in(table["query_id"], value_set=names)
    table, places = table.filter(pc.is_valid(query_places)), query_places.drop_null().to_numpy()
    order = np.lexsort((table["rank"].to_numpy(), places))
    documents = rows_of(table["doc_id"], ids_of(data / "documents.parquet", "doc_id"), source=str(ranking))
    queries = rows_of(names, ids_of(data / "queries.parquet", "query_id"), source=str(data))
    write_array(out / "pairs.npy", np.stack([queries[places[order]], documents[order]], 1))
    write_array(out / "offsets.npy", np.searchsorted(places[order], np.arange(len(names) + 1)))
    shards = row_shards(len(names), config.shard, "part-{:05d}.parquet")
    cuda = machine.cuda
    counted = map_shards(
        Answerer,
        shards,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="questions",
        gpu=cuda,
        tokens=tokens,
        model=reader / "model",
        work=out,
        config=config,
        batch_tokens=machine.batch_tokens,
        cuda=cuda,
    )
    written = pa.concat_tables([pq.read_table(out / shard.file) for shard in shards])["answer"]
    write(out / ANSWERS, pa.table([names, written], names=WRITTEN.names), WRITTEN)
    remove(out, "pairs.npy", "offsets.npy", "part-*.parquet")
    return {"queries": len(names), "pairs": len(table), **counted}


class Answerer:
    """A worker that answers questions with a reader."""

    def __init__(
        self, *, tokens: Path, model: Path, work: Path, config: ReadConfig, batch_tokens: int, cuda: bool, threads: int
    ) -> None:
        import torch

        from sparring.components.models.reader import Reader, ReaderInputs

        configure_process(threads)
        self._device = torch.device("cuda" if cuda else "cpu")
        self._reader = Reader.load(model).eval().to(self._device)
        self._readings = ReaderInputs.stored(self._reader, tokens, model)
        self._pairs, self._offsets = np.load(work / "pairs.npy", mmap_mode="r"), np.load(work / "offsets.npy")
        self._config, self._batch_tokens = config, batch_tokens

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the answers to some questions."""
        from sparring.components.compute.precision import autocast, computed
        from sparring.components.models.reader import answer_questions

        cuts = self._offsets[task["start"] : task["stop"] + 1]
        questions = [np.array(self._pairs[a:b]) for a, b in pairwise(cuts)]
        device = self._device.type
        with autocast(computed(self._config.precision, device), device):
            texts = answer_questions(
                self._reader,
                self._readings,
                questions,
                new_tokens=self._config.new_tokens,
                batch_tokens=self._batch_tokens,
                device=self._device,
            )
        pq.write_table(pa.table({"answer": pa.array(texts, TEXT)}), path)


@Description(part="evaluation")
def evaluate_answers(out: Path, machine: Machine, *, data: Path, answers: Path) -> dict[str, Any]:
    """Write `per_query.parquet`: exact match and F1 of each answer that a reader wrote
    (`components.evaluation.exact_match`)."""
    written = read(answers / ANSWERS, WRITTEN)
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers"])
    right = queries["answers"].take(pc.index_in(written["query_id"], value_set=queries["query_id"].combine_chunks()))
    pairs = list(zip(written["answer"].to_pylist(), right.to_pylist(), strict=True))
    tables = [
        pa.table(
            [
                written["query_id"],
                pa.array([name] * len(pairs)),
                pa.array([best_over_answers(measure, *pair) for pair in pairs]),
            ],
            names=PER_QUERY.names,
        )
        for name, measure in MEASURES.items()
    ]
    values = pa.concat_tables(tables)
    write(out / PER_QUERY_FILE, values, PER_QUERY)
    return {"measures": means(values), "queries": len(pairs)}
