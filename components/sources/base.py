"""A source: a recipe's declaration, in YAML, of a collection and how to read it.

A format is a file in this folder with a `class Source(base.Source)`; `format: beir` finds `beir.py`. So a new format is
one new file. Importing a format and validating a declaration read none of the collection's files: a plan needs none.
"""

import importlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, SerializeAsAny, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from sparring.components.config import Config, UserError, code_of, did_you_mean, fields_at, listing, unknown
from sparring.components.data.own_documents import Decision
from sparring.components.rng import keyed_int
from sparring.components.sources.forms import Form, in_form
from sparring.components.sources.records import Bad, Document, Judgement, Query

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

Splits = list[str] | dict[str, str] | None
"""Which splits are read: all (null), a list of names, or a mapping from new names to the collection's."""


class Sample(Config):
    """A sample of queries that keeps queries about the same document together."""

    queries: PositiveInt
    """The number of queries."""
    by: Literal["document"]
    """Documents are sampled, each with all queries whose first relevant document it is. A batch then repeats documents
    as often as a larger batch in training on all queries."""


class HoldOut(Config):
    """A split that is drawn from another."""

    of: str = "train"
    """The split whose queries are drawn."""
    share: float = Field(0.1, gt=0, lt=1)
    """The share of its queries, of those that no split above this one draws; by their ids: the same ones whatever else
    the split holds. Queries of the same text, but for case and white space, stay together."""
    start: float | None = Field(None, ge=0, lt=1)
    """Where the share begins on a circle of length 1, on which all queries of `of` lie by their ids. Shares that do not
    overlap there have no query in common, as folds need it. Null for a draw that knows of no other."""

    def draws(self, split: str, query_id: str) -> bool:
        """Say whether a query of `of` is drawn for a split."""
        if self.start is None:
            return keyed_int("hold out", split, query_id) < self.share * 2**64
        return (keyed_int("hold out", self.of, query_id) / 2**64 - self.start) % 1 < self.share


READ = ("read_documents", "read_queries", "read_qrels", "read_groups", "read_examples")
"""The methods of formats that yield records."""
IDS = ("doc_id", "query_id", "doc_ids", "example_id", "first", "second")
"""The fields of records that hold ids."""


