"""What a folder of files holds, and which reader reads it: by the names of the files and of their columns.

Guesses are made here and nowhere else. What comes out is a source's declaration, which says everything and is checked
like any other.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from components.config import UserError, listing
from components.data.tables import DEV
from components.sources.parquet import opened, patterns
from components.sources.reading import Item, Line, fields, matching, read_array, read_csv, read_lines, read_objects
from components.sources.table_links import (
    Roles,
    Table,
    differing_in_case,
    grading,
    judged_by,
    judging,
    judging_itself,
    longest,
    relevances,
    unreadable,
)
from components.sources.tables import KINDS, kind_of
from components.yaml_files import yaml_line

Keys = dict[str, Any]

ROLES = {"qrels": "qrel|judg|relevan", "queries": "quer|question|topic|asked", "documents": "corpus|doc|passage|text|"
         "collection|article|page|answer|content"}  # fmt: skip
"""What tables are called."""
ACCEPTED = [
    "BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv",
    "MS MARCO: collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv",
    "DPR: a .tsv file with the columns id, text, title, and .json files of questions with positive_ctxs",
    "tables (.csv, .tsv, .jsonl, .parquet): one of documents with a column text, and perhaps one of queries and one of "
    "qrels with the columns query_id, doc_id and perhaps relevance; for other names `columns` in the config, as in "
    "docs/pages/guides/own-collection.md of Sparring",
    "one table of pairs, with a column question and a column text (or answer, passage, ...), or one a split, such as "
    "faq.csv and test.csv; for other names `paired: true` and `columns`, as in that guide",
    "training data of Tevatron, FlagEmbedding or sentence-transformers (with negatives): files whose names tell their "
    "splits, such as train.jsonl, and the corpus that Tevatron's may name",
    "two .txt files of as many lines, such as questions.txt and texts.txt; or one, of texts alone",
]
"""What a folder may hold."""
GIVEN: list[tuple[str, set[str]]] = [
    ("tevatron", {"query_id", "query", "positive_passages"}),
    ("tevatron", {"query_id", "query_text", "positive_document_ids"}),
    ("flagembedding", {"query", "pos", "neg"}),
    ("sentence_transformers", {"anchor", "positive", "negative"}),
    ("sentence_transformers", {"anchor", "positive", "negative_1"}),
    ("sentence_transformers", {"query", "positive", "negative"}),
    ("sentence_transformers", {"query", "positive", "negative_1"}),
]
"""Training data of other projects, by columns that they have."""
MEND = "mend the file, or move it away"


def recognise(place: Path) -> Keys:
    """The declaration of what a folder, or a file, holds. UserError says what was seen and what is accepted, a line
    each."""
    if not place.exists():
        raise UserError(f"{place}: there is no such folder or file")
    folder = place if place.is_dir() else place.parent
    names = _names(folder) if place.is_dir() else [place.name]
    for layout in (_beir, _msmarco, _dpr) if place.is_dir() else ():
        if (keys := layout(folder, names)) is not None:
            return keys
    seen = dict(_seen(folder, names))
    if (keys := _training(folder, [one for one in seen.values() if isinstance(one, Table)])) is not None:
        return keys
    tables = _together(folder, [one for one in seen.values() if isinstance(one, Table)])
    others = [table for table in tables if _given(table) is None]
    if len(others) < len(tables) and {"documents", "queries", "qrels"} <= {_role(table) for table in others}:
        tables = others  # training data lies beside a whole collection
    for arranged in (_three_tables, _pairs, _texts):
        if (keys := arranged(folder, tables)) is not None:
            _check_left_out(folder, seen, keys)
            return keys
    broken = [(folder / name, one) for name, one in seen.items() if isinstance(one, str) and kind_of(name) in KINDS]
    if broken and not tables:
        raise UserError(f"{_placed(*broken[0])}; {MEND}")
    lines = [f"{place}: no collection was recognised; what is there:"]
    told = {name: one.removeprefix(f"{folder / name}:").lstrip() if isinstance(one, str) else _about(one)
            for name, one in seen.items()}  # fmt: skip
    lines += [f"  {name}: {about}" for name, about in told.items()][:20]
    if case := differing_in_case(folder, [table for table in tables if unreadable(folder, table) is None]):
        lines.append(f"  {case}")
    lines += ["  nothing" if not seen else f"  and {len(seen) - 20} more" if len(seen) > 20 else ""]
    raise UserError(*(line for line in lines if line), "accepted:", *(f"  {one}" for one in ACCEPTED))


def _check_left_out(folder: Path, seen: dict[str, Table | str], keys: Keys) -> None:
    """UserError where documents lack queries or judgements, and a table that cannot be read may have them."""
    if keys.get("paired") or (keys.get("queries") and keys.get("qrels")):
        return
    for name, one in seen.items():
        if kind_of(name) not in KINDS or kind_of(name) == ".txt":
            continue
        if reason := unreadable(folder, one) if isinstance(one, Table) else one:
            raise UserError(f"{_placed(folder / name, reason)}; queries or judgements may be there: {MEND}")


def _placed(file: Path, reason: str) -> str:
    """A reason with the file's place, which it may have already."""
    return reason.rstrip(".") if reason.startswith(str(file)) else f"{file}: {reason.rstrip('.')}"


