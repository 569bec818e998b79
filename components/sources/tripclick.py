"""TripClick's benchmark folder: `documents/`, `topics/` and `qrels/`, each file plain or .gz (Rekabsaz et al., 2021).

Topics and qrels are divided into HEAD, TORSO and TAIL by the frequency of the query. RAW labels are 1 for a clicked
document; DCTR labels, which only HEAD has, are grades from 1 to 3 by the rate of clicks, like those of TREC DL.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from sparring.components.sources import base
from sparring.components.sources.reading import fitting, named, plain_or_gz, read_judgements, read_lines
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, query

Labels = Literal["raw", "dctr"]


class Source(base.Source):
    """The keys of `format: tripclick`."""

    path: str
    """The folder. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""
    splits: dict[str, list[str]] = Field(
        {"train": ["head.train", "torso.train"], "dev": ["head.val"], "test": ["head.test"]}, min_length=1
    )
    """The parts of each split: a part NAME is `topics/topics.NAME.txt` with `qrels/qrels.LABELS.NAME.txt`. The default
    is that of Zerveas et al. (2023)."""
    labels: Labels | dict[str, Labels] = "raw"
    """The labels of all splits, or of each: `{train: raw, dev: dctr, test: dctr}`."""

    def files(self) -> dict[str, Path]:
        """The documents, and the topics and qrels of the splits."""
        folder = base.locate(self.path)
        documents = fitting(folder / "documents", "docs_grp_*.txt*") or [folder / "documents/docs_grp_00.txt"]
        parts = [(split, name) for split, names in self.splits.items() for name in names]
        paths = [*documents, *(self._topics(name) for _, name in parts), *(self._qrels(*part) for part in parts)]
        return named(folder, paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """The documents of every file, in the order of the files' names."""
        for name, path in self.files().items():
            if name.startswith("documents/"):
                yield from _documents(path)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The topics of each split."""
        for split, names in self.splits.items():
            for name in names:
                yield from _queries(self._topics(name), split)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The judgements of each split."""
        for split, names in self.splits.items():
            for name in names:
                yield from read_judgements(self._qrels(split, name), split)

    def _topics(self, name: str) -> Path:
        return plain_or_gz(base.locate(self.path) / "topics" / f"topics.{name}.txt")

    def _qrels(self, split: str, name: str) -> Path:
        labels = self.labels if isinstance(self.labels, str) else self.labels.get(split, "raw")
        return plain_or_gz(base.locate(self.path) / "qrels" / f"qrels.{labels}.{name}.txt")


def _documents(path: Path) -> Iterator[Document | Bad]:
    """The documents of a file: `<DOC>` with `<DOCNO>` and `<TITLE>` on a line each, and `<TEXT>` over several lines."""
    place, held, inside = "", dict[str, str](), False
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
        elif line.text.startswith("<DOC>"):
            if place:
                yield Bad("record without an end", place, "no </DOC>", held.get("DOCNO", "").strip())
            place, held, inside = line.place, {}, False
        elif line.text.startswith("</DOC>"):
            text = held.get("TEXT", "").strip()
            yield document(held.get("DOCNO", "").strip(), held.get("TITLE", "").strip(), text, place or line.place)
            place, inside = "", False
        elif line.text.startswith("</TEXT>"):
            inside = False
        elif not inside and (name := _tag(line.text)) in ("DOCNO", "TITLE", "URL", "TEXT"):
            held[name] = _content(line.text, name) + "\n"
            inside = name == "TEXT" and not line.text.endswith("</TEXT>")
        elif inside:
            text, end, _ = line.text.partition("</TEXT>")
            held["TEXT"] += text + "\n"
            inside = not end
    if place:
        yield Bad("record without an end", place, "no </DOC>", held.get("DOCNO", "").strip())


def _queries(path: Path, split: str) -> Iterator[Query | Bad]:
    """The topics of a file: `<top>` with `<num>` and `<title>`, which may extend over several lines."""
    place, number, title = "", "", list[str]()
    reading = False
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
        elif line.text.startswith("<top>"):
            if place:
                yield Bad("record without an end", place, "no </top>", number)
            place, number, title, reading = line.place, "", [], False
        elif line.text.startswith("</top>"):
            yield query(number, " ".join(title).strip(), None, split, place or line.place)
            place, reading = "", False
        elif _tag(line.text) == "num":
            number = _content(line.text.rstrip(), "num").strip().removeprefix("Number:").strip()
        elif _tag(line.text) == "title":
            title = [_content(line.text.rstrip(), "title").strip()]
            reading = not line.text.rstrip().endswith("</title>")
        elif line.text.startswith("<"):
            reading = False
        elif reading:
            title.append(line.text.strip())
    if place:
        yield Bad("record without an end", place, "no </top>", number)


def _tag(line: str) -> str:
    """The name of the element that begins a line; empty if none does."""
    return line[1:].partition(">")[0] if line.startswith("<") else ""


def _content(line: str, name: str) -> str:
    """What a line has of the element that begins it."""
    return line.removeprefix(f"<{name}>").removesuffix(f"</{name}>")
