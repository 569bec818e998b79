"""What a declaration of tables leaves out of a folder, in words for who declares it."""

from collections.abc import Iterable
from pathlib import Path

from sparring.components.config import listing
from sparring.components.sources.parquet import patterns
from sparring.components.sources.recognition.files import Keys
from sparring.components.sources.recognition.folder import ROLES, about, left_out, tables_of
from sparring.components.sources.recognition.layouts import GIVEN
from sparring.components.sources.recognition.links import (
    Table,
    differing_in_form,
    graded_in_numbers,
    grading,
    unreadable,
)
from sparring.components.yaml_files import yaml_line


def unused(place: Path, keys: Keys) -> list[Table]:
    """The tables of a folder that a declaration of tables leaves out."""
    read = {pattern for role in ROLES for pattern in patterns(keys.get(role))}
    return [table for table in tables_of(place, keys) if not patterns(table.files).keys() <= read]


def remarks(place: Path, keys: Keys, used_files: Iterable[Path]) -> list[str]:
    """Which column a declaration of tables takes for relevances of pairs, what it leaves out of a folder, and that
    documents have no ids of their own."""
    others = unused(place, keys)
    folder = place if place.is_dir() else place.parent
    used = [table for table in tables_of(place, keys) if table not in others]
    lines = [line for table in used for line in _of_pairs(folder, table, keys)] if keys.get("paired") else []
    lines += [f"not used: {table.name}: {about(table)}" for table in others]
    lines += [f"not used: {_some(names)}: {why}" for why, names in left_out(place, set(used_files)).items()]
    if keys["format"] in {kind for kind, _ in GIVEN}:
        lines.append(
            "the negatives in it: `adapt` mines its own; `recipe: dpr` with `negatives: {given: negatives}` "
            "takes these, as in docs/pages/guides/own-collection.md of Sparring"
        )
    if others:
        lines.append(
            "to use a table, name it and its columns in the config, such as "
            "`queries: FILE` and `columns: {queries: {query_id: THEIRS, text: THEIRS}}`; what another engine "
            "returned is for `evaluate.other_rankings`"
        )
    lines += [*_named_ids(used, keys), *_unread(folder, used, keys)]
    for role, name in numbered(place, keys).items():
        files = listing(patterns(keys[role]))
        once = ", those with the same text as one" if keys[role] == keys.get("qrels") else ""
        lines.append(
            f"{files}: no column of ids is known, so {role} are numbered by row{once}; to name one: "
            f"`columns: {{{role}: {{{name}: THEIRS}}}}`"
        )
    if not (keys.get("queries") and keys.get("qrels")) and (case := ids_of_other_form(place, keys)):
        lines.append(case)
    return lines


def _named_ids(tables: list[Table], keys: Keys) -> list[str]:
    """The columns that ids are taken from, where the files call them differently."""
    lines = []
    named = keys.get("columns", {})
    for role, ours in (("documents", "doc_id"), ("queries", "query_id"), ("qrels", "query_id"), ("qrels", "doc_id")):
        files = patterns(keys.get(role)).keys()
        if isinstance(named, dict) and (theirs := named.get(role, {}).get(ours)):
            what = f"the {ours} of judgements" if role == "qrels" else f"the ids of {role}"
            lines.append(f"{listing(files)}: {theirs} has {what}")
    return lines


def _some(names: list[str]) -> str:
    """The first names of some, and how many more there are."""
    return listing(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def ids_of_other_form(place: Path, keys: Keys) -> str | None:
    """Two ids of a declaration of tables that would be the same but for their form, in words; None where there are
    none."""
    return differing_in_form(place, [table for table in tables_of(place, keys) if unreadable(place, table) is None])


def _of_pairs(folder: Path, table: Table, keys: Keys) -> list[str]:
    """Which column of pairs is read as relevances; of one that has words instead, that nothing is."""
    column = keys.get("columns", {}).get("queries", {}).get("relevance") or table.named("relevance")
    if column is None or not patterns(table.files).keys() <= patterns(keys["queries"]).keys():
        return []
    words = _words(folder, table, [column], "queries")
    if keys["columns"]["queries"].get("relevance", "relevance") == column:
        undo = f"; if it says something else, take `relevance: {column}` out of `columns`"
        return [
            f"{table.name}: {column} is read as how relevant the text of a row is to its question, 0 for not at "
            f"all{'' if column == 'relevance' else undo}",
            *words,
        ]
    return [f"{table.name}: every row counts as a right pair, whatever its {column} says", *words] if words else []


def _unread(folder: Path, tables: list[Table], keys: Keys) -> list[str]:
    """The columns that a declaration leaves out of the tables that it reads."""
    if not tables:
        return []
    lines, known = [], ["doc_id", "title", "text", "query_id", "answers", "split", "relevance", "iteration"]
    known += [theirs for names in keys.get("columns", {}).values() for theirs in names.values()]
    for table in tables:
        left = [column for column in table.columns if column not in known]
        judges = keys.get("qrels") is not None and patterns(table.files).keys() <= patterns(keys["qrels"]).keys()
        words = _words(folder, table, [*left, *filter(None, [table.named("relevance")])], "qrels") if judges else []
        if not left or table.is_text:
            lines += words
            continue
        asks = "; does one ask what the text answers? Then `paired: true`, `queries: FILE` and `columns: "
        asks += "{queries: {text: THEIRS}}`"
        lines.append(f"{table.name}: not read: {listing(left)}{'' if keys.get('queries') else asks}")
        lines += words
    return lines


def _words(folder: Path, table: Table, columns: list[str], role: str) -> list[str]:
    """How to read the columns of judgements that may be grades, in words or in numbers."""
    graded = ", no `graded: false`" if role == "qrels" else ""
    lines = []
    for column in dict.fromkeys(columns):
        says = (
            f"  if {column} says how relevant a document is: `relevance: {column}` under `{role}` of `columns`{graded}"
        )
        if words := grading(folder, table, column):
            asked = f"`grades: {yaml_line(dict.fromkeys(words, 'N'))}`, with a number for each word"
            lines.append(f"{says}{',' if graded else ''} and {asked}")
        elif column not in table.all_named("relevance") and graded_in_numbers(folder, table, column):
            lines.append(f"{says}; as it is, each row says that a document is relevant")
    return lines


def numbered(place: Path, keys: Keys) -> dict[str, str]:
    """The ids that documents and judged queries lack in a declaration of tables: their rows are numbered."""
    tables = tables_of(place, keys) if keys["format"] == "tables" else []
    lacking = {}
    for role, name in {"documents": "doc_id", **({"queries": "query_id"} if keys.get("qrels") else {})}.items():
        files = patterns(keys.get(role)).keys()
        table = next((one for one in tables if patterns(one.files).keys() <= files), None)
        if table is None or table.is_text or table.named(name, "id"):
            continue
        if name not in keys.get("columns", {}).get(role, {}):
            lacking[role] = name
    return lacking
