"""Look at a folder of files, or at one file, say what it holds, and write a config for it. What was recognised is read
wholly: counts, lengths, samples, duplicates, and judgements of what is not there. Only the config is written."""

import argparse
import re
import shlex
import textwrap
from pathlib import Path

from sparring.components.config import CONTROLS, Config, UserError, listing, parse, printable
from sparring.components.data.own_documents import remark
from sparring.components.files import replacing
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.sources.base import AnySource
from sparring.components.sources.inspection import MISSING, Inspection
from sparring.components.sources.parquet import patterns
from sparring.components.sources.recognition.files import Keys
from sparring.components.sources.recognition.recognise import recognise
from sparring.components.sources.recognition.remarks import ids_of_other_form, numbered, remarks, unused
from sparring.components.sources.records import NOT_UTF8
from sparring.components.sources.survey import relevant_documents
from sparring.components.yaml_files import yaml_line
from sparring.workflows.commands import languages
from sparring.workflows.commands.shared_arguments import check_output
from sparring.workflows.program import program
from sparring.workflows.recipes.adapt.config import START_MODEL

WIDTH = 100


class Declared(Config):
    """What is read."""

    data: AnySource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the collection: a folder, or a file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the config to write (default: the folder's name .yaml, here)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the config if it is there")


def call(arguments: argparse.Namespace) -> None:
    """Print what the folder holds, and write the config."""
    file = arguments.output or Path(f"{_plain(arguments.folder)}.yaml")
    if file.exists() and not arguments.overwrite:
        raise UserError(f"{file}: is there already; accepted: another file (-o FILE), or --overwrite")
    if not file.absolute().parent.is_dir():
        raise UserError(f"{file}: there is no such folder to write to")
    check_output(file, "another file (-o FILE)")
    keys = recognise(arguments.folder)
    source = parse(Declared, {"data": keys}, where=str(arguments.folder)).data
    print(printable(f"{arguments.folder}: {_layout(keys)}"), flush=True)
    found = Inspection(source)
    if found.in_two_forms:
        keys["ids"] = "NFC"
        found = Inspection(parse(Declared, {"data": keys}, where=str(arguments.folder)).data)
        print("Some judgements write ids in another Unicode form than the tables. The config reads all ids in NFC.")
    if not found.documents.count:
        raise UserError(f"{arguments.folder}: no documents were read" + _first_bad(found))
    for line in (*remarks(arguments.folder, keys, source.files().values()), "", *summary(found)):
        print(printable(line))
    spoken = languages.of_samples(found.documents.sample, found.queries.sample)
    start = languages.of_start_model(spoken, DualEncoderConfig(**START_MODEL))
    for line in (*languages.of_collection(spoken), *languages.of_queries(spoken), *start):
        print(printable(line))
    with replacing(file) as temporary:
        text = config_text(keys, found, file) + languages.config_lines(spoken, start)
        temporary.write_text(text, encoding="utf-8")
    steps: tuple[str, ...] = _next(file, found)
    if found.bad:
        steps = ("leave out what cannot be used; or mend the files, and leave out `--set data.on_bad=drop`:", *steps)
    if found.unread_judgements and not found.judgements:
        steps = ("mend the files: none of their judgements can be read",)
    elif found.judgements and any(found.bad[reason] == found.judgements.total() for reason in MISSING):
        if case := ids_of_other_form(arguments.folder, keys):
            steps = (f"mend the files: {case}",)
        elif keys["format"] in ("tables", "parquet"):
            steps = (
                f"say in {file} which columns have the ids that the judgements name:",
                "columns: {documents: {doc_id: THEIRS}, queries: {query_id: THEIRS}}",
            )
        else:
            steps = (
                "mend the files: no judgement names both a query and a document by the ids that these have, with "
                "the same case",
            )
    elif not found.queries.count and (left := [table.name for table in unused(arguments.folder, keys)]):
        steps = (*_to_use(left, keys, arguments.folder, file), *steps)
    print(f"\nwrote {file}\nnext:  " + "\n       ".join(map(printable, steps)))


def summary(found: Inspection) -> list[str]:
    """What a collection holds, in lines for people."""
    documents, queries = found.documents, found.queries
    lines = [f"{documents.count:,} documents: {documents.lengths()}", *_samples(documents.samples)]
    if same := documents.texts.repeated():
        lines.append(f"  {_have(same)} the text of an earlier one")
    again = queries.again()
    lines.append(f"{queries.count - again:,} queries" + (f": {queries.lengths()}" if queries.count else ""))
    lines += _samples(queries.samples)
    if again:
        lines.append(
            f"  {again:,} more row{'' if again == 1 else 's'} of the same queries, as where each judgement or "
            "answer has a row"
        )
    if same := queries.texts.repeated() - again:
        lines.append(f"  {_have(same)} the text of an earlier one")
    for split, count in found.by_split.items():
        judged = found.judged_by_split[split]
        lines.append(
            f"  split {split}: {count:,} queries, {judged:,} with a relevant document, "
            f"{found.judgements[split]:,} judgements"
        )
    if found.judgements:
        grades = ", ".join(f"{grade}: {count:,}" for grade, count in sorted(found.grades.items()))
        lines.append(f"  {relevant_documents(found.relevant)}; judgements by grade: {grades}")
    elif queries.count:
        lines.append("  nobody has said what is relevant to them")
    if told := remark(found.own_documents, sum(found.by_split.values())):
        lines.append(told)
    if found.bad:
        count = found.bad.total()
        lines.append(f"{count:,} record{'' if count == 1 else 's'} cannot be used:")
        for reason, count in found.bad.items():
            where = f", first at {found.examples[reason]}" if reason in found.examples else ""
            lines.append(f"  {reason}: {count:,}{where}")
        convert = ", convert the file (iconv -f CP1252 -t UTF-8)" if NOT_UTF8 in found.bad else ""
        lines.append(f"  A run stops at the first of them. Repair them{convert}, or let `on_bad: drop` leave them out.")
    return lines


def config_text(keys: Keys, found: Inspection, file: Path) -> str:
    """The config: two keys, and what a reader may want to know or change, as comments."""
    splits = ", ".join(f"{count:,} {split}" for split, count in found.by_split.items())
    holds = f"{found.documents.count:,} documents; queries: {splits or 'none'}"
    plan, run = _next(file, found)
    lines = [
        *textwrap.wrap(f"Written by `{program()} init`. {_layout(keys)}: {holds}.", 110),
        f"    {plan}     every step, and the numbers chosen for this collection, with why",
        f"    {run}      ends with the system to deploy, and how good it is",
    ]
    text = "".join(f"# {line}\n" for line in lines) + "recipe: adapt\ndata:\n"
    for key, value in keys.items():
        about = COMMENTS.get(key, "") if value is not None else "none"
        if (key == "path" and Path(str(value)).is_absolute()) or isinstance(value, list):
            about = ""  # a list of columns has no names of ours
        text += f"  {key}: {yaml_line(value)}" + (f"  # {about}" if about else "") + "\n"
    if found.bad:
        reasons = ", ".join(f"{count:,} x {reason}" for reason, count in found.bad.items())
        text += f"  # on_bad: drop  # would leave out: {reasons}\n"
    if remark(found.own_documents, sum(found.by_split.values())):
        text += "  # own_document: leave out  # or keep: queries are documents, and each finds itself first\n"
    if not found.judged_by_split:
        text += (
            "# Nothing can be measured without queries whose relevant documents are known; `plan` says what is done.\n"
        )
    return text + (
        "# Every other number is chosen for the collection. Any can be set here, or by --set, such as:\n"
        "# train: {warm: {epochs: 3}}\n"
    )


COMMENTS = {
    "path": "relative to where the command runs",
    "split": "the split of all queries; `adapt` holds out some of them to choose by and to measure on",
    "graded": "qrels have no column of relevances: each row says that a document is relevant",
    "splits": "the files of each split; of a split and its small part the part, as they have queries in common",
    "paired": "the document of a row is relevant to the query of the same row",
    "columns": "our names of columns, and the files'",
    "ids": "the Unicode form in which all ids are read and compared",
}
LAYOUTS = {
    "beir": "BEIR's layout",
    "msmarco": "MS MARCO's layout",
    "dpr": "DPR's files",
    "parquet": "Parquet tables",
    "lines": "a text file, a document a line",
    "tevatron": "Tevatron's training data",
    "flagembedding": "FlagEmbedding's training data",
    "sentence_transformers": "training data of sentence-transformers",
}


def _next(file: Path, found: Inspection) -> tuple[str, str]:
    """The commands that come next, which leave out the records that cannot be used."""
    drop = " --set data.on_bad=drop" if found.bad else ""
    return f"{program()} plan {shlex.quote(str(file))}{drop}", f"{program()} run {shlex.quote(str(file))}{drop}"


def _to_use(left: list[str], keys: Keys, folder: Path, file: Path) -> list[str]:
    """What to write where there are no queries, and tables that may have them are not used."""
    name = left[0] if len(left) == 1 else "FILE"
    ids = dict.fromkeys(numbered(folder, keys).values(), "THEIRS")
    columns = {
        "documents": keys.get("columns", {}).get("documents", {}) | ids,
        "queries": {"query_id": "THEIRS", "text": "THEIRS"},
        "qrels": {"query_id": "THEIRS", "doc_id": "THEIRS"},
    }
    wanted = {"format": "tables", "queries": name, "qrels": name, "graded": False, "split": "train", "columns": columns}
    return [
        f"not used: {listing(left)}; if queries or judgements are there, say so in {file} under `data`, with",
        "the files' names of columns, and judgements that name documents by their ids:",
        *(f"{key}: {yaml_line(value)}" for key, value in wanted.items() if keys.get(key) != value),
        "or go on with the documents alone:",
    ]


def _layout(keys: Keys) -> str:
    """What a layout is called."""
    if keys["format"] != "tables":
        return LAYOUTS[keys["format"]]
    files = list(dict.fromkeys(file for role in ("documents", "queries", "qrels") for file in patterns(keys.get(role))))
    if keys.get("paired"):
        return f"questions with their texts ({', '.join(files)})"
    return f"tables ({', '.join(files)})"


def _have(count: int) -> str:
    """So many records, and their verb."""
    return f"{count:,} {'has' if count == 1 else 'have'}"


def _samples(samples: list[tuple[str, str]]) -> list[str]:
    """Some records, a line each; a terminal would obey control characters."""
    return [
        "  " + textwrap.shorten(f"{name}: {text.translate(CONTROLS)}", WIDTH, placeholder=" ...")
        for name, text in samples
    ]


def _first_bad(found: Inspection) -> str:
    reason = next((one for one in found.bad if one not in MISSING), None)
    return "" if reason is None else f": {reason}, first at {found.examples.get(reason, 'an unknown place')}"


def _plain(folder: Path) -> str:
    """A folder's name as that of a config."""
    name = folder.resolve().name.partition(".")[0] if folder.is_file() else folder.resolve().name
    return re.sub(r"[^\w-]+", "-", name).strip("-") or "collection"