def unused(place: Path, keys: Keys) -> list[Table]:
    """The tables of a folder that a declaration of tables leaves out."""
    read = {pattern for role in ROLES for pattern in patterns(keys.get(role))}
    return [table for table in _tables(place, keys) if not patterns(table.files).keys() <= read]


def _tables(place: Path, keys: Keys) -> list[Table]:
    """The tables of a folder; none where they are not what is read."""
    if keys["format"] not in ("tables", "parquet"):
        return []
    folder, names = (place, _names(place)) if place.is_dir() else (place.parent, [place.name])
    return _together(folder, [one for _, one in _seen(folder, names) if isinstance(one, Table)])


def remarks(place: Path, keys: Keys) -> list[str]:
    """What a declaration of tables leaves out of a folder, and that documents have no ids of their own."""
    others = unused(place, keys)
    lines = [f"not used: {table.name}: {_about(table)}" for table in others]
    if keys["format"] in {kind for kind, _ in GIVEN}:
        lines.append("the negatives in it: `adapt` mines its own; `recipe: dpr` with `negatives: {given: negatives}` "
                     "takes these, as in docs/pages/guides/own-collection.md of Sparring")  # fmt: skip
    if others:
        lines.append("to use a table, name it and its columns in the config, such as "
                     "`queries: FILE` and `columns: {queries: {query_id: THEIRS, text: THEIRS}}`")  # fmt: skip
    folder = place if place.is_dir() else place.parent
    lines += _unread(folder, [table for table in _tables(place, keys) if table not in others], keys)
    for role, name in numbered(place, keys).items():
        files = listing(patterns(keys[role]))
        once = ", those with the same text as one" if keys[role] == keys.get("qrels") else ""
        lines.append(f"{files}: no column of ids is known, so {role} are numbered by row{once}; to name one: "
                     f"`columns: {{{role}: {{{name}: THEIRS}}}}`")  # fmt: skip
    readable = [table for table in _tables(place, keys) if unreadable(place, table) is None]
    if lines and (case := differing_in_case(place, readable)):
        lines.append(case)
    return lines


def _unread(folder: Path, tables: list[Table], keys: Keys) -> list[str]:
    """The columns that a declaration leaves out of the tables that it reads."""
    if not tables:
        return []
    lines, known = [], ["doc_id", "title", "text", "query_id", "answers", "split", "relevance"]
    known += [theirs for names in keys.get("columns", {}).values() for theirs in names.values()]
    for table in tables:
        left = [column for column in table.columns if column not in known]
        judges = keys.get("qrels") is not None and patterns(table.files).keys() <= patterns(keys["qrels"]).keys()
        words = _words(folder, table, [*left, *filter(None, [table.named("relevance")])]) if judges else []
        if not left or kind_of(table.name) == ".txt":
            lines += words
            continue
        asks = "; does one ask what the text answers? Then `paired: true`, `queries: FILE` and `columns: "
        asks += "{queries: {text: THEIRS}}`"
        lines.append(f"{table.name}: not read: {listing(left)}{'' if keys.get('queries') else asks}")
        lines += words
    return lines


def _words(folder: Path, table: Table, columns: list[str]) -> list[str]:
    """How to read the columns of judgements that may be grades in words."""
    found = {column: words for column in dict.fromkeys(columns) if (words := grading(folder, table, column))}
    return [f"  if {column} says how relevant a document is: `relevance: {column}` under `qrels` of `columns`, no "
            f"`graded: false`, and `grades: {yaml_line(dict.fromkeys(words, 'N'))}`, with a number for each word"
            for column, words in found.items()]  # fmt: skip


