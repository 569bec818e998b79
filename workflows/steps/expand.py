"""Expand queries: from what they retrieve themselves, with a language model, or from a file (Chuang et al., 2023,
chapter 3).

Each step writes the expansions, and a collection in which each expanded query is a query
(`components.expansion.expansions`), for BM25 or a retriever to retrieve for as usual.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config, UserError
from sparring.components.data import own_documents
from sparring.components.data.groups import queries_of, query_ids_of
from sparring.components.data.tables import ANSWER_RANKS, EXPANSIONS, QRELS, QUERIES, RANKING, TEXT, read, write
from sparring.components.expansion import expansions, feedback
from sparring.components.expansion.query_choice import CHOICE
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.files import remove, replacing
from sparring.components.models.generator_configs import GenerateConfig
from sparring.components.sources.base import locate
from sparring.components.sources.reading import plain_or_gz
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.distributed.site import Site
from sparring.workflows.store.cost import Cost, Expanded, Made, ModelTask, Need, Ranking, Sizes, Work, expanded_sizes
from sparring.workflows.store.dag import Description

QUERIES_A_SHARD = 256
"""In one shard; changes no result."""


class FileConfig(Config):
    """Expansions in a file, such as those that Castorini released of their GAR-T5."""

    path: str
    """A file of JSON lines, plain or .gz: `{"_id": query, "expansions": {field: text or texts}}`."""
    field: str
    """Which of a line's expansions: of GAR-T5's, `answers`, `sentences` or `titles`."""
    separator: str | None = None
    """What separates expansions in one text. Null where a text is one expansion, as GAR-T5's are issued, though ` *** `
    stands between several titles or answers in one."""
    number: int | None = Field(None, ge=1)
    """Only the first so many of a query; null for all."""

    def files(self) -> dict[str, Path]:
        """The file of expansions."""
        return {self.path: plain_or_gz(locate(self.path))}


ADDED = {"terms": 1.4, "sentence": 25.0, "title": 6.0}
"""Tokens of a term, a sentence and a title in the mean, as an estimate takes them."""
IN_FILE = 15.0
"""The same of an expansion in a file."""
COUNTED = b"counted"
"""The key of a shard's metadata with what was counted while it was made, which a later attempt counts too."""


def _collection_cost(made: Expanded, *work: Work, **more: Any) -> Cost:
    """Two tables with a row for each expansion; documents are those of the original collection."""
    kept = 150.0 * made.count
    own = Work("rows", 10.0 * made.count)
    return Cost(work=(*work, own), makes=made, kept=kept, scratch=kept / 2, objects=4, **more)


def _file_cost(site: Site, *, data: Sizes, splits: list[str], config: FileConfig) -> Cost:
    """Every expansion of the file."""
    return _collection_cost(expanded_sizes(data, splits, config.number or 1, IN_FILE))


def _relevance_cost(
    site: Site, *, data: Sizes, ranking: Ranking, splits: list[str], seed: list[Any], config: RelevanceConfig
) -> Cost:
    """Terms are counted in a sample of the documents, and in each that a query retrieves first."""
    each = ADDED[config.draws] * (config.terms if config.draws == "terms" else 1)
    made = expanded_sizes(data, splits, config.number, each)
    queries = made.count // config.number
    words = float(np.mean(data.document_lengths))
    counted = Work("rows", data.documents + 0.4 * words * min(feedback.SAMPLED, data.documents))
    drawn = Work("rows", queries * (0.8 * words * config.documents + 20.0 * config.number), "map")
    return _collection_cost(made, counted, drawn)


def _model_cost(
    site: Site, *, data: Sizes, models: list[Made], splits: list[str], seed: list[Any], config: GenerateConfig
) -> Cost:
    """Each query is read once, and each expansion written a token at a time."""
    made, shape = expanded_sizes(data, splits, config.number, config.new_tokens), models[0].shape
    read = shape.operations(data.query_lengths) / len(data.query_lengths) / config.number
    beams = (config.beams or config.number) / config.number if config.method == "beam" else 1.0
    task = ModelTask(
        "generating",
        models[0],
        data,
        read + beams * config.new_tokens * shape.operations(np.ones(1)),
        float(config.new_tokens),
        {"precision": config.precision},
        measurable=False,
    )
    advice = "in the profile (--cluster), fewer map.workers or a lower max_tokens_per_pass"
    states = 4.0 * site.cluster.batch_tokens(cuda=site.cuda) * 2 * shape.width * shape.layers
    need = Need("the generator, and keys and values of a pass", 4.0 * shape.parameters + states, "map", advice, True)
    return _collection_cost(made, Work("generating", made.count, "map", task), needs=(need,))


