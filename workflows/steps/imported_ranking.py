"""Import a ranking of another system from a file, such as one of SEAL or of contextual clue sampling (Chuang et al.,
2023, Table 3.2)."""

from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from sparring.components.config import Config, UserError, listing
from sparring.components.data import row_runs
from sparring.components.data.groups import ids_of, queries_of, rows_of
from sparring.components.data.own_documents import LeftOut
from sparring.components.data.tables import QUERIES, RANKING, TEXT, read, write
from sparring.components.sources.base import locate
from sparring.components.sources.dpr import IDS, passage_id
from sparring.components.sources.forms import Form, other_form
from sparring.components.sources.reading import Item, plain_or_gz, read_array, read_objects
from sparring.components.sources.trec import read_ranking
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

NAMED = ["query_id", "text"]
OBJECT = '{"question": TEXT, "ctxs": [{"id": DOCUMENT}, ...]}, or a run file of TREC\'s with another ending'
DROP = "`unknown: drop` leaves it out"


class RankingFile(Config):
    """A file with another system's ranking of a split."""

    path: str
    """File of the ranking. It is a TREC run file or, if it ends in `.json`, what DPR's code writes: an array of
    `{"question": ..., "ctxs": [{"id": ...}]}`. A `.jsonl` file has such an object per line. DPR's questions are found
    by their text. Each file may be .gz. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""
    split: str = "test"
    """Split of the file's queries."""
    unknown: Literal["refuse", "drop"] = Field("refuse", exclude_if=lambda unknown: unknown == "refuse")
    """Handling of queries and documents that the collection lacks, such as those of an older index. `refuse` stops.
    `drop` leaves them out, and the documents below move up."""
    ids: Form | None = Field(None, exclude_if=lambda form: form is None)
    """Unicode form in which the file's ids are read. Null uses the collection's form (`data.ids`)."""

    def files(self) -> dict[str, Path]:
        """Return the file of the ranking."""
        return {self.path: plain_or_gz(locate(self.path))}


@Description(part="search", makes="imported ranking", version=3)
def rank_from_file(
    out: Path, machine: Machine, *, data: Path, split: str, k: int, config: RankingFile
) -> dict[str, Any]:
    """Write `ranking.parquet`: a file's ranking of the split's queries, cut to `k` documents.

    Queries of other splits are left out and counted, and so is what is dropped. UserError if the file has no query of
    the split. UserError also for a query or document that the collection lacks, unless it is to be dropped. A query
    that the file lacks has no results, which the summary's note says.
    """
    path, drop = config.files()[config.path], config.unknown == "drop"
    if not path.exists():
        raise UserError(f"{path}: there is no such file", code="missing-file")
    queries, everything = queries_of(data, [split], NAMED), read(data / "queries.parquet", QUERIES, columns=NAMED)
    query_ids, all_ids = queries["query_id"].combine_chunks(), everything["query_id"].to_pylist()
    if _ending(path) in (".json", ".jsonl"):
        by_text = _by_text(queries)
        by_text = {text: names[:1] for text, names in _by_text(everything).items()} | by_text
        table, without = _of_dpr(path, by_text, drop=drop)
    else:
        table, without = read_ranking(path), 0
    if config.ids is not None:
        table = _in_form(table, config.ids, path)
    ranked = set(table["query_id"].to_pylist())
    if (unknown := ranked - set(all_ids)) and not drop:
        more = f", and {len(unknown) - 1:,} more are not" if len(unknown) > 1 else ""
        advice = other_form(min(unknown), set(all_ids).__contains__)
        raise UserError(
            f"{path}: query {min(unknown)} is not in the collection{more}; {advice or DROP}", code="unknown-query"
        )
    table = table.filter(pc.is_in(table["query_id"], query_ids))
    if not len(table):
        raise UserError(f"{path}: it has no query of the split {split!r}", code="no-rows")
    rows, ranked_of_split = len(table), len(pc.unique(table["query_id"]))
    table = _of_documents(table, ids_of(data / "documents.parquet", "doc_id"), path, drop=drop)
    dropped_rows, dropped_queries = rows - len(table), len(unknown) + without
    table = LeftOut(data)(table, k)
    write(out / "ranking.parquet", table, RANKING)
    lost = len(query_ids) - len(pc.unique(table["query_id"]))
    return {
        "queries": len(query_ids),
        "without_results": lost,
        "of_other_splits": len(ranked) - len(unknown) - ranked_of_split,
        **({"dropped_queries": dropped_queries, "dropped_documents": dropped_rows} if drop else {}),
        **_note(lost, len(query_ids), split, dropped_rows, rows),
    }


