"""Describe a folder of files, or one file, and write a config for it. The whole collection is read: counts, lengths,
samples, duplicates, and judgements of missing records. Only the config is written."""

import argparse
import re
import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sparring.components.config import CONTROLS, Config, UserError, listing, parse, printable
from sparring.components.data.own_documents import remark
from sparring.components.files import replacing
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.sources import remote
from sparring.components.sources.base import AnySource
from sparring.components.sources.inspection import MISSING, Inspection
from sparring.components.sources.recognition.layouts import Keys
from sparring.components.sources.recognition.recognise import recognise
from sparring.components.sources.recognition.table import names_in
from sparring.components.sources.records import NOT_UTF8
from sparring.components.sources.survey import relevant_documents
from sparring.components.sources.tables import patterns
from sparring.components.yaml_files import yaml_line
from sparring.workflows.commands import languages
from sparring.workflows.commands.shared_arguments import check_output
from sparring.workflows.program import program
from sparring.workflows.recipes.adapt.config import START_MODEL

WIDTH = 100


class Declared(Config):
    """A config of a source alone."""

    data: AnySource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "folder", type=_collection, metavar="FOLDER", help="the collection: a folder, a file, or the URL of one"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the config to write (default: the folder's name with .yaml, in the current folder)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the config if it is there")


def _collection(place: str) -> Path:
    """Return the path of a collection. A URL is copied to this machine."""
    return remote.local_path(place) if remote.is_url(place) else Path(place)


class Written(NamedTuple):
    """Result of writing a config."""

    steps: tuple[str, ...]
    """The next steps, in lines for people."""
    decision: bool
    """The first step is a decision of the user's, and not a command."""
    only_bad: bool
    """The decision is only about records that cannot be used."""


def call(arguments: argparse.Namespace) -> None:
    """Print what the folder holds, and write the config."""
    file = config_file(arguments)
    written = write_config(arguments.folder, file, overwrite=arguments.overwrite)
    steps = "\n       ".join(map(printable, written.steps))
    print(f"\nwrote {file}\nnext:  {steps}")


def config_file(arguments: argparse.Namespace) -> Path:
    """Return the file that the config is written to: `--output`, or one in this folder named after the collection."""
    return arguments.output or Path(f"{_plain(arguments.folder)}.yaml")


def write_config(folder: Path, file: Path, *, overwrite: bool) -> Written:
    """Print what a folder holds, and write a config for it. UserError if it holds no collection, or if the file exists
    and must not be replaced."""
    if file.exists() and not overwrite:
        raise UserError(f"{file}: is there already; accepted: another file (-o FILE), or --overwrite")
    if not file.absolute().parent.is_dir():
        raise UserError(f"{file}: there is no such folder to write to")
    check_output(file, "another file (-o FILE)")
    if problems := remote.problems([str(folder)]):
        raise UserError(problems[0], key="folder", code="unreadable-url")
    keys, remarks, unread = recognise(folder)
    keys["path"] = remote.url_of(keys["path"])
    source = parse(Declared, {"data": keys}, where=str(folder)).data
    print(printable(f"{remote.url_of(str(folder))}: {_layout(keys)}"), flush=True)
    contents = Inspection(source)
    if contents.in_two_forms:
        keys["ids"] = "NFC"
        contents = Inspection(parse(Declared, {"data": keys}, where=str(folder)).data)
        print("Some judgements write ids in another Unicode form than the tables. The config reads all ids in NFC.")
    if not contents.documents.count:
        raise UserError(f"{folder}: no documents were read" + _first_bad(contents))
    unused = [*remarks, *_unused(folder, source.files().values(), unread)]
    for line in (*unused, "", *summary(contents)):
        print(printable(line))
    spoken = languages.of_samples(contents.documents.sample, contents.queries.sample)
    start = languages.of_start_model(spoken, DualEncoderConfig(**START_MODEL))
    for line in (*languages.of_collection(spoken), *languages.of_queries(spoken), *start):
        print(printable(line))
    with replacing(file) as temporary:
        text = config_text(keys, contents, file) + languages.config_lines(spoken, start)
        temporary.write_text(text, encoding="utf-8")
    steps = _steps(keys, contents, file, unread)
    commands = _next(file, contents)
    return Written(steps, steps != commands, bool(contents.bad) and steps[1:] == commands)


THEIRS = (
    "columns: {documents: {doc_id: THEIRS}, queries: {query_id: THEIRS}, qrels: {query_id: THEIRS, doc_id: THEIRS}}"
)


def _steps(keys: Keys, contents: Inspection, file: Path, unread: dict[str, str]) -> tuple[str, ...]:
    """Return what to do next, in lines."""
    bad, judgements = contents.bad, contents.judgements.total()
    if contents.unread_judgements and not judgements:
        return ("fix the files: none of their judgements can be read",)
    if judgements and any(bad[reason] >= judgements for reason in MISSING):
        if keys["format"] == "tables":
            return (f"say in {file} which columns have the ids that the judgements name, in the same case:", THEIRS)
        return ("fix the files: no judgement names both a query and a document, in the case of their ids",)
    steps: tuple[str, ...] = _next(file, contents)
    if bad:
        steps = (
            "fix the files and leave `--set data.on_bad=drop` out, or drop the records that cannot be used:",
            *steps,
        )
    if not contents.queries.count and any(reason.startswith("columns ") for reason in unread.values()):
        return (
            f"if unused files have queries or judgements, name them in {file} under `data`, for example",
            "queries: FILE",
            "qrels: FILE",
            THEIRS,
            "or continue with the documents alone:",
            *steps,
        )
    return steps


def _unused(folder: Path, used: Iterable[Path], unread: dict[str, str]) -> list[str]:
    """List the files and folders that are not read, by their kind."""
    if not folder.is_dir():
        return []
    kept = {path.relative_to(folder).parts[0] for path in used if path.is_relative_to(folder)}
    reasons = dict[str, list[str]]()
    for name in names_in(folder):
        if name.rstrip("/") not in kept:
            reasons.setdefault(unread.get(name, ""), []).append(name)
    lines = []
    for reason, names in reasons.items():
        more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
        lines.append(f"not used: {listing(names[:5])}{more}" + (f": {reason}" if reason else ""))
    return lines


def summary(contents: Inspection) -> list[str]:
    """Describe a collection in lines for people."""
    documents, queries = contents.documents, contents.queries
    rows = queries.count - queries.records.repeated()
    lines = [f"{documents.count:,} documents: {documents.lengths()}", *_samples(documents.samples)]
    if same := documents.texts.repeated():
        lines.append(f"  {_have(same)} the text of an earlier one")
    lines.append(f"{rows:,} queries" + (f": {queries.lengths()}" if rows else ""))
    lines += _samples(queries.samples)
    if same := queries.texts.repeated() - queries.records.repeated():
        lines.append(f"  {_have(same)} the text of an earlier one")
    for split, count in contents.by_split.items():
        judged = contents.judged_by_split.get(split, 0)
        lines.append(
            f"  split {split}: {count:,} queries, {judged:,} with a relevant document, "
            f"{contents.judgements[split]:,} judgements"
        )
    if contents.judgements:
        grades = ", ".join(f"{grade}: {count:,}" for grade, count in sorted(contents.grades.items()))
        lines.append(f"  {relevant_documents(contents.relevant)}; judgements by grade: {grades}")
    elif queries.count:
        lines.append("  no judgements: nobody has said which documents are relevant to them")
    if text := remark(contents.own_documents, sum(contents.by_split.values())):
        lines.append(text)
    if contents.bad:
        count = contents.bad.total()
        lines.append(f"{count:,} record{'' if count == 1 else 's'} cannot be used:")
        for reason, count in contents.bad.items():
            where = f", first at {contents.examples[reason]}" if reason in contents.examples else ""
            lines.append(f"  {reason}: {count:,}{where}")
        convert = ", convert the file (iconv -f CP1252 -t UTF-8)" if NOT_UTF8 in contents.bad else ""
        lines.append(f"  A run stops at the first of them. Repair them{convert}, or let `on_bad: drop` leave them out.")
    return lines


def config_text(keys: Keys, contents: Inspection, file: Path) -> str:
    """Return the config: two keys, and comments on what a reader may want to change."""
    splits = ", ".join(f"{count:,} {split}" for split, count in contents.by_split.items())
    holds = f"{contents.documents.count:,} documents; queries: {splits or 'none'}"
    plan, run = _next(file, contents)
    lines = [
        *textwrap.wrap(f"Written by `{program()} init`. {_layout(keys)}: {holds}.", 110),
        f"    {plan}     every step, and the numbers chosen for this collection, with reasons",
        f"    {run}      ends with the system to deploy, and how good it is",
    ]
    text = "".join(f"# {line}\n" for line in lines) + "recipe: adapt\ndata:\n"
    for key, value in keys.items():
        comment = COMMENTS.get(key, "") if value is not None else "none"
        if (key == "path" and Path(str(value)).is_absolute()) or isinstance(value, list):
            comment = ""  # a list of columns has no comment
        text += f"  {key}: {yaml_line(value)}" + (f"  # {comment}" if comment else "") + "\n"
    if contents.bad:
        reasons = ", ".join(f"{count:,} x {reason}" for reason, count in contents.bad.items())
        text += f"  # on_bad: drop  # would leave out: {reasons}\n"
    if remark(contents.own_documents, sum(contents.by_split.values())):
        text += "  # own_document: leave out  # or keep: queries are documents, and each finds itself first\n"
    if not contents.judged_by_split:
        text += (
            "# Nothing can be measured without queries that have relevant documents. `plan` says what can be done.\n"
        )
    return text + (
        "# Every other number is chosen for the collection. Any can be set here, or by --set, such as:\n"
        "# train: {warm: {epochs: 3}}\n"
    )


COMMENTS = {
    "path": "relative to the folder that the command runs in",
    "split": "the split of all queries; `adapt` holds out some of them to choose by and to measure on",
    "graded": "the qrels have no grades: each row names a relevant document",
    "splits": "the files of each split; if one file is a part of another, only the part is read",
    "paired": "the document of a row is relevant to the query of the same row",
    "columns": "our names of columns, and those in the files",
    "ids": "the Unicode form in which all ids are read and compared",
}
LAYOUTS = {
    "beir": "BEIR's layout",
    "msmarco": "MS MARCO's layout",
    "dpr": "DPR's files",
    "lines": "a text file, a document a line",
    "tevatron": "Tevatron's training data",
    "flagembedding": "FlagEmbedding's training data",
    "sentence_transformers": "training data of sentence-transformers",
}


def _next(file: Path, contents: Inspection) -> tuple[str, str]:
    """Return the next commands, which leave out the records that cannot be used."""
    drop = " --set data.on_bad=drop" if contents.bad else ""
    return f"{program()} plan {shlex.quote(str(file))}{drop}", f"{program()} run {shlex.quote(str(file))}{drop}"


ROLES = ("documents", "queries", "qrels")


def _layout(keys: Keys) -> str:
    """Name a layout."""
    if keys["format"] != "tables":
        return LAYOUTS[keys["format"]]
    files = list(dict.fromkeys(file for role in ROLES for file, _ in patterns(keys.get(role))))
    if keys.get("paired"):
        return f"questions with their texts ({', '.join(files)})"
    return f"tables ({', '.join(files)})"


def _have(count: int) -> str:
    """Return a number of records and their verb."""
    return f"{count:,} {'has' if count == 1 else 'have'}"


def _samples(samples: list[tuple[str, str]]) -> list[str]:
    """Return one line per record, without control characters, which a terminal would obey."""
    return [
        "  " + textwrap.shorten(f"{name}: {text.translate(CONTROLS)}", WIDTH, placeholder=" ...")
        for name, text in samples
    ]


def _first_bad(contents: Inspection) -> str:
    reason = next((reason for reason in contents.bad if reason not in MISSING), None)
    return "" if reason is None else f": {reason}, first at {contents.examples.get(reason, 'an unknown place')}"


def _plain(folder: Path) -> str:
    """Return a folder's name as the name of a config."""
    name = folder.resolve().name.partition(".")[0] if folder.is_file() else folder.resolve().name
    return re.sub(r"[^\w-]+", "-", name).strip("-") or "collection"
