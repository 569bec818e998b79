"""Labelled sentences in tab-separated files with a header line, plain or .gz.

The header names the columns, in any order. Pairs with a similarity have `score sentence1 sentence2`. Sentences with a
class have `label sentence`, and pairs with a class have `label sentence1 sentence2`. Additional columns are ignored.
Quotes are part of the text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import model_validator

from sparring.components.config import listing
from sparring.components.sources import base, labelled
from sparring.components.sources.reading import fitting, plain_or_gz
from sparring.components.sources.records import Bad
from sparring.components.sources.table_files import read_table

SPLIT = "{split}"
LAYOUTS = (("score", "sentence1", "sentence2"), ("label", "sentence"), ("label", "sentence1", "sentence2"))
"""Combinations of columns that are read."""


class Source(labelled.LabelledSource):
    """The keys of `format: tsv`."""

    path: str
    """File, or with `{split}` in its name a file per split, such as `data/stsb/{split}.tsv`. `$SPARRING_DATA`, if set,
    replaces a leading `data/`."""
    splits: base.Splits = None
    """Splits to read: all (`null`), a list of names, or a mapping such as `{dev: validation}`. A single file is the
    split `all`."""

    @model_validator(mode="after")
    def _splits_have_files(self) -> Self:
        if self.splits is not None and SPLIT not in Path(self.path).name:
            raise ValueError(f"splits: {self.path} is a single file. Write {SPLIT} in the path, or remove `splits`.")
        return self

    def files(self) -> dict[str, Path]:
        """Return the file of each split."""
        return {path.name: path for path in self._paths().values()}

    def missing(self) -> list[str]:
        """Return the missing files, or the pattern if no file matches it."""
        return super().missing() if self._paths() else [str(base.locate(self.path))]

    def read_labelled(self) -> Iterator[labelled.Labelled | Bad]:
        """Yield the lines after each header."""
        for split, path in self._paths().items():
            yield from _rows(path, split)

    def _paths(self) -> dict[str, Path]:
        pattern = base.locate(self.path)
        if SPLIT not in pattern.name:
            return {labelled.ALL: plain_or_gz(pattern)}
        before, after = pattern.name.split(SPLIT, 1)
        names = {path.name.removesuffix(".gz") for path in fitting(pattern.parent, "*")}
        fitting_names = (name for name in names if name.startswith(before) and name.endswith(after))
        present = sorted(name[len(before) : -len(after) or None] for name in fitting_names)
        chosen = base.chosen(self.splits, present)
        return {split: plain_or_gz(pattern.parent / f"{before}{text}{after}") for split, text in chosen.items()}


def _rows(path: Path, split: str) -> Iterator[labelled.Labelled | Bad]:
    columns: tuple[str, ...] = ()
    for row in read_table(path, kind=".tsv"):
        if isinstance(row, Bad):
            yield row
            continue
        if not columns:
            columns = next((layout for layout in LAYOUTS if set(layout) <= row.value.keys()), ())
        if not columns:
            accepted = "; ".join(" ".join(layout) for layout in LAYOUTS)
            yield Bad("wrong header", str(path), f"got the columns {listing(row.value)}, expected {accepted}")
            return
        value, *sentences = (row.value[name] for name in columns)
        checked = labelled.scored if columns[0] == "score" else labelled.labelled
        yield checked(f"{split}-{row.place.rpartition(':')[2]}", tuple(sentences), value, split, row.place)
