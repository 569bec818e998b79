"""What a folder of files holds, and which reader reads it: by the names of the files and of their columns.

Guesses are made in this package and nowhere else. What comes out is a source's declaration, which says everything and
is checked like any other.
"""

from pathlib import Path
from typing import NamedTuple

from sparring.components.config import UserError, listing
from sparring.components.sources.parquet import patterns
from sparring.components.sources.reading import read_lines
from sparring.components.sources.recognition.files import HEADLESS, Keys, names_in
from sparring.components.sources.recognition.folder import about, contents_of, role_of, together
from sparring.components.sources.recognition.layouts import LAYOUTS, given_by, training_data
from sparring.components.sources.recognition.links import (
    Roles,
    Table,
    differing_in_form,
    judged_by,
    judging,
    judging_itself,
    longest,
    relevances,
    unreadable,
)
from sparring.components.sources.tables import KINDS, TREC, kind_of

ACCEPTED = [
    "BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv",
    "MS MARCO: collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv",
    "DPR: a .tsv file with the columns id, text, title, and .json files of questions with positive_ctxs",
    "tables (.csv, .tsv, .jsonl, .parquet): one of documents with a column text, and perhaps one of queries and one of "
    "qrels with the columns query_id, doc_id and perhaps relevance; for other names `columns` in the config, as in "
    "docs/pages/guides/own-collection.md of Sparring",
    "one table of pairs, with a column question and a column text (or answer, passage, ...), or one a split, such as "
    "faq.csv and test.csv; for other names `paired: true` and `columns`, as in that guide",
    "training data of Tevatron, FlagEmbedding or sentence-transformers (with negatives): .jsonl or .parquet files, "
    "whose names tell their splits, such as train.jsonl, and the corpus that Tevatron's may name",
    "two .txt files of as many lines, such as questions.txt and texts.txt; or one, of texts alone",
]
"""What a folder may hold."""
MEND = "mend the file, or move it away"


def recognise(place: Path) -> Keys:
    """The declaration of what a folder, or a file, holds. UserError says what was seen and what is accepted, a line
    each."""
    if not place.exists():
        raise UserError(f"{place}: there is no such folder or file")
    folder = place if place.is_dir() else place.parent
    names = names_in(folder) if place.is_dir() else [place.name]
    for layout in LAYOUTS if place.is_dir() else ():
        if (keys := layout(folder, names)) is not None:
            return keys
    seen = dict(contents_of(folder, names))
    if (keys := training_data(folder, [one for one in seen.values() if isinstance(one, Table)])) is not None:
        return keys
    tables = together(folder, [one for one in seen.values() if isinstance(one, Table)])
    others = [table for table in tables if given_by(table) is None]
    if len(others) < len(tables) and {"documents", "queries", "qrels"} <= {role_of(table) for table in others}:
        tables = others  # training data lies beside a whole collection
    for arranged in (_three_tables, _pairs, _texts):
        if (keys := arranged(folder, tables)) is not None:
            _check_left_out(folder, seen, keys)
            return keys
    broken = [(folder / name, one) for name, one in seen.items() if isinstance(one, str) and kind_of(name) in KINDS]
    told = [one for one in broken if HEADLESS in one[1]] or ([] if tables else broken)
    if told:
        raise UserError(f"{_placed(*told[0])}; {MEND}")
    lines = [f"{place}: no collection was recognised; what is there:"]
    about_each = {
        name: one.removeprefix(f"{folder / name}:").lstrip() if isinstance(one, str) else about(one)
        for name, one in seen.items()
    }
    lines += [f"  {name}: {one}" for name, one in about_each.items()][:20]
    if case := differing_in_form(folder, [table for table in tables if unreadable(folder, table) is None]):
        lines.append(f"  {case}")
    lines += ["  nothing" if not seen else f"  and {len(seen) - 20} more" if len(seen) > 20 else ""]
    raise UserError(*(line for line in lines if line), "accepted:", *(f"  {one}" for one in ACCEPTED))


