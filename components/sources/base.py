"""The base class of sources. A source declares a collection and its format in YAML.

A format is a file in this folder with a `class Source(base.Source)`, so a new format is one new file. `format: beir`
selects `beir.py`. Importing a format and validating a declaration do not read the collection's files: a plan works
without them.
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

from sparring.components.config import Config, code_of, did_you_mean, fields_at, listing, unknown
from sparring.components.data.own_documents import Decision
from sparring.components.rng import keyed_int
from sparring.components.sources import remote
from sparring.components.sources.forms import Form, in_form
from sparring.components.sources.records import Bad, Document, Judgement, Query

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

Splits = list[str] | dict[str, str] | None
"""Splits to read: all (null), a list of names, or a mapping from new names to the collection's names."""


class Sample(Config):
    """A sample of queries in which queries with the same document stay together."""

    queries: PositiveInt
    """Number of queries."""
    by: Literal["document"]
    """Unit of the sample. `document`: documents are sampled, each with all queries that have it as their first relevant
    document. A batch then repeats documents as often as a larger batch of all queries would."""


class HoldOut(Config):
    """A split that is split off from another."""

    of: str = "train"
    """Split from which queries are taken."""
    share: float = Field(0.1, gt=0, lt=1)
    """Share of the queries of `of` that remain after the splits above this one. The choice depends only on a query's
    id. Queries with equal text, ignoring case and white space, stay together."""
    start: float | None = Field(None, ge=0, lt=1)
    """Start of the share on a circle of length 1, on which the queries of `of` are placed by their ids. Shares that do
    not overlap on the circle have no query in common, as cross-validation folds need. `null`: an independent draw."""

    def draws(self, split: str, query_id: str) -> bool:
        """Return True if a query of `of` goes to a split."""
        if self.start is None:
            return keyed_int("hold out", split, query_id) < self.share * 2**64
        return (keyed_int("hold out", self.of, query_id) / 2**64 - self.start) % 1 < self.share


READ = ("read_documents", "read_queries", "read_qrels", "read_groups", "read_examples")
"""Methods of formats that yield records."""
IDS = ("doc_id", "query_id", "doc_ids", "example_id", "first", "second")
"""Fields of records that contain ids."""