def _in_form(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Bring the ids of the records that a method reads into the form of `ids`."""

    @wraps(read)
    def reading(source: "Source") -> Iterator[Any]:
        for record in read(source):
            if source.ids is None or isinstance(record, Bad):
                yield record
                continue
            named = {name: getattr(record, name) for name in IDS if name in record._fields}
            yield record._replace(
                **{
                    name: [*map(source.id_in_form, value)] if isinstance(value, list) else source.id_in_form(value)
                    for name, value in named.items()
                }
            )

    return reading


class Source(Config):
    """The keys of every format. All are part of the identity of the ingested collection."""

    format: str
    """The name of the format: that of a file in `components/sources`."""
    on_bad: Literal["fail", "drop"] = "fail"
    """For bad records: `fail` stops with the file and line of the first, `drop` leaves them out and counts them by
    reason."""
    sha256: dict[str, Sha256] = {}
    """SHA-256 digests that files must have, by their path inside `path`."""
    sample: dict[str, PositiveInt | Sample] = {}
    """Keep only this many queries of a split, sampled by their ids: `{train: 10000}`, or by the ids of their relevant
    documents: `{train: {queries: 10000, by: document}}`. All documents are kept, but for `only_judged`."""
    only_judged: bool = Field(False, exclude_if=lambda only: not only)
    """Keep only the documents that a judgement of a kept query names: a collection for trials, in which retrieval is
    easier than in the whole."""

    own_document: Decision | None = Field(None, exclude_if=lambda decision: decision is None)
    """What becomes of the document that a query is itself, as in ArguAna, Quora and item-to-item search. `leave out`:
    no ranking has it, and a judgement of it does not count for this query. `leave out with copies`: rankings are also
    without other documents with the query's text, unless they are judged relevant to it. `keep`: it counts like any
    other. If null, it counts too, and `init`, `plan` and the results say so. In training it is never a negative,
    whatever this key says."""

    ids: Form | None = Field(None, exclude_if=lambda form: form is None)
    """The Unicode form in which ids are read, those of imported rankings too. `NFC`: an id that is written with `é` as
    one character here, and as two there, is one id. If null, ids are compared as they are written, character by
    character."""

    hold_out: dict[str, HoldOut] = {}
    """Further splits, drawn from those that there are: `{dev: {of: train, share: 0.1}}` for a collection without dev
    queries. They are drawn before `sample`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the methods that read records, so that a format need not know of Unicode forms."""
        super().__init_subclass__(**kwargs)
        for name in READ:
            if name in vars(cls):
                setattr(cls, name, _in_form(vars(cls)[name]))

    def id_in_form(self, name: Any) -> Any:
        """Return an id in the form of `ids`. Formats that look an id up among records need this."""
        return in_form(self.ids, name) if isinstance(name, str) else name

    def counts(self, queries: Mapping[str, int]) -> dict[str, int]:
        """Estimate the number of queries in each split after splits are held out and samples drawn, from the numbers in
        the collection."""
        counts, by_place = dict(queries), dict[str, float](queries)
        for split, hold_out in self.hold_out.items():
            before = counts if hold_out.start is None else by_place  # shares with a place take nothing from each other
            counts[split] = round(hold_out.share * before.get(hold_out.of, 0))
            counts[hold_out.of] = counts.get(hold_out.of, 0) - counts[split]
            if hold_out.start is None:
                by_place[hold_out.of] = by_place.get(hold_out.of, 0) * (1 - hold_out.share)
        for split, sample in self.sample.items():
            counts[split] = min(counts.get(split, 0), sample if isinstance(sample, int) else sample.queries)
        return counts

    @abstractmethod
    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield every document, in the order of the files."""

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield every query of the chosen splits; by default none."""
        return iter(())

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield every judgement of the chosen splits; by default none."""
        return iter(())

    def key_of(self, column: str) -> str:
        """Return the key that names a column of the qrels; empty if the format fixes the columns."""
        return ""

    def about(self) -> dict[str, Any]:
        """Return facts about this source for the artifact's record, besides counts and digests."""
        return {}


@cache
def formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    files = (path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
    return tuple(sorted(path.stem for path in files if re.search(r"^class Source\(", path.read_text(), re.M)))


TABLES = ("csv", "json", "jsonl", "txt", "parquet")
"""Kinds of files that are no formats of their own."""


def declared(tree: Any) -> Any:
    """Return the source that a mapping with `format` declares; errors keep the path of the wrong key."""
    if not isinstance(tree, dict):
        return tree
    name = tree.get("format")
    accepted = formats()
    if name not in accepted:
        problem = "no format" if name is None else f"unknown format {name!r}"
        table = "; for .csv, .jsonl, .txt and .parquet files: tables" if name in TABLES else ""
        meant = table or did_you_mean(str(name), accepted)
        raise ValueError(f"{problem}; accepted: {listing(accepted)}{meant}")
    for key, text in _texts(tree):
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{key}: got {text!r:.80}, which no file can hold or be called")
    source: type[Source] = importlib.import_module(f"sparring.components.sources.{name}").Source
    try:
        return source.model_validate(tree)
    except ValidationError as error:
        raise _with_accepted_keys(error, source) from None


def _texts(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key and text of a tree, and the key that it is or belongs to."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            place = f"{path}.{key}".strip(".")
            yield place, str(key)
            yield from _texts(value, place)


def _with_accepted_keys(error: ValidationError, source: type[Source]) -> ValidationError:
    """Return the same error, with the keys that the format accepts for an unknown key."""
    details: list[InitErrorDetails] = []
    for line in error.errors():
        kind: str | PydanticCustomError = line["type"]
        if kind == "extra_forbidden":
            message = unknown(line["loc"][-1], fields_at(source, line["loc"][:-1]))
            kind = PydanticCustomError("value_error", message, {"code": "unknown-key"})
        elif kind == "value_error":
            kind = PydanticCustomError(
                "value_error", line["msg"].removeprefix("Value error, "), {"code": code_of(line)}
            )
        details.append(InitErrorDetails(type=kind, loc=line["loc"], input=line["input"], ctx=line.get("ctx", {})))
    return ValidationError.from_exception_data(source.__name__, details)


AnySource = Annotated[SerializeAsAny[Source], BeforeValidator(declared)]
"""The type of a config field that holds a source of any format."""


def locate(path: str) -> Path:
    """Return the path of a declared file or folder: a leading `data/` is replaced by `$SPARRING_DATA`, if that is set.
    Raise UserError for a URL."""
    if "://" in path:
        raise UserError(f"{path}: a URL; accepted: a file or folder of the machine that reads the data")
    parts = Path(path).parts
    data = os.environ.get("SPARRING_DATA")
    if data and parts and parts[0] == "data":
        return Path(data, *parts[1:])
    return Path(path)


def sought(missing: Sequence[str]) -> str:
    """Name files that are not there, and where they were looked for, for an error message."""
    hints = []
    if any(name.startswith("~") for name in missing):
        hints.append("write out what ~ stands for")
    if any(Path(name).parts[:1] == ("data",) for name in missing):
        hints.append("$SPARRING_DATA moves data/")
    elif any("/" in name and not Path(name).is_absolute() and name[0] != "~" for name in missing):
        hints.append(f"looked for in {Path.cwd()}; a whole path is the same from everywhere")
    return "; ".join([f"source missing: {listing(missing[:3])}", *hints])


def chosen(splits: Splits, present: list[str]) -> dict[str, str]:
    """Return the splits that are read, as a mapping from our names to the collection's."""
    if isinstance(splits, dict):
        return splits
    return {name: name for name in (present if splits is None else splits)}
