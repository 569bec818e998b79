"""Expand queries from what they retrieve themselves, with a language model, or from a file (Chuang et al., 2023,
chapter 3).

Each step writes the expansions, and a collection in which each expanded query is a query
(`components.expansion.expansions`). BM25 or a retriever then retrieves for that collection as usual.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config, UserError
from sparring.components.data import own_documents
from sparring.components.data.groups import queries_of, query_ids_of
from sparring.components.data.tables import ANSWER_RANKS, EXPANSIONS, QRELS, QUERIES, RANKING, TEXT, pieces, read, write
from sparring.components.expansion import expansions, feedback
from sparring.components.expansion.query_choice import CHOICE
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.files import remove, replacing
from sparring.components.models.generator_configs import GenerateConfig
from sparring.components.sources.base import locate
from sparring.components.sources.reading import plain_or_gz
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store.dag import Description

QUERIES_A_SHARD = 256
"""Number of queries in one shard. It changes no result."""


class FileConfig(Config):
    """Expansions in a file, such as those that Castorini released of their GAR-T5."""

    path: str
    """File of JSON lines, plain or .gz: `{"_id": query, "expansions": {field: text or texts}}`."""
    field: str
    """Name of the expansions in each line. GAR-T5's are `answers`, `sentences` and `titles`."""
    separator: str | None = None
    """Separator of the expansions in one text. Null takes each text as one expansion. GAR-T5's expansions are issued
    like that, though ` *** ` separates several titles or answers in one text."""
    number: int | None = Field(None, ge=1)
    """Number of first expansions of each query to use. Null uses all."""

    def files(self) -> dict[str, Path]:
        """Return the file of expansions."""
        return {self.path: plain_or_gz(locate(self.path))}


COUNTED = b"counted"
"""Key of a shard's metadata with the counts made while the shard was written. A later attempt adds them too."""


def _refuses(config: FileConfig) -> None:
    """Refuse a file that cannot be read, or that lacks the field."""
    expansions.read_expansions(locate(config.path), config.field, config.separator, first=100)


@Description(part="expansions", refuses=_refuses)
def expand_from_file(
    out: Path, machine: Machine, *, data: Path, splits: list[str], config: FileConfig
) -> dict[str, Any]:
    """Write the expansions that a file has for the splits' queries. The summary's note says how many queries have
    none."""
    path = locate(config.path)
    texts = expansions.read_expansions(path, config.field, config.separator).by_query
    queries = query_ids_of(data, splits).to_pylist()
    rows = [row for query in queries if query in texts for row in expansions.rows(query, texts[query][: config.number])]
    if queries and not rows:
        raise UserError(f"{path}: it has no expansion of any query of {', '.join(splits)}")
    summary = expansions.write_collection(out, data, pa.Table.from_pylist(rows, schema=EXPANSIONS))
    without = len(queries) - summary["queries"]
    note = f"The file has no expansion for {without:,} of the {len(queries):,} queries, which stay as they are."
    return {**summary, "not_expanded": without, **({"note": note} if without else {})}


@Description(part="expansions")
def expand_by_relevance(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranking: Path,
    splits: list[str],
    seed: list[Any],
    config: RelevanceConfig,
) -> dict[str, Any]:
    """Write expansions sampled from what the splits' queries retrieve (`components.expansion.relevance_model`).

    A query that retrieves nothing, or nothing that adds words to it, has no expansion.
    """
    query_table = queries_of(data, splits, ["query_id", "text"])
    table = read(ranking / "ranking.parquet", RANKING, filters=[("rank", "<=", config.documents)])
    queries = query_table["query_id"].combine_chunks()
    table = table.filter(pc.is_in(table["query_id"], value_set=queries))
    feedback.gather(out, data, table, queries)
    feedback.count(out / feedback.COUNTS, data)
    summary = _mapped(
        out,
        data,
        [list(range(len(query_table)))],
        machine,
        worker=feedback.Sampler,
        gpu=False,
        work=out,
        splits=splits,
        seed=seed,
        config=config,
    )
    remove(out, *feedback.FILES)
    return summary


@Description(part="expansions", version=2)
def expand_by_model(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    models: list[Path],
    splits: list[str],
    seed: list[Any],
    config: GenerateConfig,
) -> dict[str, Any]:
    """Write expansions that a language model generates from the splits' queries (`components.models.generator`).

    With several models, each writes for the fold of the queries that it was not trained on (Chuang et al., 2023,
    section 3.3.3).
    """
    cuda = machine.cuda
    queries = query_ids_of(data, splits).to_pylist()
    folds = [expansions.fold_of(query, len(models)) for query in queries]
    rows = [[row for row, fold in enumerate(folds) if fold == number] for number in range(len(models))]
    return _mapped(
        out,
        data,
        rows,
        machine,
        worker=Writer,
        gpu=cuda,
        models=[model / "model" for model in models],
        splits=splits,
        seed=seed,
        config=config,
        cuda=cuda,
        batch_tokens=machine.batch_tokens,
    )


