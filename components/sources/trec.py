"""Reading and writing TREC's text formats: rankings (run files) and qrels. Errors name the file and line."""

import io
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from components.config import UserError
from components.data.tables import QRELS, RANKING, as_relevance
from components.files import replacing
from components.yaml_files import read_text

LARGEST = 3e38
"""No score is so large: a 32-bit float would not hold it."""


def read_ranking(path: Path) -> pa.Table:
    """Read a run file, `query Q0 document rank score tag`, as a ranking.

    Documents are ranked anew by score, equal scores as trec_eval ranks them; the file's ranks are ignored.
    """
    rows = []
    for number, words in _lines(path):
        if len(words) != 6:
            raise UserError(f"{path}:{number}: expected 6 columns (query Q0 document rank score tag), got {len(words)}")
        try:
            score = float(words[4])
        except ValueError:
            score = math.nan
        if not abs(score) < LARGEST:
            raise UserError(f"{path}:{number}: the score {words[4]!r:.40} is not a number that is less than {LARGEST}")
        rows.append((words[0], words[2], score))
    by_query: dict[str, list[tuple[str, float]]] = {}
    for query, document, score in rows:
        by_query.setdefault(query, []).append((document, score))
    table = []
    for query, documents in by_query.items():
        if len({document for document, _ in documents}) < len(documents):
            raise UserError(f"{path}: query {query} ranks a document twice")
        documents.sort(key=lambda row: (row[1], row[0]), reverse=True)  # trec_eval: equal scores by id, descending
        table += [
            {"query_id": query, "doc_id": document, "rank": rank, "score": score}
            for rank, (document, score) in enumerate(documents, 1)
        ]
    return pa.Table.from_pylist(table, schema=RANKING)


def read_qrels(path: Path) -> pa.Table:
    """Read a qrels file: TREC's `query 0 document relevance`, or three columns, perhaps under a header, as BEIR has
    it."""
    found: dict[tuple[str, str], int] = {}
    for number, words in _lines(path):
        if number == 1 and len(words) == 3 and words[-1].isalpha():
            continue  # a header
        if len(words) not in (3, 4):
            raise UserError(f"{path}:{number}: expected 4 columns (query 0 document relevance), got {len(words)}")
        relevance = as_relevance(words[-1])
        if relevance is None:
            raise UserError(
                f"{path}:{number}: the relevance {words[-1]!r:.40} is not an integer of at most nine digits"
            )
        query, document = words[0], words[-2]
        if found.setdefault((query, document), relevance) != relevance:
            raise UserError(f"{path}:{number}: query {query} has judged {document} before, with another relevance")
    if not found:
        raise UserError(f"{path}: the file has no judgements")
    rows = [{"query_id": query, "doc_id": document, "relevance": relevance, "split": ""}
            for (query, document), relevance in found.items()]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=QRELS)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the words of each line that is not blank."""
    for number, line in enumerate(io.StringIO(read_text(path)), 1):
        if line.strip():
            yield number, line.split()


def write_ranking(table: pa.Table, path: Path, tag: str) -> None:
    """Write a ranking as a run file with strictly falling scores, so that every tool keeps the ranking's order.

    Of equal scores of a query, the later is lowered to the next smaller float.
    """
    import numpy as np

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
    """An id without white space, which separates the columns of these files."""
    if len(identifier.split()) != 1:
        raise UserError(f"{path}: the id {identifier!r} contains white space, which TREC's files cannot hold")
    return identifier