def _concatenated_cost(site: Any, *, data: Sizes, expanded: Expanded) -> Cost:
    """All tokens of a query's expansions as one."""
    added = expanded.number * float(np.mean(expanded.query_lengths) - np.mean(data.query_lengths))
    return _collection_cost(expanded_sizes(data, expanded.queries, 1, added), Work("rows", expanded.count))


def _question_cost(site: Any, *, data: Sizes, expanded: Expanded, splits: list[str]) -> Cost:
    """One expansion more of each query."""
    number = expanded.number + 1
    return _collection_cost(replace(expanded, number=number, queries=expanded_sizes(data, splits, number, 0).queries))


def _joined_cost(
    site: Any, *, data: Sizes, expanded: list[Expanded], rankings: list[Ranking], ranks: list[Expanded]
) -> Cost:
    """The expansions of all, and their rankings."""
    queries = {split: count for one in expanded for split, count in one.queries.items()}
    return _collection_cost(replace(expanded[0], queries=queries), Work("rows", sum(one.rows for one in rankings)))


def _chosen_cost(site: Any, *, data: Sizes, choices: Ranking, split: str) -> Cost:
    """One expansion of each query."""
    return _collection_cost(expanded_sizes(data, [split], 1, IN_FILE))


def _refuses(config: FileConfig) -> None:
    """A file that cannot be read, or lacks the field."""
    expansions.read_expansions(locate(config.path), config.field, config.separator, first=100)


@Description(part="expansions", cost=_file_cost, refuses=_refuses)
def expand_from_file(
    out: Path, cluster: Cluster, *, data: Path, splits: list[str], config: FileConfig
) -> dict[str, Any]:
    """Write the expansions that a file has of the splits' queries. The summary's note says how many have none."""
    path = locate(config.path)
    texts = expansions.read_expansions(path, config.field, config.separator).by_query
    queries = query_ids_of(data, splits).to_pylist()
    rows = [row for query in queries if query in texts for row in expansions.rows(query, texts[query][: config.number])]
    if queries and not rows:
        raise UserError(f"{path}: no expansion of a query of {', '.join(splits)}")
    summary = expansions.write_collection(out, data, pa.Table.from_pylist(rows, schema=EXPANSIONS))
    without = len(queries) - summary["queries"]
    note = f"The file has no expansion of {without:,} of the {len(queries):,} queries, which are as they were asked."
    return {**summary, "not_expanded": without, **({"note": note} if without else {})}


