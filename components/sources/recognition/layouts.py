"""Layouts of other projects: whole collections by the names of files, and training data by the names of columns."""

import re
from pathlib import Path
from typing import Any

from sparring.components.config import UserError, listing
from sparring.components.sources.reading import Line, fields, read_lines
from sparring.components.sources.recognition.table import Table, by_split, split_of
from sparring.components.sources.sentence_transformers import LABELS, NO_TEXT
from sparring.components.sources.table_files import columns_of, kind_of
from sparring.components.yaml_files import yaml_line

Keys = dict[str, Any]
"""The keys of a source's declaration."""
ANCHORS, POSITIVES = ("anchor", "query", "question"), ("positive", "answer")
"""Columns of queries and of relevant texts in data sets of sentence-transformers."""


def beir(folder: Path, names: list[str]) -> Keys | None:
    """Recognise BEIR's folder."""
    plain = {name.removesuffix(".gz") for name in names}
    whole = {"corpus.jsonl", "queries.jsonl"} <= plain and any((folder / "qrels").glob("*.tsv*"))
    return {"format": "beir", "path": str(folder)} if whole else None


def msmarco(folder: Path, names: list[str]) -> Keys | None:
    """Recognise MS MARCO's folder, with three or four columns of documents, or an id and a text."""
    file = next((name for name in names if name in ("collection.tsv", "collection.tsv.gz")), None)
    splits, judged = (
        [match[1] for name in names if (match := re.fullmatch(rf"{role}\.(.+)\.tsv(\.gz)?", name))]
        for role in ("queries", "qrels")
    )
    if file is None or not splits:
        return None
    keys: Keys = {"format": "msmarco", "path": str(folder)}
    cells = len(_first_cells(folder / file))
    columns = {3: ["doc_id", "title", "text"], 4: ["doc_id", "url", "title", "text"]}.get(cells)
    keys |= {"columns": columns} if columns else {}
    if any(f"{split}.small" in splits for split in splits):  # the same queries again: only one of the two can be read
        keys["splits"] = {split.removesuffix(".small"): split for split in sorted(judged) if split in splits}
    return keys


def dpr(folder: Path, names: list[str]) -> Keys | None:
    """Recognise a folder of DPR's passages, with its training data or with questions and answers."""
    documents, retriever, questions = None, dict[str, str](), dict[str, str]()
    for name in names:
        kind, split = kind_of(name), split_of(name) or "train"
        plain = name.removesuffix(".gz")
        if kind == ".json" and {"question", "positive_ctxs"} <= _columns(folder / name):
            retriever[split] = plain
        elif kind in (".tsv", ".csv"):
            cells = _first_cells(folder / name)
            if cells == ["id", "text", "title"]:
                documents = plain
            elif len(cells) == 2 and re.fullmatch(r"\s*\[.*\]\s*", cells[1]):
                questions[split] = plain
    if documents is None or not (retriever or questions):
        return None
    keys = {"format": "dpr", "path": str(folder), "documents": documents, "retriever": retriever}
    rest = {split: name for split, name in questions.items() if split not in retriever}
    return {**keys, "questions": rest} if rest else keys


def _first_cells(path: Path) -> list[str]:
    """Return the cells of the first line of a file that is text."""
    return next((fields(line.text) for line in read_lines(path) if isinstance(line, Line)), [])


def _columns(path: Path) -> set[str]:
    try:
        return set(columns_of(path))
    except UserError:
        return set()


def training_format(table: Table) -> str | None:
    """Return the project whose training data a table holds."""
    columns = {*table.columns}
    if {"query_id", "query", "positive_passages"} <= columns or {"query_id", "positive_document_ids"} <= columns:
        return "tevatron"
    if {"query", "pos", "neg"} <= columns:
        return "flagembedding"
    triplets = columns & {*ANCHORS} and columns & {*POSITIVES} and columns & {"negative", "negative_1"}
    return "sentence_transformers" if triplets and kind_of(table.name) != ".csv" else None


def training_data(folder: Path, tables: list[Table]) -> Keys | None:
    """Recognise training data of one project, a file a split, with nothing else but the corpus that it may name."""
    groups = [table for table in tables if training_format(table)]
    rest = [table for table in tables if not training_format(table)]
    names = [table.name for table in groups]
    by_ids = any("positive_document_ids" in table.columns for table in groups)
    if len({training_format(table) for table in groups}) != 1 or len(rest) != by_ids:
        return None
    files = by_split(folder, names) or ({"train": names[0]} if len(names) == 1 else None)
    keys: Keys = {"format": training_format(groups[0]), "path": str(folder), "groups": files or {"train": names}}
    if keys["format"] == "sentence_transformers":  # takes all columns for texts, in their order, unless declared
        texts = [_texts(table) for table in groups]
        plain = all([name for name in table.columns if name not in (*LABELS, *NO_TEXT)] == texts[0] for table in groups)
        keys |= {} if plain or any(names != texts[0] for names in texts) else {"columns": texts[0]}
    keys |= {"corpus": rest[0].name} if rest else {}
    if files is None:
        raise UserError(
            f"several files of training data: {listing(names)}; accepted: names that tell their splits, such as "
            f"train.jsonl and dev.jsonl, or a config that says `data: {yaml_line(keys)}`"
        )
    return keys


def _texts(table: Table) -> list[str]:
    """Return the columns with texts of sentence-transformers: the query's, the positive's, the negatives'."""
    first = [next(name for name in names if name in table.columns) for names in (ANCHORS, POSITIVES)]
    return first + [name for name in table.columns if re.fullmatch(r"negative(_\d+)?", name)]


LAYOUTS = (beir, msmarco, dpr)
"""Whole collections. Each returns a folder's declaration by the names in it, or None."""