def numbered(place: Path, keys: Keys) -> dict[str, str]:
    """The ids that documents and judged queries lack in a declaration of tables: their rows are numbered."""
    tables = _tables(place, keys) if keys["format"] == "tables" else []
    lacking = {}
    for role, name in {"documents": "doc_id", **({"queries": "query_id"} if keys.get("qrels") else {})}.items():
        files = patterns(keys.get(role)).keys()
        table = next((one for one in tables if patterns(one.files).keys() <= files), None)
        if table is None or kind_of(table.name) == ".txt" or table.named(name, "id"):
            continue
        if name not in keys.get("columns", {}).get(role, {}):
            lacking[role] = name
    return lacking


def _names(folder: Path) -> list[str]:
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(path.name + ("/" if path.is_dir() else "") for path in inside)


def _beir(folder: Path, names: list[str]) -> Keys | None:
    plain = {name.removesuffix(".gz") for name in names}
    judged = list((folder / "qrels").glob("*.tsv*"))
    whole = {"corpus.jsonl", "queries.jsonl"} <= plain and judged
    return {"format": "beir", "path": str(folder)} if whole else None


def _msmarco(folder: Path, names: list[str]) -> Keys | None:
    file = next((name for name in names if name in ("collection.tsv", "collection.tsv.gz")), None)
    if file is None or not any(re.fullmatch(r"queries\..+\.tsv(\.gz)?", name) for name in names):
        return None
    keys = {"format": "msmarco", "path": str(folder)}
    cells = _head(folder / file).count("\t") + 1
    columns = {3: ["doc_id", "title", "text"], 4: ["doc_id", "url", "title", "text"]}.get(cells)
    return {**keys, "columns": columns} if columns else keys


def _dpr(folder: Path, names: list[str]) -> Keys | None:
    documents = None
    retriever: dict[str, str] = {}
    questions: dict[str, str] = {}
    for name in names:
        kind = kind_of(name)
        if kind == ".json":
            first = _first(folder / name)
            if first is not None and {"question", "positive_ctxs"} <= first.keys():
                retriever[_told(name) or "train"] = name.removesuffix(".gz")
        elif kind in (".tsv", ".csv"):
            cells = fields(_head(folder / name))
            if cells == ["id", "text", "title"]:
                documents = name.removesuffix(".gz")
            elif len(cells) == 2 and re.fullmatch(r"\s*\[.*\]\s*", cells[1]):
                questions[_told(name) or "train"] = name.removesuffix(".gz")
    if documents is None or not (retriever or questions):
        return None
    keys = {"format": "dpr", "path": str(folder), "documents": documents, "retriever": retriever}
    both = {split: name for split, name in questions.items() if split not in retriever}
    return {**keys, "questions": both} if both else keys


def _given(table: Table) -> str | None:
    """The project whose training data a table has."""
    return next((kind for kind, needed in GIVEN if needed <= set(table.columns)), None)


def _training(folder: Path, tables: list[Table]) -> Keys | None:
    """Training data of one project, a file a split, where nothing else is there but the corpus that it may name."""
    found = [(table, kind) for table in tables if (kind := _given(table)) is not None]
    groups = {_told(table.name) or "train": table.name for table, _ in found}
    kinds = {kind for _, kind in found}
    others = [table for table in tables if _given(table) is None]
    by_ids = any("positive_document_ids" in table.columns for table, _ in found)
    if len(kinds) != 1 or len(groups) < len(found) or len(others) != by_ids:
        return None
    keys: Keys = {"format": kinds.pop(), "path": str(folder), "groups": groups}
    return {**keys, "corpus": others[0].name} if others else keys


def _head(path: Path) -> str:
    """The first line of a file that is text; empty where there is none."""
    return next((line.text for line in read_lines(path) if isinstance(line, Line)), "")


def _first(path: Path) -> Keys | None:
    """The first object of a JSON array."""
    try:
        first = next(read_array(path), None)
    except UserError:
        return None
    return first.value if isinstance(first, Item) else None


