"""A source: the declaration, in a recipe's YAML, of a collection and of how to read it.

A format is a file of this folder with a `class Source(base.Source)`; `format: beir` finds `beir.py`. A new format
is one new file. Reading is lazy, and importing a format is cheap, so that a plan can be made without the files.
"""

import importlib
import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, SerializeAsAny, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from components.config import Config, fields_at, listing
from components.sources.records import Bad, Document, Judgement, Query

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

Splits = list[str] | dict[str, str] | None
"""Which splits are read: all that are there, those of a list, or a mapping of our name to the collection's."""


class Sample(Config):
    """A sample of queries that are not drawn one by one."""

    queries: PositiveInt
    """How many."""
    by: Literal["document"]
    """Documents are drawn, each with all queries that it is the first relevant one of: as many of a batch's documents
    stand in it again as in training on all queries with larger batches."""


class Source(Config):
    """What every format declares. All of it is identity."""

    format: str
    """The name of the format: a file of `components/sources`."""
    on_bad: Literal["fail", "drop"] = "fail"
    """Bad records stop the ingest with the place of the first, or are dropped and counted by reason."""
    sha256: dict[str, Sha256] = {}
    """Digests that files must have, by the name the format gives them (their path inside `path`)."""
    sample: dict[str, PositiveInt | Sample] = {}
    """Only so many queries of a split, chosen by their ids alone: `{train: 10000}`, or by those of the documents that
    they ask for: `{train: {queries: 10000, by: document}}`. Documents all stay."""

    def missing(self) -> list[str]:
        """What must be there and is not; empty when the source can be read."""
        return [str(path) for path in self.files().values() if not path.exists()]

    @abstractmethod
    def read_documents(self) -> Iterator[Document | Bad]:
        """Every document, in the order of the files."""

    @abstractmethod
    def read_queries(self) -> Iterator[Query | Bad]:
        """Every query of the chosen splits."""

    @abstractmethod
    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Every judgement of the chosen splits."""

    def about(self) -> dict[str, Any]:
        """What the record should tell of this source besides counts and digests."""
        return {}


def formats() -> list[str]:
    """Names of all formats."""
    folder = Path(__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if "\nclass Source(base.Source)" in path.read_text())


def declared(tree: Any) -> Any:
    """The source that a mapping with `format` declares; mistakes keep their place below the key."""
    if not isinstance(tree, dict):
        return tree
    name = tree.get("format")
    accepted = formats()
    if name not in accepted:
        got = "no format" if name is None else f"unknown format {name!r}"
        raise ValueError(f"{got}; accepted: {listing(accepted)}")
    found: type[Source] = importlib.import_module(f"components.sources.{name}").Source
    try:
        return found.model_validate(tree)
    except ValidationError as error:
        raise _with_accepted_keys(error, found) from None


def _with_accepted_keys(error: ValidationError, found: type[Source]) -> ValidationError:
    """The same error; an unknown key of the declaration says which keys its format knows."""
    details: list[InitErrorDetails] = []
    for line in error.errors():
        kind: str | PydanticCustomError = line["type"]
        if kind == "extra_forbidden":
            accepted = fields_at(found, line["loc"][:-1])
            kind = PydanticCustomError("value_error", f"unknown key; accepted: {listing(accepted)}")
        elif kind == "value_error":
            kind = PydanticCustomError("value_error", line["msg"].removeprefix("Value error, "))
        details.append(InitErrorDetails(type=kind, loc=line["loc"], input=line["input"], ctx=line.get("ctx", {})))
    return ValidationError.from_exception_data(found.__name__, details)


AnySource = Annotated[SerializeAsAny[Source], BeforeValidator(declared)]
"""The type of a config's field that holds a source of any format."""


def locate(path: str) -> Path:
    """The place of a declared path: `$SPARRING_DATA` takes the place of a leading `data/`."""
    parts = Path(path).parts
    moved = os.environ.get("SPARRING_DATA")
    if moved and parts and parts[0] == "data":
        return Path(moved, *parts[1:])
    return Path(path)


def chosen(splits: Splits, present: list[str]) -> dict[str, str]:
    """Our name of each split that is read, with the collection's name for it."""
    if isinstance(splits, dict):
        return splits
    return {name: name for name in (present if splits is None else splits)}
