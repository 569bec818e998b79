"""The sizes of a collection: from a finished artifact, from a part of its source, or as the user assumes."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from sparring.components.config import UserError, listing
from sparring.components.data.tables import document_text
from sparring.components.sources.base import Source
from sparring.components.sources.records import Document, Query
from sparring.workflows.estimating.sizes import ANY, Collection

SAMPLED = 2_000
"""Texts whose lengths are measured."""
BYTES_PER_TOKEN = 4.3
"""Bytes of English text in one of BERT's word pieces."""
ASSUMED = {"document_tokens": 80.0, "query_tokens": 10.0}
"""Mean tokens of texts that are not here: about MS MARCO's passages, and questions."""


def assumptions(words: Iterable[str]) -> dict[str, float]:
    """Read the values of `--assume KEY=NUMBER`."""
    values = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in ("documents", "queries", *ASSUMED) and not key.startswith("queries."):
            accepted = listing(["documents", "queries", "queries.SPLIT", *ASSUMED])
            raise UserError(f"--assume {word}: unknown key {key!r}; accepted: {accepted}")
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not number >= (0 if key.startswith("queries") else 1) or number == float("inf"):
            raise UserError(f"--assume {word}: got {text!r}; accepted: a number, such as 1e9")
        values[key] = number
    return values


def source_sizes(
    source: Source, assumed: Mapping[str, float], seconds: float, cache: dict[str, Collection]
) -> Collection:
    """Size the collection of a source by reading it for so many seconds.

    A source is read once, however many collections take their splits from it: `cache` gets its sizes.
    """
    if "documents" in assumed:
        return assume(Collection(0, {ANY: 10_000}, None, None, 0.0), assumed)
    if missing := source.missing():
        raise UserError(
            f"source missing: {missing[0]}; to estimate without it, say how large it is: --assume documents=1e6 "
            "--assume queries=10000"
        )
    whole = source.model_copy(update={"hold_out": {}, "sample": {}, "only_judged": False})
    key = whole.model_dump_json()
    if key not in cache:
        cache[key] = _read(whole, seconds)
    sizes = replace(cache[key], queries=source.counts(cache[key].queries), sampled=tuple(source.hold_out))
    if source.only_judged:  # usually one document per query
        sizes = replace(sizes, documents=min(sizes.documents, sizes.rows))
    return assume(sizes, assumed)


def assume(sizes: Collection, assumed: Mapping[str, float]) -> Collection:
    """Replace what is known of a collection by what the user assumes."""
    if not assumed:
        return sizes
    queries = {**sizes.queries, **({"train": int(assumed["queries"])} if "queries" in assumed else {})}
    queries |= {key.partition(".")[2]: int(value) for key, value in assumed.items() if key.startswith("queries.")}
    lengths = {
        key: values if values is not None and key not in assumed else np.array([assumed.get(key, ASSUMED[key])])
        for key, values in (("document_tokens", sizes.document_lengths), ("query_tokens", sizes.query_lengths))
    }
    return replace(
        sizes,
        documents=int(assumed.get("documents", sizes.documents)),
        queries=queries,
        document_lengths=lengths["document_tokens"],
        query_lengths=lengths["query_tokens"],
        characters=sizes.characters or BYTES_PER_TOKEN * float(lengths["document_tokens"].mean()),
        exact=False,
    )


def finished_sizes(record: Mapping[str, Any], folder: Path) -> Collection | None:
    """Size a finished collection by its record and its first texts. None if its files are not on this machine."""
    if not (folder / "documents.parquet").exists() or not (folder / "queries.parquet").exists():
        return None
    documents = [document_text(row["title"], row["text"]) for row in _first(folder, "documents", ["title", "text"])]
    queries = [row["text"] for row in _first(folder, "queries", ["text"])]
    summary = record["summary"]
    return _sizes(documents, queries, documents=summary["documents"], queries=summary["queries"])


def _first(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    batches = pq.ParquetFile(folder / f"{table}.parquet").iter_batches(SAMPLED, columns=columns)
    return [row for batch in islice(batches, 1) for row in batch.to_pylist()]


def _read(source: Source, most: float) -> Collection:
    """Read a source's documents for some seconds, and its queries for six times as long: they come split by split, so a
    part misleads. If documents remain, the sizes of the files say how many."""
    texts, documents, characters, exact = list[str](), 0, 0, True
    size = sum(path.stat().st_size for path in source.files().values() if path.is_file())
    began = first = time.monotonic()
    for record in source.read_documents():
        if isinstance(record, Document):
            first = time.monotonic() if not documents else first  # some sources do all their work before the first
            documents += 1
            text = document_text(record.title, record.text)
            characters += len(text)
            if documents <= SAMPLED or documents % 50 == 0:
                texts.append(text)
        if size and documents % 100 == 0 and time.monotonic() - first > most:
            exact, began = False, first
            break
    seconds, read = time.monotonic() - began, documents
    if not exact:
        documents = max(documents, int(size * documents / max(1, characters + 20 * documents)))
    counts, questions, ids = Counter[str](), list[str](), set[int]()
    began = time.monotonic()
    for query in source.read_queries():
        if isinstance(query, Query):
            if (key := hash((query.query_id, query.split))) in ids:  # another row of the same query
                continue
            ids.add(key)
            counts[query.split] += 1
            questions.append(query.text)
        if size and time.monotonic() - began > 6 * most:
            exact = False
            break
    seconds = (seconds + time.monotonic() - began) / max(1, read + sum(counts.values()))
    return _sizes(texts, questions, documents=documents, queries=counts, exact=exact, read_seconds=seconds)


def _sizes(documents_read: list[str], queries_read: list[str], **counts: Any) -> Collection:
    """Size a collection by its counts and the lengths of some texts."""

    def lengths(texts: list[str], key: str) -> np.ndarray:
        texts = texts[:: max(1, len(texts) // SAMPLED)]
        return np.array([len(text.encode()) / BYTES_PER_TOKEN for text in texts] or [ASSUMED[key]])

    characters = float(np.mean([len(text) for text in documents_read])) if documents_read else 0.0
    return Collection(
        document_lengths=lengths(documents_read, "document_tokens"),
        query_lengths=lengths(queries_read, "query_tokens"),
        characters=characters,
        **counts,
    )
