"""Readers and writers of TREC's text formats: rankings (run files) and qrels.

Files that are read may be .gz, or a pipe. Errors name the file and the line.
"""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import UserError
from sparring.components.data.tables import QRELS, RANKING, TEXT, as_relevance
from sparring.components.files import replacing
from sparring.components.sources.reading import read_lines
from sparring.components.sources.records import Bad

LARGEST = 3e38
"""Limit of scores. A 32-bit float can hold smaller numbers."""
SCORED = pa.schema([("query_id", TEXT), ("doc_id", TEXT), ("score", pa.float64()), ("before", pa.float64())])
"""Columns that are read from a run file. `before` is the file's rank."""
AT_ONCE = 100_000
"""Number of lines of a run file that are Python objects at a time."""


def read_ranking(path: Path) -> pa.Table:
    """Read a run file, `query Q0 document rank score tag`, as a ranking.

    Documents are ranked by score, in float64. Documents with equal scores keep the order of the file's ranks. If their
    ranks are equal or not numbers, they are sorted by doc_id.
    """
    lines = _scored(path)
    parts = iter(lambda: list(islice(lines, AT_ONCE)), [])
    columns = ([list(column) for column in zip(*part, strict=True)] for part in parts)
    table = pa.concat_tables([SCORED.empty_table(), *(pa.table(part, schema=SCORED) for part in columns)])
    queries, documents = (table[name].combine_chunks().dictionary_encode() for name in ("query_id", "doc_id"))
    query = queries.indices.to_numpy().astype(np.int64)
    pairs = query * max(1, len(documents.dictionary)) + documents.indices.to_numpy()
    places = np.argsort(pairs, kind="stable")
    if len(again := places[1:][np.diff(pairs[places]) == 0]):
        raise UserError(f"{path}: the query {table['query_id'][again.min()]} ranks a document twice", code="duplicate")
    by = [("query", "ascending"), ("score", "descending"), ("before", "ascending"), ("doc_id", "ascending")]
    table = table.append_column("query", pa.array(query)).sort_by(by)
    query = table["query"].to_numpy()
    rank = np.arange(len(query)) - np.searchsorted(query, query) + 1
    table = table.append_column("rank", pa.array(rank, pa.int32()))
    return table.select(RANKING.names)


def _scored(path: Path) -> Iterator[tuple[str, str, float, float]]:
    """Yield each line's query, document, score and rank. Ranks that are not numbers become 0."""
    for place, words in _lines(path):
        if len(words) != 6:
            raise UserError(
                f"{place}: expected 6 columns (query Q0 document rank score tag), got {len(words)}",
                code="wrong-columns",
            )
        score, rank = _number(words[4]), _number(words[3])
        if not abs(score) < LARGEST:
            raise UserError(f"{place}: the score {words[4]!r:.40} is not a number below {LARGEST}", code="not-a-number")
        yield words[0], words[2], score, 0.0 if math.isnan(rank) else rank


def _number(word: str) -> float:
    """Convert a word to a number. Return NaN if it is not one."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def read_qrels(path: Path) -> pa.Table:
    """Read a qrels file: TREC's `query 0 document relevance`, or BEIR's three columns, with or without a header."""
    relevances: dict[tuple[str, str], int] = {}
    for place, words in _lines(path):
        named = len(words) == 3 or (len(words) == 4 and words[1].isalpha() and words[1].lower() != "q0")
        if place == f"{path}:1" and named and words[-1].isalpha() and as_relevance(words[-1]) is None:
            continue  # a header
        if len(words) not in (3, 4):
            raise UserError(
                f"{place}: expected 4 columns (query 0 document relevance), got {len(words)}", code="wrong-columns"
            )
        relevance = as_relevance(words[-1])
        if relevance is None:
            raise UserError(
                f"{place}: the relevance {words[-1]!r:.40} is not an integer of at most nine digits",
                code="not-a-number",
            )
        query, document = words[0], words[-2]
        if relevances.setdefault((query, document), relevance) != relevance:
            raise UserError(f"{place}: an earlier line has a different relevance for the query {query} and {document}")
    if not relevances:
        raise UserError(f"{path}: the file has no judgements", code="no-rows")
    rows = [
        {"query_id": query, "doc_id": document, "relevance": relevance, "split": ""}
        for (query, document), relevance in relevances.items()
    ]
    return pa.Table.from_pylist(rows, schema=QRELS)


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the words of each line that is not blank."""
    for line in read_lines(path, once=True):
        if isinstance(line, Bad):
            raise UserError(f"{line.place}: not UTF-8 text ({line.detail})", code="not-utf-8")
        yield line.place, line.text.split()


def write_ranking(table: pa.Table, path: Path, tag: str) -> None:
    """Write a ranking as a run file. Scores fall strictly, so that every tool keeps the order of the ranking.

    If scores of a query are equal, later ones are lowered to the next smaller float.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        before, last = None, np.float32(np.inf)
        columns = [table[name].to_pylist() for name in ("query_id", "doc_id", "rank", "score")]
        for query, document, rank, score in zip(*columns, strict=True):
            limit = np.float32(np.inf) if query != before else np.nextafter(last, np.float32(-np.inf))
            before, last = query, min(np.float32(score), limit)
            file.write(f"{_word(query, path)} Q0 {_word(document, path)} {rank} {last!s} {tag}\n")


def write_qrels(table: pa.Table, path: Path, split: str) -> None:
    """Write the judgements of a split as TREC qrels."""
    chosen = table.filter(pc.equal(table["split"], split))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        columns = [chosen[name].to_pylist() for name in ("query_id", "doc_id", "relevance")]
        file.writelines(
            f"{_word(query, path)} 0 {_word(document, path)} {relevance}\n"
            for query, document, relevance in zip(*columns, strict=True)
        )


def _word(identifier: str, path: Path) -> str:
    """Return an id. Raise UserError if it contains white space, which separates the columns of these files."""
    if len(identifier.split()) != 1:
        raise UserError(
            f"{path}: the id {identifier!r} contains white space, which TREC's formats do not allow", code="white-space"
        )
    return identifier