def _seen(folder: Path, names: list[str]) -> Iterator[tuple[str, Table | str]]:
    """Each file with its columns, or with what it is; a folder of Parquet or other parts is one table."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            yield name, _parts(path)
        elif kind_of(name) not in KINDS:
            yield name, f"no table ({kind_of(name) or 'no suffix'})"
        else:
            try:
                yield name, Table(name, _columns(path))
            except UserError as error:
                yield name, str(error)


def _parts(folder: Path) -> Table | str:
    """A folder whose files have one kind and the same columns, as one table."""
    parts = sorted(folder.iterdir())
    if any(layout(folder, _names(folder)) for layout in (_beir, _msmarco, _dpr)):
        return f"a collection of its own; accepted: {folder}"
    suffixes = {"".join(part.suffixes[-2:] if part.name.endswith(".gz") else part.suffixes[-1:]) for part in parts}
    if len(suffixes) != 1 or not all(part.is_file() for part in parts) or kind_of(parts[0].name) not in KINDS:
        return "a folder"
    try:
        columns = [_columns(part) for part in parts]
    except UserError as error:
        return f"a folder; {error}"
    same = all(one == columns[0] for one in columns)
    return Table(f"{folder.name}/*{suffixes.pop()}", columns[0]) if same else "a folder of different tables"


def _together(folder: Path, tables: list[Table]) -> list[Table]:
    """The tables, where those of one kind with the same columns are one: documents always, others if their names tell
    different splits, or, of one of them, none: that is `train`."""
    alike: dict[tuple[str | None, ...], list[Table]] = {}
    for table in tables:
        alone = kind_of(table.name) == ".txt"
        alike.setdefault((table.name,) if alone else (_role(table), *sorted(table.columns)), []).append(table)
    return [table for group in alike.values() for table in _one_of(folder, group)]


def _one_of(folder: Path, tables: list[Table]) -> list[Table]:
    """Tables of one kind as one, if they can be."""
    if len(tables) > 1 and _role(tables[0]) == "documents":
        files = [table.name for table in tables]
        return [Table(listing(files), tables[0].columns, files)]
    files = [path.relative_to(folder).as_posix() for table in tables for path in matching(folder, table.name)]
    told = {_told(file) or "train": file for file in files}
    splits = {split: told[split] for split in ("train", DEV, "test") if split in told}
    if len(files) == 1 or len(splits) < len(files):
        return tables
    return [Table(listing(table.name for table in tables), tables[0].columns, splits)]


def _told(name: str) -> str | None:
    """The split that a file's name tells of, as we call it."""
    parts = re.split(r"[-_./]", name.lower())
    names = {"train": "train", "dev": DEV, "test": "test", "validation": DEV, "valid": DEV, "val": DEV}
    return next((split for word, split in names.items() if word in parts), None)


def _columns(path: Path) -> list[str]:
    """The names of a file's columns."""
    kind = kind_of(path.name)
    if kind == ".txt":
        return ["text"]
    if kind == ".parquet":
        with opened(path) as file:
            return list(file.schema_arrow.names)
    if kind == ".jsonl":
        first = next(read_objects(path), None)
        if not isinstance(first, Item):
            raise UserError(str(first) if first else "empty")
        return list(first.value)
    if kind == ".csv":
        row = next(read_csv(path), None)
        return [] if row is None else [cell.strip() for cell in row.cells]
    return _head(path).split("\t")


def _role(table: Table) -> str | None:
    """What a table is of, by its columns, and where these do not say, by its name."""
    stem = table.name.lower()
    judges = table.named("relevance") and table.named("query_id", "question") and table.named("doc_id", "text")
    if judges and re.search(ROLES["qrels"], stem):  # columns such as `query` and `document` hold ids there
        return "qrels"
    if table.named("question") and table.named("text"):
        return "pairs"
    if table.named("query_id") and table.named("doc_id") and not table.named("question", "text"):
        return "qrels"
    if table.named("question"):
        return "queries"
    if table.named("text") is None:
        return None
    if table.named("query_id") and not table.named("doc_id"):
        return "queries"
    return next((role for role, pattern in ROLES.items() if role != "qrels" and re.search(pattern, stem)), "documents")


def _of(tables: list[Table], role: str) -> Table | None:
    """The only table of a role; UserError where there are several."""
    found = [table for table in tables if _role(table) == role]
    if len(found) > 1:
        told = ", or names that tell their splits, such as train.csv and test.csv; or a config that says "
        told += f"`{'queries' if role == 'pairs' else role}: {{train: FILE, test: FILE}}`"
        if role == "documents":
            told = ", or tables of the same columns; if a column asks what the text answers, `paired: true` and "
            told += "`columns` in a config say so"
        raise UserError(f"several tables of {role}: {listing(one.name for one in found)}; accepted: one, a folder "
                        f"of its own for the parts of one{told}")  # fmt: skip
    return found[0] if found else None


