"""Query expansions: their table, how a query is expanded, and the collection in which each expanded query is a query.

An artifact of expansions is such a collection, with the documents of the original one. So every step that retrieves for
queries retrieves for expanded queries too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import UserError, listing
from sparring.components.data import own_documents
from sparring.components.data.tables import EXPANSIONS, QRELS, QUERIES, TEXT, read, write
from sparring.components.files import replacing
from sparring.components.rng import keyed_int
from sparring.components.sources.reading import plain_or_gz, read_objects
from sparring.components.sources.records import Bad

FILE = "expansions.parquet"


def expand_query(question: str, expansion: str) -> str:
    """`question ? expansion`, as in Chuang et al. (2023), section 3.4.2.

    >>> expand_query("who won?", "Oregon")
    'who won ? Oregon'
    """
    return f"{question.rstrip(' ?')} ? {expansion}".strip()


def expansion_id(query_id: str, number: int) -> str:
    """Return the id of a query's expansion."""
    return f"{query_id}#{number}"


def distinct(expansions: Iterable[str]) -> list[tuple[int, str]]:
    """Drop duplicates and empty texts, and number the rest from 1. Case and white space are ignored.

    >>> distinct(["a b", "A  b", "c"])
    [(1, 'a b'), (3, 'c')]
    """
    seen: set[str] = set()
    numbered = []
    for number, text in enumerate(expansions, 1):
        key = " ".join(text.split()).casefold()
        if key and key not in seen:
            seen.add(key)
            numbered.append((number, " ".join(text.split())))
    return numbered


def rows(query_id: str, expansions: Sequence[str]) -> list[dict[str, Any]]:
    """Return a query's expansions as rows of the table, without duplicates."""
    return [
        {"doc_id": expansion_id(query_id, number), "title": "", "text": text, "query_id": query_id, "number": number}
        for number, text in distinct(expansions)
    ]


def with_questions(expansions: pa.Table, queries: pa.Array) -> pa.Table:
    """Put an empty expansion with the number 0, which stands for the question as it is, before those of each query."""
    empty = [
        {"doc_id": expansion_id(query, 0), "title": "", "text": "", "query_id": query, "number": 0}
        for query in queries.to_pylist()
    ]
    whole = pa.concat_tables([pa.Table.from_pylist(empty, schema=EXPANSIONS), expansions])
    places = pa.table({"place": pc.index_in(whole["query_id"], value_set=queries), "number": whole["number"]})
    return whole.take(pc.sort_indices(places, [("place", "ascending"), ("number", "ascending")]))


def concatenated(expansions: pa.Table) -> pa.Table:
    """Join all expansions of a query to a single one (Chuang et al., 2023, Table 3.1, `concat`)."""
    whole: dict[str, list[str]] = {}
    for row in expansions.select(["query_id", "text"]).to_pylist():
        whole.setdefault(row["query_id"], []).append(row["text"])
    joined = [row for query, texts in whole.items() for row in rows(query, [" ".join(texts)])]
    return pa.Table.from_pylist(joined, schema=EXPANSIONS)


def expanded_texts(expansions: pa.Table, queries: pa.Table) -> list[str]:
    """Return the text of each expanded query. `queries` has `query_id` and `text`."""
    origin = pc.index_in(expansions["query_id"], value_set=queries["query_id"].combine_chunks())
    return [
        expand_query(question.as_py(), expansion.as_py())
        for question, expansion in zip(queries["text"].take(origin), expansions["text"], strict=True)
    ]


def fold_of(query_id: str, folds: int) -> int:
    """Return the fold (from 0) of a query. It depends on the query's id alone."""
    return keyed_int("fold", query_id) % folds


def write_collection(out: Path, data: Path, expansions: pa.Table) -> dict[str, Any]:
    """Write the expansions, and the collection in which each expanded query is a query.

    It has the split, answers and judgements of the query that it expands. The documents' file is a hard link to that in
    `data`, or a copy.
    """
    queries = read(data / "queries.parquet", QUERIES)
    origin = pc.index_in(expansions["query_id"], value_set=queries["query_id"].combine_chunks())
    expanded = pa.table(
        {
            "query_id": expansions["doc_id"],
            "text": pa.array(expanded_texts(expansions, queries), TEXT),
            "answers": queries["answers"].take(origin),
            "split": queries["split"].take(origin),
        },
    )
    write(out / "queries.parquet", expanded, QUERIES)
    write(out / "qrels.parquet", _judgements(data, expansions), QRELS)
    with replacing(out / "documents.parquet") as path:
        link_or_copy(data / "documents.parquet", path)
    own_documents.carry(data, out, expansions)
    write(out / FILE, expansions, EXPANSIONS)
    count = len(pc.unique(expansions["query_id"]))
    return {"expansions": len(expansions), "queries": count, "a_query": round(len(expansions) / max(1, count), 2)}


def _judgements(data: Path, expansions: pa.Table) -> pa.Table:
    """Return the judgements of each expansion: those of its query."""
    qrels = read(data / "qrels.parquet", QRELS)
    names = expansions.select(["doc_id", "query_id"]).rename_columns(["expansion", "query_id"])
    joined = names.join(qrels, keys="query_id", join_type="inner")
    joined = joined.drop(["query_id"]).rename_columns({"expansion": "query_id"}).select(QRELS.names)
    return joined.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])


def link_or_copy(source: Path, to: Path) -> None:
    """Make a hard link to a file, or a copy where the filesystem has no hard links."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)


class Texts(NamedTuple):
    """The contents of a file of expansions, and its path."""

    by_query: dict[str, list[str]]
    place: Path


def read_expansions(path: Path, field: str, separator: str | None = None, *, first: int | None = None) -> Texts:
    """Read a file of JSON lines, plain or .gz: `{"_id": query, "expansions": {field: text or list of texts}}`.

    Castorini's released outputs of GAR-T5, in this form, have the fields answers, sentences and titles with one text
    each, in which ` *** ` stands between several titles or answers. With `separator` each part of a text is an
    expansion. `first` reads so many lines alone. UserError names the file and line.
    """
    path = plain_or_gz(path)
    by_query: dict[str, list[str]] = {}
    for item in islice(read_objects(path), first):
        if isinstance(item, Bad):
            raise UserError(str(item))
        query, fields = item.value.get("_id"), item.value.get("expansions")
        query = str(query) if type(query) is int else query
        if not isinstance(query, str) or not isinstance(fields, dict):
            shape = '{"_id": query, "expansions": {...}}'
            raise UserError(f"{item.place}: expected {shape}, got {json.dumps(item.value, ensure_ascii=False):.80}")
        if field not in fields:
            raise UserError(f"{item.place}: there are no expansions {field!r}; accepted: {listing(fields)}")
        texts = fields[field]
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{item.place}: {field}: expected a text or a list of texts, got {texts!r:.80}")
        if query in by_query:
            raise UserError(f"{item.place}: query {query!r} occurs a second time")
        by_query[query] = [part for text in texts for part in (text.split(separator) if separator else [text])]
    return Texts(by_query, path)