def _in_form(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap a method that reads records, so that their ids have the Unicode form of `ids`."""

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
    """The keys that all formats share. They are part of the identity of the ingested collection."""

    format: str
    """Name of the format. It is the name of a file in `components/sources`."""
    on_bad: Literal["fail", "drop"] = "fail"
    """Treatment of bad records. `fail`: stop, and name the file and line of the first. `drop`: skip them, and count
    them by reason."""
    sha256: dict[str, Sha256] = {}
    """SHA-256 digests that files must have, by their path inside `path`."""
    sample: dict[str, PositiveInt | Sample] = {}
    """Number of queries to keep, by split. `{train: 10000}` samples by query ids. `{train: {queries: 10000, by:
    document}}` samples by the ids of their relevant documents. All documents are kept, unless `only_judged` is set."""
    only_judged: bool = Field(False, exclude_if=lambda only: not only)
    """Restriction to documents that a judgement of a kept query names. Use it only for trials, because retrieval is
    easier than in the whole collection."""

    own_document: Decision | None = Field(None, exclude_if=lambda decision: decision is None)
    """Treatment of the document that a query itself is, as in ArguAna, Quora and item-to-item search. `leave out`: the
    document is removed from the query's rankings, and judgements of it do not count. `leave out with copies`: documents
    with the query's text are removed too, unless they are judged relevant to it. `keep`: the document counts like any
    other. `null`: as `keep`, with a note in `init`, `plan` and the results. In training the document is never a
    negative of its query, for any value of this key."""

    ids: Form | None = Field(None, exclude_if=lambda form: form is None)
    """Unicode form to which ids are converted, including ids of imported rankings. `NFC`: ids match if they differ only
    in writing `é` as one or two characters. `null`: ids are compared character by character."""

    hold_out: dict[str, HoldOut] = {}
    """Additional splits, split off from existing ones before `sample` applies. For example `{dev: {of: train, share:
    0.1}}` for a collection without dev queries."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap the methods that read records, so that formats need not handle Unicode forms."""
        super().__init_subclass__(**kwargs)
        for name in READ:
            if name in vars(cls):
                setattr(cls, name, _in_form(vars(cls)[name]))

    def id_in_form(self, name: Any) -> Any:
        """Convert an id to the form of `ids`. Formats that look up ids of records need this."""
        return in_form(self.ids, name) if isinstance(name, str) else name

    def counts(self, queries: Mapping[str, int]) -> dict[str, int]:
        """Estimate the number of queries per split after `hold_out` and `sample`, from the collection's numbers."""
        counts, by_place = dict(queries), dict[str, float](queries)
        for split, hold_out in self.hold_out.items():
            before = counts if hold_out.start is None else by_place  # shares with a start do not reduce each other
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
        """Yield every query of the chosen splits. By default there are none."""
        return iter(())

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield every judgement of the chosen splits. By default there are none."""
        return iter(())

    def key_of(self, column: str) -> str:
        """Return the config key that names a column of the qrels. Return "" if the format fixes the columns."""
        return ""

    def about(self) -> dict[str, Any]:
        """Return facts about this source for the artifact's record, in addition to counts and digests."""
        return {}


@cache
def formats() -> tuple[str, ...]:
    """Return the names of all formats."""
    files = (path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
    return tuple(sorted(path.stem for path in files if re.search(r"^class Source\(", path.read_text(), re.M)))


TABLES = ("csv", "json", "jsonl", "txt", "parquet")
"""Kinds of files that are not formats themselves."""


def declared(tree: Any) -> Any:
    """Return the source that a mapping with `format` declares. Errors keep the path of the wrong key."""
    if not isinstance(tree, dict):
        return tree
    name = tree.get("format")
    accepted = formats()
    if name not in accepted:
        problem = "no format" if name is None else f"unknown format {name!r}"
        table = "; for .csv, .jsonl, .txt and .parquet files use tables" if name in TABLES else ""
        meant = table or did_you_mean(str(name), accepted)
        raise ValueError(f"{problem}; accepted: {listing(accepted)}{meant}")
    for key, text in _texts(tree):
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"{key}: got {text!r:.80}, which contains characters that no file or file name can have")
    source: type[Source] = importlib.import_module(f"sparring.components.sources.{name}").Source
    try:
        return source.model_validate(tree)
    except ValidationError as error:
        raise _with_accepted_keys(error, source) from None


def _texts(tree: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key and text of a tree, each with the dotted key of its place."""
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            place = f"{path}.{key}".strip(".")
            yield place, str(key)
            yield from _texts(value, place)


def _with_accepted_keys(error: ValidationError, source: type[Source]) -> ValidationError:
    """Return the same error. For an unknown key, add the keys that the format accepts."""
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
    """Return the path of a declared file or folder. `$SPARRING_DATA`, if set, replaces a leading `data/`.

    What is at a URL is copied to this machine first (`remote`). If that fails, nothing is at the returned path.
    """
    if remote.is_url(path):
        return remote.local_path(path)
    parts = Path(path).parts
    data = os.environ.get("SPARRING_DATA")
    if data and parts and parts[0] == "data":
        return Path(data, *parts[1:])
    return Path(path)


def sought(missing: Sequence[str]) -> str:
    """Describe missing files and the places where they were expected, for an error message."""
    if problems := remote.problems(missing):
        return "; ".join(problems)
    hints = []
    if any(name.startswith("~") for name in missing):
        hints.append("write out what ~ stands for")
    if any(Path(name).parts[:1] == ("data",) for name in missing):
        hints.append("$SPARRING_DATA moves data/")
    elif any("/" in name and not Path(name).is_absolute() and name[0] != "~" for name in missing):
        hints.append(f"looked for in {Path.cwd()}; an absolute path works from everywhere")
    return "; ".join([f"source missing: {listing(missing[:3])}", *hints])


def chosen(splits: Splits, present: list[str]) -> dict[str, str]:
    """Return the splits to read, as a mapping from our names to the collection's names."""
    if isinstance(splits, dict):
        return splits
    return {name: name for name in (present if splits is None else splits)}
