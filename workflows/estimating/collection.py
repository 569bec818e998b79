"""The sizes of a collection: of a finished one from its record, else from reading some of its source, or as assumed."""

from __future__ import annotations

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
from sparring.components.models.configs import locate_model
from sparring.components.sources.base import Source
from sparring.components.sources.records import Document, Query
from sparring.workflows.store.cost import ANY, Sizes
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store

SECONDS = 8.0
"""At most so long the source's documents are read, and then its queries."""
PATIENCE = 6
"""Queries are read for so many times as long."""
TEXTS = 2_000
"""So many texts are tokenised."""
TOKENS_PER_WORD = 1.35
"""Of English in BERT's word pieces, where the tokenizer is not here."""
ASSUMED = {"document_tokens": 80.0, "query_tokens": 10.0}
"""Tokens of a text in the mean, where no text is here: about MS MARCO's passages, and questions."""

Assumptions = Mapping[str, float]


def assumptions(words: Iterable[str]) -> dict[str, float]:
    """What `--assume KEY=NUMBER` says: `documents`, `queries` or `queries.SPLIT`, `document_tokens`, `query_tokens`."""
    found = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in ("documents", "queries", *ASSUMED) and not key.startswith("queries."):
            accepted = listing(["documents", "queries", "queries.SPLIT", *ASSUMED])
            raise UserError(f"--assume {word}: unknown key {key!r}; accepted: {accepted}")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not number >= (0 if key.startswith("queries") else 1) or number == float("inf"):
            raise UserError(f"--assume {word}: got {value!r}; accepted: a number, such as 1e9")
        found[key] = number
    return found


def sizes(
    node: Step,
    source: Source,
    store: Store,
    model: Any,
    assumed: Assumptions,
    *,
    seconds: float = SECONDS,
    known_sources: dict[str, Sizes],
) -> Sizes:
    """The sizes of the collection that a step ingests; `model` is the config of the model that reads its tokens.

    A source is read once, however many collections draw their splits from it: `known_sources` gets its sizes.
    """
    known = None if "documents" in assumed else _finished(node, store, model)
    if known is None and "documents" not in assumed:
        missing = source.missing()
        if missing:
            raise UserError(
                f"source missing: {missing[0]}; to estimate without it, say how large it is: --assume documents=1e6 "
                "--assume queries=10000"
            )
        whole = source.model_copy(update={"hold_out": {}, "sample": {}, "only_judged": False})
        key = f"{whole.model_dump_json()} {model.model_dump_json() if model is not None else None}"
        if key not in known_sources:
            known_sources[key] = _read(whole, model, seconds)
        known = known_sources[key]
        known = replace(known, queries=source.counts(known.queries), drawn=tuple(source.hold_out))
        if source.only_judged:  # mostly one document a query
            known = replace(known, documents=min(known.documents, sum(known.queries.values())))
    return _with(known, assumed)


def _finished(node: Step, store: Store, model: Any) -> Sizes | None:
    """The sizes in a finished artifact's record, and its first texts; None where it is not here."""
    record, path = store.record(node), store.path(node)
    if record is None or not (path / "documents.parquet").exists():
        return None
    documents = _first(path / "documents.parquet", ["title", "text"])
    queries = _first(path / "queries.parquet", ["text"])
    return _sizes(
        model,
        [document_text(one["title"], one["text"]) for one in documents],
        [one["text"] for one in queries],
        documents=record["summary"]["documents"],
        queries=record["summary"]["queries"],
        exact=True,
    )


def _first(table: Path, columns: list[str]) -> list[dict[str, Any]]:
    batches = pq.ParquetFile(table).iter_batches(TEXTS, columns=columns)
    return [row for batch in islice(batches, 1) for row in batch.to_pylist()]


def _read(source: Source, model: Any, most: float) -> Sizes:
    """Read the source for some seconds; if it did not end, the sizes of its files say how much is left."""
    texts, documents, characters = list[str](), 0, 0
    size = sum(path.stat().st_size for path in source.files().values() if path.is_file())
    began, exact = time.monotonic(), True
    first = began
    for record in source.read_documents():
        if isinstance(record, Document):
            first = time.monotonic() if not documents else first  # some sources do all their work before the first
            documents += 1
            text = document_text(record.title, record.text)
            characters += len(text)
            if documents <= TEXTS or documents % 50 == 0:
                texts.append(text)
        if size and documents % 100 == 0 and time.monotonic() - first > most:
            exact = False
            break
    seconds, read = time.monotonic() - (began if exact else first), documents
    if not exact:
        documents = max(documents, int(size * documents / max(1, characters + 20 * documents)))
    counts, asked, ids = Counter[str](), list[str](), set[int]()
    began = first = time.monotonic()
    for query in source.read_queries():
        if isinstance(query, Query):
            first = time.monotonic() if not asked else first
            if (key := hash((query.query_id, query.split))) in ids:  # another row of the same query
                continue
            ids.add(key)
            counts[query.split] += 1
            if len(asked) < TEXTS:
                asked.append(query.text)
        if size and time.monotonic() - first > PATIENCE * most:  # they come split by split, so a part misleads
            exact = False
            break
    seconds = (seconds + time.monotonic() - began) / max(1, read + sum(counts.values()))
    return _sizes(model, texts, asked, documents=documents, queries=counts, exact=exact, read_seconds=seconds)


def _sizes(model: Any, documents_read: list[str], queries_read: list[str], **counted: Any) -> Sizes:
    """Sizes with the lengths of the texts that were read."""
    tokenizer = _tokenizer(model)
    characters = float(np.mean([len(text) for text in documents_read])) if documents_read else 0.0

    def lengths(texts: list[str], otherwise: float) -> np.ndarray:
        texts = texts[:: max(1, len(texts) // TEXTS)]
        if not texts:
            return np.array([otherwise])
        if tokenizer is None:
            return np.array([TOKENS_PER_WORD * len(text.split()) for text in texts])
        return np.array([len(one.ids) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)])

    return Sizes(
        document_lengths=lengths(documents_read, ASSUMED["document_tokens"]),
        query_lengths=lengths(queries_read, ASSUMED["query_tokens"]),
        characters=characters,
        **counted,
    )


def _tokenizer(model: Any) -> Any:
    """The tokenizer in a model's folder, without truncation; None where it is not here."""
    from tokenizers import Tokenizer

    try:
        folder = Path(locate_model(model.model)) if model is not None else None
    except UserError:
        folder = None
    file = next(iter(sorted(folder.rglob("tokenizer.json"))), None) if folder and folder.is_dir() else None
    if file is None:
        return None
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _with(known: Sizes | None, assumed: Assumptions) -> Sizes:
    """Sizes with what is assumed in the place of what is known."""
    if known is not None and not assumed:
        return known
    queries = dict(known.queries) if known is not None else {ANY: 10_000}
    if "queries" in assumed:
        queries["train"] = int(assumed["queries"])
    queries |= {key.partition(".")[2]: int(value) for key, value in assumed.items() if key.startswith("queries.")}

    def lengths(key: str) -> np.ndarray:
        if key not in assumed and known is not None:
            return np.asarray(known.document_lengths if key == "document_tokens" else known.query_lengths)
        return np.array([assumed.get(key, ASSUMED[key])])

    documents = lengths("document_tokens")
    return Sizes(
        documents=int(assumed["documents"]) if "documents" in assumed else (known.documents if known else 0),
        queries=queries,
        document_lengths=documents,
        query_lengths=lengths("query_tokens"),
        characters=known.characters if known is not None else 4.5 * float(documents.mean()),
        exact=False,
        read_seconds=known.read_seconds if known is not None else 0.0,
    )
