"""Readers of text files, plain or .gz. They yield records with their places (`file:line`)."""

import ast
import codecs
import csv
import gzip
import io
import itertools
import json
import stat
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from sparring.components.config import UserError
from sparring.components.sources.records import NOT_UTF8, Bad, Judgement, judgement


class Line(NamedTuple):
    """A line without its end."""

    text: str
    place: str

    @property
    def number(self) -> int:
        """Number of the line in the file, from 1."""
        return int(self.place.rpartition(":")[2])


class Item(NamedTuple):
    """A row or object with its place."""

    value: Any
    place: str


def some(records: Iterable[Any], place: str | Path, role: str, accepted: str) -> Iterator[Any]:
    """Yield the records of a declared file. Raise UserError if there are none."""
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        raise UserError(f"{place}: the file has no {role}. Use a file with {role}, or {accepted}.")


def plain_or_gz(path: Path) -> Path:
    """Return the file. If only a compressed file (`.gz`) next to it exists, return this one."""
    compressed = Path(f"{path}.gz")
    return compressed if exists(compressed) and not exists(path) else path


def exists(path: Path) -> bool:
    """Return True if a path exists. A name that is too long for the file system does not exist."""
    try:
        return path.exists()
    except OSError:
        return False


def fitting(folder: Path, pattern: str) -> list[Path]:
    """Return the paths inside a folder that match a pattern, sorted."""
    try:
        return sorted(folder.glob(pattern))
    except OSError as error:  # for example a name that is too long
        raise UserError(f"{folder / pattern}: cannot be read: {error.strerror}") from None


def is_part(name: str) -> bool:
    """Return True if a file may be part of a table, unlike Spark's `_SUCCESS` or macOS's `.DS_Store`."""
    return not name.startswith((".", "_"))


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the tables inside a folder that match a name or a pattern such as `train-*.parquet`.

    If nothing matches, return the name itself as a path.
    """
    try:
        paths = [path for path in fitting(folder, pattern) if is_part(path.name) or not is_part(Path(pattern).name)]
    except (ValueError, NotImplementedError):  # an empty pattern, or one with an absolute path
        paths = []
    return paths or [plain_or_gz(folder / pattern)]


def splits(folder: Path, before: str) -> list[str]:
    """Return the splits of a folder: the part SPLIT of file names `BEFORESPLIT.tsv` or `BEFORESPLIT.tsv.gz`."""
    names = [path.name.removesuffix(".gz") for path in fitting(folder, f"{before}*.tsv*")]
    return sorted({name[len(before) : -4] for name in names if name.endswith(".tsv") and is_part(name[len(before) :])})


def named(folder: Path, paths: Iterable[Path]) -> dict[str, Path]:
    """Return files by their names inside a folder. Raise UserError for a file outside of it."""
    try:
        return {path.relative_to(folder).as_posix(): path for path in paths}
    except ValueError as error:
        raise UserError(f"{folder}: {error}. Name files inside the folder `path`.") from None


@contextmanager
def readable(place: object, kind: str) -> Iterator[None]:
    """Turn every error of a library that reads a file into a UserError, because the file may be damaged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{place}: not {kind}: {message}", code="other-format") from None


def read_lines(path: Path, *, encoding: str = "utf-8", blank: bool = False, once: bool = False) -> Iterator[Line | Bad]:
    """Yield the lines of a file. With `blank`, yield blank lines too. A file that is read only `once` may be a pipe."""
    with path.open("rb") if once and path.is_fifo() else _open(path) as file:
        for number, raw in enumerate(_guarded(file, path), start=1):
            place = f"{path}:{number}"
            try:
                text = raw.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 and encoding == "utf-8" else encoding)
            except UnicodeDecodeError as error:
                yield Bad(NOT_UTF8, place, f"{error.reason} at byte {error.start}")
                continue
            if blank or (text and not text.isspace()):
                yield Line(text, place)


def read_objects(path: Path) -> Iterator[Item | Bad]:
    """Yield the objects of a JSON-lines file as dictionaries."""
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
            continue
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            yield Bad("line that is not JSON", line.place, str(error))
            continue
        is_object = isinstance(value, dict)
        yield Item(value, line.place) if is_object else Bad("line that is not JSON", line.place, "not an object")


def read_array(path: Path, *, chunk_chars: int = 1 << 22) -> Iterator[Item | Bad]:
    """Yield the objects of a JSON file that contains an array. The file may be larger than memory."""
    parse, number = json.JSONDecoder().raw_decode, 0
    with _open(path) as raw:
        text = _Text(raw, path, chunk_chars)
        if text.next() != "[":
            raise UserError(f"{path}: the file is not a JSON array. Use one array per file, or .jsonl.")
        text.offset += 1
        more = text.next() != "]"
        while more:
            place = f"{path}: item {number + 1}"
            text.next()
            try:
                value, end = parse(text.buffer, text.offset)
            except json.JSONDecodeError as error:
                # A truncated value fails at the buffer's end, or at the start of the string that is truncated.
                truncated = error.pos > len(text.buffer) - 16 or error.msg.startswith("Unterminated string")
                if truncated and text.read():
                    continue
                raise UserError(f"{place}: not JSON: {error.msg}") from None
            except (RecursionError, ValueError) as error:
                raise UserError(f"{place}: this JSON cannot be read: {error}") from None
            yield Item(value, place) if isinstance(value, dict) else Bad("wrong columns", place, "not a JSON object")
            text.offset, number = end, number + 1
            if (separator := text.next()) not in ("]", ","):
                raise UserError(f"{place}: not JSON: expected , or ] after the object")
            more = separator == ","
            text.offset += more
        text.offset += 1
        if text.next():
            raise UserError(f"{path}: there is text after the JSON array. Use one array per file, or .jsonl.")