def _three_tables(folder: Path, tables: list[Table]) -> Keys | None:
    """Documents, with queries and qrels where there are some."""
    if all(kind_of(table.name) == ".txt" for table in tables) or _of(tables, "pairs") is not None:
        return None
    documents, queries, qrels = (_of(tables, role) for role in ("documents", "queries", "qrels"))
    others = [] if documents and queries and qrels else [table for table in tables if _role(table) is None]
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
        columns = {"documents": judged_by(folder, documents, "doc_id", qrels, "text"),
                   "queries": judged_by(folder, queries, "query_id", qrels, "question")}  # fmt: skip
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
        if qrels and not itself else {},
    }  # fmt: skip
    grades = None if qrels is None or itself else qrels.named("relevance")
    graded = "relevance" in link.columns["qrels"] if itself else qrels is None or grades is not None
    columns["qrels"] |= {} if grades in (None, "relevance") else {"relevance": grades}
    for role, names in link.columns.items():
        columns[role] |= {ours: theirs for ours, theirs in names.items() if ours != theirs}
    unsplit = queries is not None and qrels is not None and not (_knows_splits(queries) or _knows_splits(qrels))
    parquet = not itself and all(kind_of(one.name) == ".parquet" for one in used.values() if one is not None)
    keys: Keys = {"format": "parquet" if parquet and _has_ids(documents, columns) else "tables", "path": str(folder)}
    keys |= {role: one.files if one else None for role, one in used.items()}
    keys |= {"columns": {role: named for role, named in columns.items() if named}} if any(columns.values()) else {}
    keys |= {} if graded else {"graded": False}
    return keys | ({"split": "train"} if unsplit else {})


def _knows_splits(table: Table) -> bool:
    return isinstance(table.several, dict) or table.named("split") is not None


def _has_ids(documents: Table, columns: dict[str, Keys]) -> bool:
    return documents.named("doc_id", "id") is not None or "doc_id" in columns["documents"]


def _pairs(folder: Path, tables: list[Table]) -> Keys | None:
    """One table of questions with their texts, or two text files of a line each."""
    text_files = [table for table in tables if kind_of(table.name) == ".txt"]
    table = _of(tables, "pairs")
    if table is not None:
        columns = {
            "documents": table.columns_for(doc_id=("doc_id",), title=("title",), text=("text",)),
            "queries": table.columns_for(query_id=("query_id",), text=("question",)),
        }
        if (grades := relevances(folder, table)) not in (None, "relevance"):
            columns["queries"]["relevance"] = grades
        split = {} if _knows_splits(table) else {"split": "train"}
        alone = [one for one in tables if _role(one) == "documents" and _like(one, table, columns["documents"])]
        files = [pattern for one in (table, *alone) for pattern in patterns(one.files)]
        return {"format": "tables", "path": str(folder), "documents": files if len(files) > 1 else files[0],
                "queries": table.files, "paired": True,
                "columns": {role: named for role, named in columns.items() if named}, **split}  # fmt: skip
    if len(text_files) != 2 or len(tables) != 2:
        return None
    queries, documents = _of(text_files, "queries"), _of(text_files, "documents")
    if queries is None or documents is None:
        return None
    lines = {one.name: sum(1 for _ in read_lines(folder / one.name, blank=True)) for one in (queries, documents)}
    paired = lines[queries.name] == lines[documents.name]
    return {"format": "tables", "path": str(folder), "documents": documents.name, "queries": queries.name,
            **({"paired": True} if paired else {}), "split": "train"}  # fmt: skip


def _like(documents: Table, pairs: Table, columns: Keys) -> bool:
    """Whether documents that nobody asks for have the columns of those in pairs, as far as these are read."""
    known = documents.columns_for(doc_id=("doc_id",), title=("title",), text=("text",)) == columns
    return known and documents.named("doc_id") == pairs.named("doc_id")


def _texts(folder: Path, tables: list[Table]) -> Keys | None:
    """A text file, whose every line is a document."""
    if len(tables) == 1 and kind_of(tables[0].name) == ".txt":
        return {"format": "lines", "path": str(folder / tables[0].name)}
    return None


def _about(table: Table) -> str:
    """A table for people."""
    columns = f"columns {listing(table.columns)}" if kind_of(table.name) != ".txt" else "lines of text"
    role = _role(table)
    if given := _given(table):
        return f"{columns}: a collection of its own, `format: {given}`"
    return f"{columns}" + (f": {role}" if role else ": none that is known")
