"""What generators learn to write, taken from documents (GAR; Chuang et al., 2023, section 3.2.1)."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components.config import UserError
from components.data.answers import Mode
from components.data.groups import queries_of
from components.data.tables import ANSWERED, DOCUMENTS, GROUPS, QRELS, QUERIES, read, write
from components.expansion import expansions
from components.expansion.targets import TargetConfig, sentence
from workflows.distributed.cluster import Cluster
from workflows.store.dag import Description


@Description(part="expansions")
def targets(
    out: Path, cluster: Cluster, *, data: Path, ranking: Path | None, splits: list[str], leave_out: list[int] | None,
    mode: Mode, config: TargetConfig,
) -> dict[str, Any]:  # fmt: skip
    """Write a collection whose documents are the targets, and a group for each query that has one.

    A target has the id `query#0`. `ranking`, where documents are chosen by answer, is one that `answering` wrote.
    `leave_out` is (fold, number of folds): a generator that has not seen a fold can write for it (Chuang et al., 2023,
    section 3.3.3). Queries without a target are left out and counted.
    """
    queries = queries_of(data, splits, QUERIES.names)
    if leave_out is not None:
        fold, folds = leave_out
        kept = [expansions.fold_of(query, folds) != fold for query in queries["query_id"].to_pylist()]
        queries = queries.filter(pa.array(kept, pa.bool_()))
    documents = {} if config.kind == "answer" else _documents(data, _first(data, ranking, config))
    rows = []
    for query in queries.to_pylist():
        if config.kind == "answer":
            text = next(iter(query["answers"]), "")
        else:
            document = documents.get(query["query_id"], {"title": "", "text": ""})
            title = config.kind == "title"
            text = document["title"] if title else sentence(document["text"], query["answers"], mode)
        if text := " ".join(text.split()):
            rows.append({"query_id": query["query_id"], "doc_id": f"{query['query_id']}#0", "text": text})
    if not rows:
        raise UserError(f"targets: kind: {config.kind}: no query of {', '.join(splits)} has one")
    _write(out, pa.Table.from_pylist(rows), queries)
    return {"targets": len(rows), "of": len(queries)}


def _first(data: Path, ranking: Path | None, config: TargetConfig) -> pa.Table:
    """(query_id, doc_id) of the document that each query's target comes from."""
    if config.documents == "judged":
        pairs = read(data / "qrels.parquet", QRELS, filters=[("relevance", ">", 0)])
    else:
        if ranking is None:
            raise UserError("targets: documents: answering are found in a ranking, and there is none here")
        pairs = read(ranking / "ranking.parquet", ANSWERED, filters=[("hit", "=", True)])
        pairs = pairs.sort_by([("query_id", "ascending"), ("rank", "ascending")])
    return pairs.group_by("query_id", use_threads=False).aggregate([("doc_id", "first")])


def _documents(data: Path, first: pa.Table) -> dict[str, dict[str, str]]:
    """Title and text of each query's document; one pass over the collection."""
    asked: dict[str, list[str]] = {}
    for query, document in zip(first["query_id"].to_pylist(), first["doc_id_first"].to_pylist(), strict=True):
        asked.setdefault(document, []).append(query)
    documents = {}
    wanted = pa.array(list(asked), pa.string())
    for batch in pq.ParquetFile(data / "documents.parquet").iter_batches(columns=DOCUMENTS.names):
        for row in batch.filter(pc.is_in(batch["doc_id"], value_set=wanted)).to_pylist():
            documents.update(dict.fromkeys(asked[row["doc_id"]], row))
    return documents


def _write(out: Path, rows: pa.Table, queries: pa.Table) -> None:
    """Documents, queries and judgements of a collection, and groups of one candidate."""
    count, each = len(rows), [[one] for one in rows["doc_id"].to_pylist()]
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
            {"query_id": rows["query_id"], "visit": [0] * count, "doc_ids": each,
             "targets": [[1.0]] * count, "teacher": pa.nulls(count, pa.list_(pa.float32()))},
        ),
    }  # fmt: skip
    for name, (schema, columns) in tables.items():
        arrays = [
            column.cast(field.type) if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column, field.type)
            for field, column in zip(schema, (columns[name] for name in schema.names), strict=True)
        ]
        write(out / f"{name}.parquet", pa.table(arrays, schema=schema), schema)