def _mapped(
    out: Path, data: Path, folds: list[list[int]], machine: Machine, *, worker: type, gpu: bool, **constructor: Any
) -> dict[str, Any]:
    """Let workers expand the queries in some rows, fold by fold, and write the expansions as a collection."""
    shards = [
        Shard(f"part-{fold:03d}-{start:08d}.parquet", len(part), {"fold": fold, "rows": part})
        for fold, rows in enumerate(folds)
        for start in range(0, len(rows), QUERIES_A_SHARD)
        if (part := rows[start : start + QUERIES_A_SHARD])
    ]
    map_shards(
        worker,
        shards,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="queries",
        gpu=gpu,
        data=data,
        **constructor,
    )
    parts = [pq.read_table(out / shard.file) for shard in shards]
    counted = Counter[str]()
    for part in parts:
        counted.update(json.loads((part.schema.metadata or {}).get(COUNTED, "{}")))
    table = pa.concat_tables([EXPANSIONS.empty_table(), *parts])
    queries = sum(map(len, folds))
    if queries and not len(table):
        raise UserError(f"none of {queries} queries has an expansion")
    summary = expansions.write_collection(out, data, table)
    remove(out, "part-*.parquet")
    return {**summary, "not_expanded": queries - summary["queries"], **counted}


class Writer:
    """A worker that generates the expansions of some queries with a language model."""

    def __init__(
        self,
        *,
        data: Path,
        models: list[Path],
        splits: list[str],
        seed: list[Any],
        config: GenerateConfig,
        batch_tokens: int,
        cuda: bool,
        threads: int,
    ) -> None:
        configure_process(threads)
        self._queries = queries_of(data, splits, ["query_id", "text"])
        self._models, self._device = models, "cuda" if cuda else "cpu"
        self._config, self._seed, self._batch_tokens = config, seed, batch_tokens
        self._fold, self._generator = -1, cast(Any, None)

    def _of(self, fold: int) -> Any:
        """Return the generator of a fold of the queries. Only one generator is in memory."""
        from sparring.components.models.generator import Generator

        if fold != self._fold:
            self._generator = None
            self._fold, self._generator = fold, Generator.load(self._models[fold]).eval().to(self._device)
        return self._generator

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the expansions of some queries, with the number of tokens that were generated for them."""
        queries = self._queries.take(task["rows"])
        ids, texts = queries["query_id"].to_pylist(), queries["text"].to_pylist()
        written = self._of(task["fold"]).expansions(
            texts,
            self._config,
            keys=[(*self._seed, "expand", query_id) for query_id in ids],
            batch_tokens=self._batch_tokens,
        )
        rows = [
            row
            for query_id, generated in zip(ids, written.texts, strict=True)
            for row in expansions.rows(query_id, generated)
        ]
        counted = {"tokens": written.tokens, "generated": sum(map(len, written.texts))}
        schema = EXPANSIONS.with_metadata({COUNTED: json.dumps(counted)})
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


@Description(part="expansions")
def concatenated(out: Path, machine: Machine, *, data: Path, expanded: Path) -> dict[str, Any]:
    """Write one expansion per query, which joins all of its expansions (Chuang et al., 2023, Table 3.1, `concat`)."""
    table = read(expanded / expansions.FILE, EXPANSIONS)
    return expansions.write_collection(out, data, expansions.concatenated(table))


@Description(part="expansions")
def with_question(out: Path, machine: Machine, *, data: Path, expanded: Path, splits: list[str]) -> dict[str, Any]:
    """Write the expansions, and before those of each query of the splits an empty expansion with the number 0. The
    empty expansion stands for the question as it is."""
    table = read(expanded / expansions.FILE, EXPANSIONS)
    return expansions.write_collection(out, data, expansions.with_questions(table, query_ids_of(data, splits)))


@Description(part="expansions")
def joined_expansions(
    out: Path, machine: Machine, *, data: Path, expanded: list[Path], rankings: list[Path], ranks: list[Path]
) -> dict[str, Any]:
    """Join several generators' expansions of different queries. `ranking.parquet` has what they retrieve, and
    `ranks.parquet` their minimum answer ranks. Nothing is generated or retrieved again."""
    tables = [read(path / expansions.FILE, EXPANSIONS) for path in expanded]
    summary = expansions.write_collection(out, data, pa.concat_tables(tables))
    joined = pa.concat_tables([read(path / "ranks.parquet", ANSWER_RANKS) for path in ranks])
    write(out / "ranks.parquet", joined, ANSWER_RANKS)
    with replacing(out / "ranking.parquet") as to, pq.ParquetWriter(to, RANKING) as writer:
        for path in rankings:
            for piece in pieces(path / "ranking.parquet", RANKING):
                writer.write_table(piece)
    return summary


@Description(part="query reranking")
def chosen_queries(out: Path, machine: Machine, *, data: Path, choices: Path, split: str) -> dict[str, Any]:
    """Write a collection in which each query of the split is the question with its chosen expansion.

    `choices` is what `choose` wrote. A query without a choice stays as it is. The file of documents is the same.
    """
    queries = read(data / "queries.parquet", QUERIES, filters=[("split", "=", split)])
    chosen = read(choices / "choices.parquet", CHOICE, columns=["query_id", "text"])
    texts = dict(zip(chosen["query_id"].to_pylist(), chosen["text"].to_pylist(), strict=True))
    expanded = [
        expansions.expand_query(text, texts[query]) if texts.get(query) else text
        for query, text in zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True)
    ]
    write(out / "queries.parquet", queries.set_column(1, "text", pa.array(expanded, TEXT)), QUERIES)
    write(out / "qrels.parquet", read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)]), QRELS)
    with replacing(out / "documents.parquet") as path:
        expansions.link_or_copy(data / "documents.parquet", path)
    own_documents.carry(data, out)
    return {"queries": len(queries), "expanded": len(texts)}
