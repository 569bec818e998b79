"""Labelled sentences as tab-separated files with a header line, each plain or .gz.

The header names the columns, in any order: `score sentence1 sentence2` for pairs with a similarity, `label sentence`
for sentences with a class, `label sentence1 sentence2` for pairs with one. Other columns are ignored. Quotes are part
of the text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import model_validator

from sparring.components.config import listing
from sparring.components.sources import base, labelled
from sparring.components.sources.reading import fitting, plain_or_gz, read_lines
from sparring.components.sources.records import Bad

SPLIT = "{split}"
LAYOUTS = (("score", "sentence1", "sentence2"), ("label", "sentence"), ("label", "sentence1", "sentence2"))
"""The columns that are read together."""


class Source(labelled.LabelledSource):
    """The keys of `format: tsv`."""

    path: str
    """A file, or files by split where it has `{split}` in it: `data/stsb/{split}.tsv`. A leading `data/` is replaced by
    `$SPARRING_DATA`, if that is set."""
    splits: base.Splits = None
    """Which splits are read: all that there are (null), a list of names, or a mapping such as `{dev: validation}`. A
    file without splits is the split `all`."""

    @model_validator(mode="after")
    def _splits_have_files(self) -> Self:
        if self.splits is not None and SPLIT not in Path(self.path).name:
            raise ValueError(f"splits: {self.path} is one file; accepted: with {SPLIT} in the path")
        return self

    def files(self) -> dict[str, Path]:
        """The file of each split."""
        return {path.name: path for path in self._paths().values()}

    def missing(self) -> list[str]:
        """The files that are not there; the pattern where no file fits it."""
        return super().missing() if self._paths() else [str(base.locate(self.path))]

    def read_labelled(self) -> Iterator[labelled.Labelled | Bad]:
        """The lines below each header."""
        for split, path in self._paths().items():
            yield from _rows(path, split)

    def _paths(self) -> dict[str, Path]:
        pattern = base.locate(self.path)
        if SPLIT not in pattern.name:
            return {labelled.ALL: plain_or_gz(pattern)}
        before, after = pattern.name.split(SPLIT, 1)
        names = {path.name.removesuffix(".gz") for path in fitting(pattern.parent, "*")}
        there = {name for name in names if name.startswith(before) and name.endswith(after)}
        present = sorted(name[len(before) : -len(after) or None] for name in there)
        chosen = base.chosen(self.splits, present)
        return {ours: plain_or_gz(pattern.parent / f"{before}{theirs}{after}") for ours, theirs in chosen.items()}


def _rows(path: Path, split: str) -> Iterator[labelled.Labelled | Bad]:
    header: list[str] | None = None
    columns: tuple[str, ...] = ()
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
            continue
        cells = line.text.split("\t")
        if header is None:
            header = [cell.strip() for cell in cells]
            found = [layout for layout in LAYOUTS if set(layout) <= set(header)]
            if not found:
                accepted = "; ".join(" ".join(layout) for layout in LAYOUTS)
                yield Bad("wrong header", line.place, f"got the columns {listing(header)}; accepted: {accepted}")
                return
            columns = found[0]
            if twice := [column for column in columns if header.count(column) > 1]:
                yield Bad("wrong header", line.place, f"{listing(twice)}: there twice; accepted: each column once")
                return
        elif len(cells) != len(header):
            yield Bad("wrong columns", line.place, f"got {len(cells)}, expected {listing(header)} between tabs")
        else:
            row = dict(zip(header, cells, strict=True))
            value, *sentences = (row[name] for name in columns)
            checked = labelled.scored if columns[0] == "score" else labelled.labelled
            yield checked(f"{split}-{line.number}", tuple(sentences), value, split, line.place)