def _of_documents(table: pa.Table, documents: pa.Array, path: Path, *, drop: bool) -> pa.Table:
    """Check that a ranking's documents are the collection's. With `drop`, leave out the rest and rank from 1 again."""
    if drop:
        table = table.filter(pc.is_in(table["doc_id"], documents))
        if not len(table):
            raise UserError(
                f"{path}: none of its documents is in the collection. Check its ids.", code="other-collection"
            )
        ranks = row_runs.ranks(table["query_id"].to_numpy()) + 1
        index = table.column_names.index("rank")
        table = table.set_column(index, RANKING.field("rank"), pa.array(ranks, pa.int32()))
    try:
        rows_of(table["doc_id"], documents, source=str(path))
    except ValueError:
        missing = table["doc_id"].filter(pc.invert(pc.is_in(table["doc_id"], documents)))[0].as_py()
        advice = other_form(missing, lambda name: pc.index(documents, pa.scalar(name, TEXT)).as_py() >= 0)
        raise UserError(
            f"{path}: the document {missing} is not in the collection; {advice or DROP}", code="unknown-document"
        ) from None
    return table


def _in_form(table: pa.Table, form: Form, path: Path) -> pa.Table:
    """Convert a ranking's ids to a Unicode form. UserError if two of a query's documents become the same."""
    for name in ("query_id", "doc_id"):
        index = table.column_names.index(name)
        table = table.set_column(index, RANKING.field(name), pc.utf8_normalize(table[name], form))
    pairs = table.group_by(["query_id", "doc_id"]).aggregate([([], "count_all")])
    if len(pairs) < len(table):
        twice = pairs.filter(pc.greater(pairs["count_all"], 1)).to_pylist()[0]
        raise UserError(
            f"{path}: query {twice['query_id']} ranks {twice['doc_id']} twice, in two Unicode forms", code="duplicate"
        )
    return table


def _note(lost: int, queries: int, split: str, dropped: int, rows: int) -> dict[str, str]:
    """Return a remark for readers of the file's row in the table. Return nothing if the file is complete."""
    sentences = []
    if lost:
        sentences.append(
            f"The file has no results for {lost:,} of the {queries:,} queries of {split}. They count 0 in its row and "
            "in comparisons. To compare on the remaining queries, use `evaluate --common` on exported rankings."
        )
    if dropped:
        sentences.append(
            f"{dropped:,} of its {rows:,} rows name documents that the collection lacks, and were dropped."
        )
    return {"note": " ".join(sentences)} if sentences else {}


def _plain(question: str) -> str:
    """Normalise a question for comparison. DPR's files have straight apostrophes where the collection may have other
    ones."""
    return question.replace("\u2019", "'")


def _ending(path: Path) -> str:
    """Return the suffix of a file's name, without `.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _by_text(queries: pa.Table) -> dict[str, list[str]]:
    """Return the ids of the queries, by text."""
    ids: dict[str, list[str]] = {}
    for name, text in zip(*queries.to_pydict().values(), strict=True):
        ids.setdefault(_plain(text), []).append(name)
    return ids


def _of_dpr(path: Path, by_text: dict[str, list[str]], *, drop: bool) -> tuple[pa.Table, int]:
    """Read the ranking in a file of DPR's, and count the questions that were dropped.

    Only the order counts, since the scores are of many kinds. If a question occurs again, as in a log, its first
    ranking counts. Queries with equal text share the ranking.
    """
    columns: dict[str, list[Any]] = {name: [] for name in RANKING.names}
    dropped, seen = 0, set[str]()
    for item in read_objects(path) if _ending(path) == ".jsonl" else read_array(path):
        if not isinstance(item, Item) or not isinstance(item.value.get("ctxs"), list):
            raise UserError(
                f"{item.place}: expected an object with question and ctxs; accepted: {OBJECT}", code="unknown-layout"
            )
        question = _plain(str(item.value.get("question", "")))
        if question not in by_text and not drop:
            raise UserError(
                f"{item.place}: the collection has no question {question!r:.80}; {DROP}", code="unknown-query"
            )
        if question not in by_text:
            dropped += 1
            continue
        if question in seen:
            continue
        seen.add(question)
        documents = dict.fromkeys(_document(context, item.place) for context in item.value["ctxs"])
        for query in by_text[question]:
            for rank, document in enumerate(documents, 1):
                row = {"query_id": query, "doc_id": document, "rank": rank, "score": -float(rank)}
                for name, value in row.items():
                    columns[name].append(value)
    return pa.table(columns, schema=RANKING), dropped


def _document(context: Any, place: str) -> str:
    """Return the id of a context as DPR's passages have it."""
    doc_id = passage_id(context)
    if doc_id is None:
        raise UserError(f"{place}: a context has none of {listing(IDS)}", code="no-id")
    return doc_id