@Description(part="expansions", cost=_relevance_cost)
def expand_by_relevance(
    out: Path,
    cluster: Cluster,
    *,
    data: Path,
    ranking: Path,
    splits: list[str],
    seed: list[Any],
    config: RelevanceConfig,
) -> dict[str, Any]:
    """Write expansions sampled from what the splits' queries retrieve (`components.expansion.relevance_model`).

    A query that retrieves nothing, or nothing that adds to it, has none.
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
        cluster,
        worker=feedback.Sampler,
        gpu=False,
        work=out,
        splits=splits,
        seed=seed,
        config=config,
    )
    remove(out, *feedback.FILES)
    return summary


@Description(part="expansions", version=2, cost=_model_cost)
def expand_by_model(
    out: Path,
    cluster: Cluster,
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
    cuda = cluster.cuda()
    queries = query_ids_of(data, splits).to_pylist()
    folds = [expansions.fold_of(query, len(models)) for query in queries]
    rows = [[row for row, fold in enumerate(folds) if fold == number] for number in range(len(models))]
    return _mapped(
        out,
        data,
        rows,
        cluster,
        worker=Writer,
        gpu=cuda,
        models=[model / "model" for model in models],
        splits=splits,
        seed=seed,
        config=config,
        cuda=cuda,
        batch_tokens=cluster.batch_tokens(cuda=cuda),
    )


def _mapped(
    out: Path, data: Path, folds: list[list[int]], cluster: Cluster, *, worker: type, gpu: bool, **constructor: Any
) -> dict[str, Any]:
    """Have workers expand the queries of some rows, fold by fold, and write the expansions as a collection."""
    shards = [
        Shard(f"part-{fold:03d}-{start:08d}.parquet", len(part), {"fold": fold, "rows": part})
        for fold, rows in enumerate(folds)
        for start in range(0, len(rows), QUERIES_A_SHARD)
        if (part := rows[start : start + QUERIES_A_SHARD])
    ]
    map_shards(
        worker, shards, out=out, cluster=cluster, pool=cluster.map, unit="queries", gpu=gpu, data=data, **constructor
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
    """Generates the expansions of some queries with a language model."""

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


@Description(part="expansions", cost=_concatenated_cost)
def concatenated(out: Path, cluster: Cluster, *, data: Path, expanded: Path) -> dict[str, Any]:
    """Write one expansion a query: all of its expansions one after another (Chuang et al., 2023, Table 3.1,
    `concat`)."""
    table = read(expanded / expansions.FILE, EXPANSIONS)
    whole: dict[str, list[str]] = {}
    for row in table.select(["query_id", "text"]).to_pylist():
        whole.setdefault(row["query_id"], []).append(row["text"])
    rows = [row for query, texts in whole.items() for row in expansions.rows(query, [" ".join(texts)])]
    return expansions.write_collection(out, data, pa.Table.from_pylist(rows, schema=EXPANSIONS))


@Description(part="expansions", cost=_question_cost)
def with_question(out: Path, cluster: Cluster, *, data: Path, expanded: Path, splits: list[str]) -> dict[str, Any]:
    """Write the expansions, and before those of each query of the splits an empty one with the number 0: the question
    as it is."""
    queries = query_ids_of(data, splits)
    nothing = [
        {"doc_id": expansions.expansion_id(query, 0), "title": "", "text": "", "query_id": query, "number": 0}
        for query in queries.to_pylist()
    ]
    table = read(expanded / expansions.FILE, EXPANSIONS)
    whole = pa.concat_tables([pa.Table.from_pylist(nothing, schema=EXPANSIONS), table])
    place = pc.index_in(whole["query_id"], value_set=queries)
    order = pc.sort_indices(
        pa.table({"place": place, "number": whole["number"]}), [("place", "ascending"), ("number", "ascending")]
    )
    return expansions.write_collection(out, data, whole.take(order))


@Description(part="expansions", cost=_joined_cost)
def joined_expansions(
    out: Path, cluster: Cluster, *, data: Path, expanded: list[Path], rankings: list[Path], ranks: list[Path]
) -> dict[str, Any]:
    """Join several generators' expansions of different queries, with `ranking.parquet`, what they retrieve, and
    `ranks.parquet`, their minimum answer ranks. Nothing is generated or retrieved again."""
    tables = [read(path / expansions.FILE, EXPANSIONS) for path in expanded]
    summary = expansions.write_collection(out, data, pa.concat_tables(tables))
    joined = pa.concat_tables([read(path / "ranks.parquet", ANSWER_RANKS) for path in ranks])
    write(out / "ranks.parquet", joined, ANSWER_RANKS)
    with replacing(out / "ranking.parquet") as to, pq.ParquetWriter(to, RANKING) as writer:
        for path in rankings:
            for batch in pq.ParquetFile(path / "ranking.parquet").iter_batches(columns=RANKING.names):
                writer.write_batch(batch)
    return summary


@Description(part="query reranking", cost=_chosen_cost)
def chosen_queries(out: Path, cluster: Cluster, *, data: Path, choices: Path, split: str) -> dict[str, Any]:
    """Write a collection in which each query of the split is the question with its chosen expansion.

    `choices` is what `choose` wrote; a query without a choice stays as it is. Documents are the same file.
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
