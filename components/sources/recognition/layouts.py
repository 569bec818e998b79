"""Recognition of other projects' layouts: collections by names of files, and training data by names of columns."""

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
    """Recognise a BEIR folder."""
    plain = {name.removesuffix(".gz") for name in names}
    whole = {"corpus.jsonl", "queries.jsonl"} <= plain and any((folder / "qrels").glob("*.tsv*"))
    return {"format": "beir", "path": str(folder)} if whole else None


def msmarco(folder: Path, names: list[str]) -> Keys | None:
    """Recognise an MS MARCO folder. Its documents have four, three or two columns."""
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
    if any(f"{split}.small" in splits for split in splits):  # the small split repeats queries, so read only one of both
        keys["splits"] = {split.removesuffix(".small"): split for split in sorted(judged) if split in splits}
    return keys


def dpr(folder: Path, names: list[str]) -> Keys | None:
    """Recognise a folder with DPR's passages, and its training data or questions with answers."""
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
    """Return the cells of a file's first line that is valid text."""
    return next((fields(line.text) for line in read_lines(path) if isinstance(line, Line)), [])


def _columns(path: Path) -> set[str]:
    try:
        return set(columns_of(path))
    except UserError:
        return set()


def training_format(table: Table) -> str | None:
    """Return the format of the project whose training data a table contains. Return None for any other table."""
    columns = {*table.columns}
    if {"query_id", "query", "positive_passages"} <= columns or {"query_id", "positive_document_ids"} <= columns:
        return "tevatron"
    if {"query", "pos", "neg"} <= columns:
        return "flagembedding"
    triplets = columns & {*ANCHORS} and columns & {*POSITIVES} and columns & {"negative", "negative_1"}
    return "sentence_transformers" if triplets and kind_of(table.name) != ".csv" else None


def training_data(folder: Path, tables: list[Table]) -> Keys | None:
    """Recognise a project's training data: a file per split, and nothing else except a corpus for the rows' ids."""
    groups = [table for table in tables if training_format(table)]
    rest = [table for table in tables if not training_format(table)]
    names = [table.name for table in groups]
    by_ids = any("positive_document_ids" in table.columns for table in groups)
    if len({training_format(table) for table in groups}) != 1 or len(rest) != by_ids:
        return None
    files = by_split(folder, names) or ({"train": names[0]} if len(names) == 1 else None)
    keys: Keys = {"format": training_format(groups[0]), "path": str(folder), "groups": files or {"train": names}}
    if keys["format"] == "sentence_transformers":  # it reads all columns as texts, in their order, unless declared
        texts = [_texts(table) for table in groups]
        plain = all([name for name in table.columns if name not in (*LABELS, *NO_TEXT)] == texts[0] for table in groups)
        keys |= {} if plain or any(names != texts[0] for names in texts) else {"columns": texts[0]}
    keys |= {"corpus": rest[0].name} if rest else {}
    if files is None:
        raise UserError(
            f"There are several files of training data: {listing(names)}. Name them by their splits, such as "
            f"train.jsonl and dev.jsonl, or write `data: {yaml_line(keys)}` in a config."
        )
    return keys


def _texts(table: Table) -> list[str]:
    """Return the text columns of sentence-transformers' data, in the order query, positive, negatives."""
    first = [next(name for name in names if name in table.columns) for names in (ANCHORS, POSITIVES)]
    return first + [name for name in table.columns if re.fullmatch(r"negative(_\d+)?", name)]


LAYOUTS = (beir, msmarco, dpr)
"""Recognisers of collections. Each returns the declaration of a folder with these names, or None."""
