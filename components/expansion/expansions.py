"""Query expansions: what they are as a table, how a query is expanded by one, and the collection that they ask.

An artifact of expansions is a collection of its own: the documents of the collection that is asked, and each expanded
query as a query. So whatever retrieves for queries retrieves for expansions too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from components import draws
from components.config import UserError, listing
from components.files import replacing
from components.sources.reading import plain_or_gz, read_objects
from components.sources.records import Bad
from components.tables import EXPANSIONS, QRELS, QUERIES, read, write

FILE = "expansions.parquet"


def expanded(question: str, expansion: str) -> str:
    """`question ? expansion`, as paper 002 (section 3.4.2) issues and reads it; a mark that is there is not doubled."""
    return f"{question.rstrip(' ?')} ? {expansion}".strip()


def identifier(query_id: str, number: int) -> str:
    """The id of a query's expansion."""
    return f"{query_id}#{number}"


def distinct(expansions: Iterable[str]) -> list[tuple[int, str]]:
    """Those that say something new, with their numbers from 1; neither case nor white space makes a difference."""
    seen: set[str] = set()
    found = []
    for number, text in enumerate(expansions, 1):
        key = " ".join(text.split()).casefold()
        if key and key not in seen:
            seen.add(key)
            found.append((number, " ".join(text.split())))
    return found


def rows(query_id: str, expansions: Sequence[str]) -> list[dict[str, Any]]:
    """One query's expansions as rows of the table, each once."""
    return [
        {"doc_id": identifier(query_id, number), "title": "", "text": text, "query_id": query_id, "number": number}
        for number, text in distinct(expansions)
    ]


def fold_of(query_id: str, folds: int) -> int:
    """Which of so many parts of the queries one is in; it depends on its id alone."""
    return draws.number("fold", query_id) % folds


def write_collection(out: Path, data: Path, expansions: pa.Table) -> dict[str, Any]:
    """Write the expansions, and the collection in which each is a query: with the split and answers of the query that
    it expands, and with its judgements. Documents are the same file as those of `data`, or a copy of it.
    """
    queries = read(data / "queries.parquet", QUERIES)
    at = pc.index_in(expansions["query_id"], value_set=queries["query_id"].combine_chunks())
    texts = [
        expanded(question.as_py(), expansion.as_py())
        for question, expansion in zip(queries["text"].take(at), expansions["text"], strict=True)
    ]
    asked = pa.table(
        {"query_id": expansions["doc_id"], "text": pa.array(texts, pa.string()),
         "answers": queries["answers"].take(at), "split": queries["split"].take(at)},
    )  # fmt: skip
    write(out / "queries.parquet", asked, QUERIES)
    write(out / "qrels.parquet", _judgements(data, expansions), QRELS)
    with replacing(out / "documents.parquet") as path:
        share(data / "documents.parquet", path)
    write(out / FILE, expansions, EXPANSIONS)
    of = len(pc.unique(expansions["query_id"]))
    return {"expansions": len(expansions), "queries": of, "a_query": round(len(expansions) / max(1, of), 2)}


def _judgements(data: Path, expansions: pa.Table) -> pa.Table:
    """Those of the queries, for each of their expansions."""
    qrels = read(data / "qrels.parquet", QRELS)
    names = expansions.select(["doc_id", "query_id"]).rename_columns(["expansion", "query_id"])
    joined = names.join(qrels, keys="query_id", join_type="inner")
    joined = joined.drop(["query_id"]).rename_columns({"expansion": "query_id"}).select(QRELS.names)
    return joined.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])


def share(source: Path, to: Path) -> None:
    """Have the same file in another place: a second name of it, or a copy where the filesystem has no such thing."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)


class Texts(NamedTuple):
    """What a file of expansions holds."""

    by_query: dict[str, list[str]]
    place: Path


def read_expansions(path: Path, field: str, separator: str | None = None) -> Texts:
    """The expansions in a file of JSON lines, plain or .gz: `{"_id": query, "expansions": {field: text or texts}}`.

    GAR's released ones have the fields answers, sentences and titles, with one text each, in which titles are separated
    by ` *** `. With a separator each part is an expansion of its own; without, the whole text is one. UserError names
    the line of what is wrong.
    """
    path = plain_or_gz(path)
    found: dict[str, list[str]] = {}
    for item in read_objects(path):
        if isinstance(item, Bad):
            raise UserError(str(item))
        query, fields = item.value.get("_id"), item.value.get("expansions")
        if not isinstance(query, str) or not isinstance(fields, dict):
            shape = '{"_id": query, "expansions": {...}}'
            raise UserError(f"{item.place}: expected {shape}, got the keys {listing(item.value)}")
        if field not in fields:
            raise UserError(f"{item.place}: no expansions {field!r}; there are {listing(fields)}")
        texts = fields[field]
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{item.place}: {field}: expected a text or a list of texts, got {texts!r:.80}")
        if query in found:
            raise UserError(f"{item.place}: query {query!r} stands twice")
        found[query] = [part for text in texts for part in (text.split(separator) if separator else [text])]
    return Texts(found, path)
