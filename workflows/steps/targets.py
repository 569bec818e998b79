"""Take from documents the texts that generators learn to write (GAR; Chuang et al., 2023, section 3.2.1)."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import UserError
from sparring.components.data.answers import Mode
from sparring.components.data.groups import queries_of
from sparring.components.data.tables import ANSWERED, DOCUMENTS, GROUPS, QRELS, QUERIES, TEXT, read, write
from sparring.components.expansion import expansions
from sparring.components.expansion.targets import MOST_TITLES, TargetConfig, joined, sentence
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description


@Description(part="expansions")
def targets(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranking: Path | None,
    splits: list[str],
    leave_out: list[int] | None,
    mode: Mode,
    config: TargetConfig,
) -> dict[str, Any]:
    """Write a collection whose documents are the targets, and a group for each query that has one.

    A target has the id `query#0`. If documents are chosen by answer, `ranking` is one that `answering` wrote.
    `leave_out` is (fold, number of folds): a generator that has not seen a fold can write for it (Chuang et al., 2023,
    section 3.3.3). Queries without a target are left out and counted.
    """
    queries = queries_of(data, splits, QUERIES.names)
    if leave_out is not None:
        fold, folds = leave_out
        kept = [expansions.fold_of(query, folds) != fold for query in queries["query_id"].to_pylist()]
        queries = queries.filter(pa.array(kept, pa.bool_()))
    named: dict[str, list[str]] = {} if config.kind == "answer" else _named(data, ranking, config)
    documents = _documents(data, named, "title" if config.kind == "title" else "text")
    rows = []
    for query in queries.to_pylist():
        texts = [documents[name] for name in named.get(query["query_id"], []) if name in documents]
        if config.kind == "answer":
            text = joined(query["answers"], config.several)
        elif config.kind == "title":
            text = joined(texts, config.several, MOST_TITLES)
        else:
            text = joined([sentence(text, query["answers"], mode) for text in texts], "first")
        if text:
            rows.append({"query_id": query["query_id"], "doc_id": f"{query['query_id']}#0", "text": text})
    if not rows:
        raise UserError(f"targets: kind: {config.kind}: no query of {', '.join(splits)} has one")
    _write(out, pa.Table.from_pylist(rows), queries)
    return {"targets": len(rows), "of": len(queries)}


def _named(data: Path, ranking: Path | None, config: TargetConfig) -> dict[str, list[str]]:
    """Return the ids of the documents that each query's target comes from, all of them for joined titles."""
    if config.documents == "judged":
        pairs = read(data / "qrels.parquet", QRELS, filters=[("relevance", ">", 0)])
    else:
        if ranking is None:
            raise UserError("`targets.documents: answering` needs a ranking, and this step has none. Use `judged`.")
        pairs = read(ranking / "ranking.parquet", ANSWERED, filters=[("hit", "=", True)])
        pairs = pairs.sort_by([("query_id", "ascending"), ("rank", "ascending")])
    all_documents = config.kind == "title" and config.several == "joined"
    named: dict[str, list[str]] = {}
    for query, document in zip(pairs["query_id"].to_pylist(), pairs["doc_id"].to_pylist(), strict=True):
        if all_documents or query not in named:
            named.setdefault(query, []).append(document)
    return named


def _documents(data: Path, named: dict[str, list[str]], column: str) -> dict[str, str]:
    """Read the title or text of the named documents, by id, in one pass over the collection."""
    documents: dict[str, str] = {}
    sought = pa.array({name for ids in named.values() for name in ids}, TEXT)
    if len(sought):
        for batch in pq.ParquetFile(data / "documents.parquet").iter_batches(columns=["doc_id", column]):
            rows = batch.filter(pc.is_in(batch["doc_id"], value_set=sought))
            documents.update(zip(rows["doc_id"].to_pylist(), rows[column].to_pylist(), strict=True))
    return documents


def _write(out: Path, rows: pa.Table, queries: pa.Table) -> None:
    """Write documents, queries and judgements of a collection, and groups with a single candidate."""
    count, lists = len(rows), [[doc_id] for doc_id in rows["doc_id"].to_pylist()]
    splits = queries["split"].take(pc.index_in(rows["query_id"], value_set=queries["query_id"].combine_chunks()))
    tables = {
        "documents": (DOCUMENTS, {"doc_id": rows["doc_id"], "title": [""] * count, "text": rows["text"]}),
        "queries": (QUERIES, {name: queries[name] for name in QUERIES.names}),
        "qrels": (
            QRELS,
            {"query_id": rows["query_id"], "doc_id": rows["doc_id"], "relevance": [1] * count, "split": splits},
        ),
        "groups": (
            GROUPS,
            {
                "query_id": rows["query_id"],
                "visit": [0] * count,
                "doc_ids": lists,
                "targets": [[1.0]] * count,
                "teacher": pa.nulls(count, GROUPS.field("teacher").type),
            },
        ),
    }
    for name, (schema, columns) in tables.items():
        arrays = [
            column.cast(field.type) if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column, field.type)
            for field, column in zip(schema, (columns[name] for name in schema.names), strict=True)
        ]
        write(out / f"{name}.parquet", pa.table(arrays, schema=schema), schema)
