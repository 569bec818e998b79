"""Layouts of other projects, known by their files' names and columns: whole collections, and training data."""

import re
from pathlib import Path

from sparring.components.config import UserError, listing
from sparring.components.sources.reading import fields
from sparring.components.sources.recognition.files import Keys, by_split, first_object, head, split_told
from sparring.components.sources.recognition.links import Table
from sparring.components.sources.sentence_transformers import LABELS, NO_TEXT
from sparring.components.sources.tables import kind_of
from sparring.components.yaml_files import yaml_line

ASKED, FOUND = ("anchor", "query", "question"), ("positive", "answer")
"""What sentence-transformers' data sets call queries and what is relevant to them."""
GIVEN: list[tuple[str, set[str]]] = [
    ("tevatron", {"query_id", "query", "positive_passages"}),
    ("tevatron", {"query_id", "query_text", "positive_document_ids"}),
    ("flagembedding", {"query", "pos", "neg"}),
    *(
        ("sentence_transformers", {asked, found, negative})
        for asked in ASKED
        for found in FOUND
        for negative in ("negative", "negative_1")
    ),
    *(("sentence_transformers", {asked, f"{found}[]", "labels[]"}) for asked in ASKED for found in FOUND),
]
"""Training data of other projects, by columns that they have; `[]` stands after one that must hold lists."""


def beir(folder: Path, names: list[str]) -> Keys | None:
    """BEIR's folder."""
    plain = {name.removesuffix(".gz") for name in names}
    judged = list((folder / "qrels").glob("*.tsv*"))
    whole = {"corpus.jsonl", "queries.jsonl"} <= plain and judged
    return {"format": "beir", "path": str(folder)} if whole else None


def msmarco(folder: Path, names: list[str]) -> Keys | None:
    """MS MARCO's folder, with three or four columns of documents, or an id and a text."""
    file = next((name for name in names if name in ("collection.tsv", "collection.tsv.gz")), None)
    if file is None or not any(re.fullmatch(r"queries\..+\.tsv(\.gz)?", name) for name in names):
        return None
    keys: Keys = {"format": "msmarco", "path": str(folder)}
    cells = head(folder / file).count("\t") + 1
    columns = {3: ["doc_id", "title", "text"], 4: ["doc_id", "url", "title", "text"]}.get(cells)
    keys |= {"columns": columns} if columns else {}
    asked, judged = (
        sorted({found[1] for name in names if (found := re.fullmatch(rf"{role}\.(.+)\.tsv(\.gz)?", name))})
        for role in ("queries", "qrels")
    )
    if any(f"{split}.small" in asked for split in asked):  # the same queries again: one of the two can be read
        keys["splits"] = {split.removesuffix(".small"): split for split in judged if split in asked}
    return keys


def dpr(folder: Path, names: list[str]) -> Keys | None:
    """A folder of DPR's passages, with its training data or with questions and answers."""
    documents = None
    retriever: dict[str, str] = {}
    questions: dict[str, str] = {}
    for name in names:
        kind = kind_of(name)
        if kind == ".json":
            first = first_object(folder / name)
            if first is not None and {"question", "positive_ctxs"} <= first.keys():
                retriever[split_told(name) or "train"] = name.removesuffix(".gz")
        elif kind in (".tsv", ".csv"):
            cells = fields(head(folder / name))
            if cells == ["id", "text", "title"]:
                documents = name.removesuffix(".gz")
            elif len(cells) == 2 and re.fullmatch(r"\s*\[.*\]\s*", cells[1]):
                questions[split_told(name) or "train"] = name.removesuffix(".gz")
    if documents is None or not (retriever or questions):
        return None
    keys = {"format": "dpr", "path": str(folder), "documents": documents, "retriever": retriever}
    both = {split: name for split, name in questions.items() if split not in retriever}
    return {**keys, "questions": both} if both else keys


def given_by(table: Table) -> str | None:
    """The project whose training data a table has, if it is a file that such data is read from."""
    columns = {*table.columns, *(f"{name}[]" for name in table.lists)}
    found = (kind for kind, needed in GIVEN if needed <= columns)
    return next(found, None) if kind_of(table.name) in (".jsonl", ".parquet") else None


def training_data(folder: Path, tables: list[Table]) -> Keys | None:
    """Training data of one project, a file a split, where nothing else is there but the corpus that it may name.
    UserError where there are several files whose names tell no splits."""
    found = [(table, kind) for table in tables if (kind := given_by(table)) is not None]
    names = [table.name for table, _ in found]
    groups = by_split(folder, names) or ({"train": names[0]} if len(names) == 1 else None)
    kinds = {kind for _, kind in found}
    others = [table for table in tables if given_by(table) is None]
    by_ids = any("positive_document_ids" in table.columns for table, _ in found)
    if len(kinds) != 1 or len(others) != by_ids:
        return None
    keys: Keys = {"format": kinds.pop(), "path": str(folder), "groups": groups or {"train": names}}
    if keys["format"] == "sentence_transformers":  # takes all columns for texts, in their order, unless it is told
        texts = [_texts(table) for table, _ in found]
        others_too = any(
            [name for name in table.columns if name not in (*LABELS, *NO_TEXT)] != own
            for (table, _), own in zip(found, texts, strict=True)
        )
        keys |= {"columns": texts[0]} if others_too and all(own == texts[0] for own in texts) else {}
    keys |= {"corpus": others[0].name} if others else {}
    if groups is None:
        raise UserError(
            f"several files of training data: {listing(names)}; accepted: names that tell their splits, such as "
            f"train.jsonl and dev.jsonl, or a config that says `data: {yaml_line(keys)}`"
        )
    return keys


def _texts(table: Table) -> list[str]:
    """The columns with texts of sentence-transformers' training data: the query's, the positive's, the negatives'."""
    first = [next(name for name in names if name in table.columns) for names in (ASKED, FOUND)]
    return first + [name for name in table.columns if re.fullmatch(r"negative(_\d+)?", name)]


LAYOUTS = (beir, msmarco, dpr)
"""Those of whole collections. Each gives a folder's declaration, by the names in it, or None where it has another."""