def _check_left_out(folder: Path, seen: dict[str, Table | str], keys: Keys) -> None:
    """UserError where documents lack queries or judgements, and a table that cannot be read may have them."""
    if keys.get("paired") or (keys.get("queries") and keys.get("qrels")):
        return
    for name, one in seen.items():
        if kind_of(name) not in KINDS or (isinstance(one, Table) and one.is_text):
            continue
        if reason := unreadable(folder, one) if isinstance(one, Table) else one:
            raise UserError(f"{_placed(folder / name, reason)}; queries or judgements may be there: {MEND}")


def _placed(file: Path, reason: str) -> str:
    """A reason with the file's place, which it may have already."""
    return reason.rstrip(".") if reason.startswith(str(file)) else f"{file}: {reason.rstrip('.')}"


def _of(tables: list[Table], role: str) -> Table | None:
    """The only table of a role, or the only one with a header; UserError where there are several."""
    found = [table for table in tables if role_of(table) == role]
    if len(named := [table for table in found if table.columns != TREC]) == 1:
        return named[0]
    if len(found) > 1:
        told = ", or names that tell their splits, such as train.csv and test.csv; or a config that says "
        told += (
            f"`{'queries' if role == 'pairs' else role}: {{train: FILE, test: FILE}}`; move aside what is of another "
        )
        told += "kind, such as another engine's results, which `evaluate.other_rankings` of a config takes"
        if role == "documents":
            told = ", or tables of the same columns; if a column asks what the text answers, `paired: true` and "
            told += "`columns` in a config say so"
        raise UserError(
            f"several tables of {role}: {listing(one.name for one in found)}; accepted: one, or one "
            f"folder with the parts of one{told}"
        )
    return found[0] if found else None


def _asked(folder: Path, tables: list[Table], documents: Table | None) -> Table | None:
    """The only table of queries; of several the only one whose rows name documents, as beside another engine's
    results."""
    found = [table for table in tables if role_of(table) == "queries"]
    if len(found) > 1 and documents is not None:
        judging = [table for table in found if judging_itself(folder, table, documents) is not None]
        if len(judging) == 1:
            return judging[0]
    return _of(tables, "queries")


def _three_tables(folder: Path, tables: list[Table]) -> Keys | None:
    """Documents, with queries and qrels where there are some."""
    if all(table.is_text for table in tables) or _of(tables, "pairs") is not None:
        return None
    documents, qrels = _of(tables, "documents"), _of(tables, "qrels")
    queries = _asked(folder, tables, documents)
    others = [] if documents and queries and qrels else [table for table in tables if role_of(table) is None]
    unknown = [table for table in others if unreadable(folder, table) is None]
    if documents is not None:
        link = _linked(folder, documents, queries, qrels, unknown)
        return None if link is None else _declared(folder, documents, link)
    if len(unknown) < 2:
        return None
    documents = max(unknown, key=lambda table: longest(folder, table)[1])
    link = _linked(folder, documents, queries, qrels, [table for table in unknown if table is not documents])
    if link is None or not link.columns:  # judgements must prove which are the documents
        return None
    link.columns["documents"]["text"] = longest(folder, documents)[0]
    return _declared(folder, documents, link)


class _Link(NamedTuple):
    """The tables that belong to documents, and names of columns that the ids told."""

    queries: Table | None
    qrels: Table | None
    columns: Roles


def _linked(
    folder: Path, documents: Table, queries: Table | None, qrels: Table | None, unknown: list[Table]
) -> _Link | None:
    """Queries and qrels of documents, perhaps among tables whose columns have other names; None where there are qrels
    and no queries."""
    if queries is not None and qrels is not None:
        columns = {
            "documents": judged_by(folder, documents, "doc_id", qrels, "text"),
            "queries": judged_by(folder, queries, "query_id", qrels, "question"),
        }
        return _Link(queries, qrels, columns)
    asking = unknown if queries is None else [queries]
    for asked in asking:
        found, columns = judging(folder, unknown if qrels is None else [qrels], documents, asked)
        if found is not None:
            if queries is None:
                columns["queries"]["text"] = longest(folder, asked)[0]
            return _Link(asked, found, columns)
    for asked in asking if qrels is None else ():
        if (own := judging_itself(folder, asked, documents)) is not None:
            return _Link(asked, asked, own)
    return None if qrels is not None and queries is None else _Link(queries, qrels, {})


