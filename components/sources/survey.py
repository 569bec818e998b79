"""Properties of a collection from which sensible settings of an experiment are derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from pydantic import Field

from sparring.components.config import Config, UserError
from sparring.components.data.tables import document_text
from sparring.components.sources.base import Source
from sparring.components.sources.forms import other_form
from sparring.components.sources.records import UNJUDGED, Bad, Document, Judgement, Query, refused

DOCUMENTS = 20_000
"""Number of first documents that are read."""
TEXTS = 4_000
"""Number of documents, and of queries, whose lengths are measured. They are evenly spread over those that were read."""
DECIMALS = 2
"""Number of decimals of the mean number of relevant documents. Measures are chosen by the rounded number."""
SHARE = 95
"""Percentage of texts that must fit into a length."""

Kind = TypeVar("Kind", Document, Query, Judgement)
Count = Callable[[list[str]], list[int]]
"""Function that returns the number of tokens of each text, including special tokens."""


class Survey(Config):
    """The properties of a collection."""

    of: str
    """Digest of the source's declaration and of the start model."""
    documents: int = Field(ge=0)
    """Number of documents, at most 20,000. Of larger collections only the first 20,000 documents are read."""
    asked: int = Field(ge=0)
    """Number of queries in all splits."""
    queries: dict[str, int]
    """Number of queries with a relevant document, by split, before `hold_out` and `sample`."""
    unjudged: list[str] = Field(default=[], exclude_if=lambda splits: not splits)
    """Splits with queries, none of which has a relevant document."""
    relevant: float
    """Mean number of relevant documents, over the queries with at least one."""
    graded: bool
    """True if relevant documents have more than one grade."""
    query_tokens: int | None = None
    """Length in tokens that 95 % of the queries do not exceed. `null`: the start model's tokenizer cannot be read."""
    document_tokens: int | None = None
    """Length in tokens that 95 % of the documents do not exceed. `null`: as for `query_tokens`."""


def survey(source: Source, digest: str, *, queries: Count | None, documents: Count | None) -> Survey:
    """Survey a collection: all queries and judgements, and the first documents.

    `queries` and `documents` count tokens. If None, lengths stay unknown. Raise UserError for the first bad record.
    With `on_bad: drop`, raise UserError only if all documents, queries or judgements are bad, because settings for the
    rest would not fit the collection.
    """
    first = islice(_good(source, source.read_documents(), Document), DOCUMENTS)
    texts = [document_text(document.title, document.text) for document in first]
    splits = {query.query_id: (query.split, query.text) for query in _good(source, source.read_queries(), Query)}
    grades, judged = Counter[int](), Counter[str]()
    dangling: Judgement | None = None
    for record in _good(source, source.read_qrels(), Judgement):
        if record.query_id not in splits:
            dangling = dangling or record
        elif record.relevance > 0:
            grades[record.relevance] += 1
            judged[record.query_id] += 1
    if dangling is not None and not judged:
        problem = f"{dangling.place}: there is no query {dangling.query_id!r}"
        if form := other_form(dangling.query_id, splits.__contains__):
            raise UserError(f"{problem}: {form}")
        called = "There are no usable queries."
        if splits:
            called = f"Queries have ids such as {next(iter(splits))!r}. Name the column of ids in `data.columns`."
        raise UserError(f"{problem}, nor any other query that a judgement names. {called}")
    by_split = Counter(splits[query][0] for query in judged)
    return Survey(
        of=digest,
        documents=len(texts),
        asked=len(splits),
        queries=dict(sorted(by_split.items())),
        unjudged=sorted({split for split, _ in splits.values()} - {UNJUDGED, *by_split}),
        relevant=round(judged.total() / max(1, len(judged)), DECIMALS),
        graded=len(grades) > 1,
        query_tokens=_long_enough([text for _, text in splits.values()], queries),
        document_tokens=_long_enough(texts, documents),
    )


def _good(source: Source, records: Iterable[Any], kind: type[Kind]) -> Iterator[Kind]:
    """Yield the good records. Raise UserError as `survey` says."""
    bad: Bad | None = None
    none = True
    for record in records:
        if isinstance(record, kind):
            none = False
            yield record
            continue
        if source.on_bad == "fail":
            raise refused(record)
        bad = bad or record
    if none and bad is not None:
        raise UserError(f"{bad}. The collection has no usable {kind.__name__.lower()}.")


def _long_enough(texts: list[str], count: Count | None) -> int | None:
    """Return the length in tokens that 95 % of the texts do not exceed. Return None if tokens cannot be counted."""
    if count is None or not texts:
        return None
    return percentile(count(texts[:: -(-len(texts) // TEXTS)]))


def relevant_documents(mean: float) -> str:
    """Describe the mean number of relevant documents, rounded as for the choice of measures.

    >>> relevant_documents(1.0), relevant_documents(1.465)
    ('1 relevant document a query', '1.47 relevant documents a query')
    """
    mean = round(mean, DECIMALS)
    return f"{mean:g} relevant document{'' if mean == 1 else 's'} a query"


def percentile(lengths: Iterable[int]) -> int:
    """Return the smallest length that 95 % of the lengths do not exceed.

    >>> percentile([3] * 95 + [9] * 5), percentile([3] * 90 + [9] * 10)
    (3, 9)
    """
    ordered = sorted(lengths)
    return int(ordered[int(np.ceil(len(ordered) * SHARE / 100)) - 1])