class _Text:
    """The part of a JSON file that was read but not yet parsed."""

    def __init__(self, raw: IO[bytes], path: Path, chunk_chars: int) -> None:
        self.file, self.path, self.chunk_chars = io.TextIOWrapper(raw, "utf-8-sig"), path, chunk_chars
        self.buffer, self.offset = "", 0

    def next(self) -> str:
        """Move to the next character that is not white space, and return it. Return "" at the end of the file."""
        while True:
            rest = self.buffer[self.offset : self.offset + 1]
            if rest and not rest.isspace():
                return rest
            if rest:
                self.offset += 1
            elif not self.read():
                return ""

    def read(self) -> bool:
        """Read more text: at least twice the unparsed rest, so that a long value is parsed few times.

        Return False at the end of the file.
        """
        waiting = self.buffer[self.offset :]
        with readable(self.path, "a JSON file in UTF-8"):
            piece = self.file.read(max(self.chunk_chars, 2 * len(waiting)))
        self.buffer, self.offset = waiting + piece, 0
        return bool(piece)


def read_cells(
    path: Path, columns: Sequence[str], divide: Callable[[str], list[str]] = lambda text: text.split("\t")
) -> Iterator[Item | Bad]:
    """Yield the lines of a file without a header as dictionaries of cells."""
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
        elif len(cells := divide(line.text)) != len(columns):
            yield Bad("wrong columns", line.place, f"expected {', '.join(columns)}, got {len(cells)} columns")
        else:
            yield Item(dict(zip(columns, cells, strict=True)), line.place)


QRELS = ["query_id", "iteration", "doc_id", "relevance"]
"""Columns of TREC's qrels, which have no header."""


def read_judgements(path: Path, split: str) -> Iterator[Judgement | Bad]:
    """Yield the judgements of a file of TREC's qrels."""
    for row in read_cells(path, QRELS, str.split):
        if isinstance(row, Bad):
            yield row
        else:
            yield judgement(row.value["query_id"], row.value["doc_id"], row.value["relevance"], split, row.place)


CELL_CHARS = 1 << 24
"""Maximum length of a cell in a .csv file. A longer cell is a sign of a quote that is never closed."""


def read_csv(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the rows of a .csv file with their places. The header comes first. Blank rows are skipped.

    Commas separate cells, or semicolons if the header has more of them. Quoted cells may span lines. Bytes that are not
    UTF-8 become lone surrogates, which the checks of records report.
    """
    csv.field_size_limit(max(csv.field_size_limit(), CELL_CHARS))
    with _open(path) as raw:
        lines = (line.decode("utf-8", "surrogateescape") for line in _guarded(raw, path))
        header = next(lines, "").removeprefix("\ufeff")
        delimiter = ";" if header.count(";") > header.count(",") else ","
        rows = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
        line = 1
        while True:
            try:
                cells = next(rows, None)
            except csv.Error as error:
                raise UserError(f"{path}:{line}: not CSV: {error}", code="other-format") from None
            if cells is None:
                return
            if any(cells):
                yield cells, f"{path}:{line}"
            line = rows.line_num + 1


def fields(text: str) -> list[str]:
    """Split a line at its tabs. Cells may be quoted. A line with an unclosed quote is a single cell."""
    if '"' not in text:
        return text.split("\t")
    # The csv module limits the length of a cell in case a quote is never closed. Here a cell cannot exceed the line.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        return next(csv.reader([text], delimiter="\t"))
    except csv.Error:  # for example because of a carriage return
        return [text]


def regular(path: Path) -> Path:
    """Return the path if it is a regular file. Raise UserError for a missing file, a folder or a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file", code="missing-file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{path}: this is a {'directory' if stat.S_ISDIR(mode) else 'device or pipe'}. Name a file.",
            code="not-a-file",
        )
    return path


def _open(path: Path) -> IO[bytes]:
    """Open a file's bytes, uncompressed."""
    regular(path)
    try:
        with path.open("rb") as file:
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise UserError(f"{path}: the text is UTF-16. Convert it to UTF-8 (iconv -f UTF-16 -t UTF-8).")
        return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:  # for example a file without read permission
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _guarded(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the file's lines. Raise UserError if a compressed file is damaged."""
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: the .gz file is damaged: {error}") from None


def literal(text: str) -> Any:
    """Return the value of a Python literal. Code in the text is not executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about backslashes in answers that are patterns
        return ast.literal_eval(text.strip())
