"""TripClick's benchmark folder (Rekabsaz et al., 2021): `documents/`, `topics/` and `qrels/`, each file plain or .gz.

Topics and qrels are divided into HEAD, TORSO and TAIL by the frequency of the query. RAW labels are 1 for a clicked
document. DCTR labels are grades from 1 to 3 by the click rate, like those of TREC DL. Only HEAD has DCTR labels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from sparring.components.sources import base
from sparring.components.sources.reading import Item, fitting, named, plain_or_gz, read_judgements, read_lines
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, query

Labels = Literal["raw", "dctr"]


class Source(base.Source):
    """The keys of `format: tripclick`."""

    path: str
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    splits: dict[str, list[str]] = Field(
        {"train": ["head.train", "torso.train"], "dev": ["head.val"], "test": ["head.test"]}, min_length=1
    )
    """Parts of each split. A part NAME is `topics/topics.NAME.txt` with `qrels/qrels.LABELS.NAME.txt`. The default is
    that of Zerveas et al. (2023)."""
    labels: Labels | dict[str, Labels] = "raw"
    """Kind of labels of all splits, or of each split, such as `{train: raw, dev: dctr, test: dctr}`."""

    def files(self) -> dict[str, Path]:
        """Return the documents, and the topics and qrels of the splits."""
        folder = base.locate(self.path)
        documents = fitting(folder / "documents", "docs_grp_*.txt*") or [folder / "documents/docs_grp_00.txt"]
        parts = list(self._parts())
        paths = [*documents, *(self._topics(name) for _, name in parts), *(self._qrels(*part) for part in parts)]
        return named(folder, paths)

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the documents of every file, in the order of the files' names."""
        for name, path in self.files().items():
            for record in _records(path, "DOC") if name.startswith("documents/") else ():
                if isinstance(record, Bad):
                    yield record
                else:
                    name, title, text = (record.value.get(tag, "").strip() for tag in ("DOCNO", "TITLE", "TEXT"))
                    yield document(name, title, text, record.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the topics of each split."""
        for split, part in self._parts():
            for record in _records(self._topics(part), "top"):
                if isinstance(record, Bad):
                    yield record
                    continue
                number = record.value.get("num", "").strip().removeprefix("Number:").strip()
                title = " ".join(map(str.strip, record.value.get("title", "").split("\n"))).strip()
                yield query(number, title, None, split, record.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the judgements of each split."""
        for split, part in self._parts():
            yield from read_judgements(self._qrels(split, part), split)

    def _parts(self) -> Iterator[tuple[str, str]]:
        return ((split, part) for split, parts in self.splits.items() for part in parts)

    def _topics(self, part: str) -> Path:
        return plain_or_gz(base.locate(self.path) / "topics" / f"topics.{part}.txt")

    def _qrels(self, split: str, part: str) -> Path:
        labels = self.labels if isinstance(self.labels, str) else self.labels.get(split, "raw")
        return plain_or_gz(base.locate(self.path) / "qrels" / f"qrels.{labels}.{part}.txt")


TAGS = ("DOCNO", "TITLE", "URL", "TEXT", "num", "title", "desc", "narr")


def _records(path: Path, kind: str) -> Iterator[Item | Bad]:
    """Yield the elements of each `<DOC>` or `<top>`, by their tags.

    An element extends to its end tag, or to the next element. Only its end tag ends TEXT.
    """
    place, elements, tag = "", dict[str, str](), ""
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
            continue
        text = line.text
        start = text[1:].partition(">")[0] if text.startswith("<") else ""
        if start == kind:
            if place:
                yield Bad("record without an end", place, f"no </{kind}>")
            place, elements, tag = line.place, {}, ""
        elif start == f"/{kind}":
            yield Item(elements, place or line.place)
            place, tag = "", ""
        else:
            if start in TAGS and tag != "TEXT":
                tag, text = start, text[len(start) + 2 :]
                elements[tag] = ""
            if tag:
                content, end, _ = text.partition(f"</{tag}>")
                elements[tag] += content + "\n"
                tag = "" if end else tag
    if place:
        yield Bad("record without an end", place, f"no </{kind}>")