def _declared(folder: Path, documents: Table, link: _Link) -> Keys:
    """The source's keys."""
    queries, qrels = link.queries, link.qrels
    itself = qrels is not None and qrels is queries
    used = {"documents": documents, "queries": queries, "qrels": qrels}
    columns = {
        "documents": documents.columns_for(doc_id=("doc_id", "id"), title=("title",), text=("text",)),
        "queries": queries.columns_for(query_id=("query_id", "id"), text=("question", "text")) if queries else {},
        "qrels": qrels.columns_for(query_id=("query_id", "question"), doc_id=("doc_id", "text"))
        if qrels and not itself
        else {},
    }
    grades = None if qrels is None or itself else relevances(folder, qrels) or qrels.named("relevance")
    graded = "relevance" in link.columns["qrels"] if itself else qrels is None or grades is not None
    columns["qrels"] |= {} if grades in (None, "relevance") else {"relevance": grades}
    for role, names in link.columns.items():
        columns[role] |= {ours: theirs for ours, theirs in names.items() if ours != theirs}
    unsplit = queries is not None and qrels is not None and not (_knows_splits(queries) or _knows_splits(qrels))
    parquet = not itself and all(kind_of(one.name) == ".parquet" for one in used.values() if one is not None)
    keys: Keys = {"format": "parquet" if parquet and _has_ids(documents, columns) else "tables", "path": str(folder)}
    keys |= {role: one.files if one else None for role, one in used.items()}
    if isinstance(documents.files, dict):  # their columns' names were unknown; documents have no splits
        keys["documents"] = list(documents.files.values())
    keys |= {"columns": {role: named for role, named in columns.items() if named}} if any(columns.values()) else {}
    keys |= {} if graded else {"graded": False}
    return keys | ({"split": "train"} if unsplit else {})


def _knows_splits(table: Table) -> bool:
    return isinstance(table.several, dict) or table.named("split") is not None


def _has_ids(documents: Table, columns: dict[str, Keys]) -> bool:
    return documents.named("doc_id", "id") is not None or "doc_id" in columns["documents"]


def _pairs(folder: Path, tables: list[Table]) -> Keys | None:
    """One table of questions with their texts, or two text files of a line each."""
    text_files = [table for table in tables if table.is_text]
    table = _of(tables, "pairs")
    if table is not None:
        columns = {
            "documents": table.columns_for(doc_id=("doc_id",), title=("title",), text=("text",)),
            "queries": table.columns_for(query_id=("query_id",), text=("question",)),
        }
        if (grades := relevances(folder, table)) not in (None, "relevance"):
            columns["queries"]["relevance"] = grades
        split = {} if _knows_splits(table) else {"split": "train"}
        alone = [one for one in tables if role_of(one) == "documents" and _like(one, table, columns["documents"])]
        files = [pattern for one in (table, *alone) for pattern in patterns(one.files)]
        return {
            "format": "tables",
            "path": str(folder),
            "documents": files if len(files) > 1 else files[0],
            "queries": table.files,
            "paired": True,
            "columns": {role: named for role, named in columns.items() if named},
            **split,
        }
    if len(text_files) != 2 or len(tables) != 2:
        return None
    queries, documents = _of(text_files, "queries"), _of(text_files, "documents")
    if queries is None or documents is None:
        return None
    lines = {one.name: sum(1 for _ in read_lines(folder / one.name, blank=True)) for one in (queries, documents)}
    paired = lines[queries.name] == lines[documents.name]
    return {
        "format": "tables",
        "path": str(folder),
        "documents": documents.name,
        "queries": queries.name,
        **({"paired": True} if paired else {}),
        "split": "train",
    }


def _like(documents: Table, pairs: Table, columns: Keys) -> bool:
    """Whether documents that nobody asks for have the columns of those in pairs, as far as these are read."""
    known = documents.columns_for(doc_id=("doc_id",), title=("title",), text=("text",)) == columns
    return known and documents.named("doc_id") == pairs.named("doc_id")


def _texts(folder: Path, tables: list[Table]) -> Keys | None:
    """A text file, whose every line is a document."""
    if len(tables) == 1 and tables[0].is_text:
        return {"format": "lines", "path": str(folder / tables[0].name)}
    return None
