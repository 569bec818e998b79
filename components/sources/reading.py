"""Reading text files, plain or .gz, record by record, with the place (`file:line`) of each record."""

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
        """The line's number in the file, from 1."""
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
        raise UserError(f"{place}: no {role} are there; accepted: a file with {role}, or {accepted}")


def plain_or_gz(path: Path) -> Path:
    """Return the file, or the compressed file (`.gz`) next to it if only that exists."""
    compressed = Path(f"{path}.gz")
    return compressed if exists(compressed) and not exists(path) else path


def exists(path: Path) -> bool:
    """Say whether a path exists. A name that is too long for the disk does not."""
    try:
        return path.exists()
    except OSError:
        return False


def fitting(folder: Path, pattern: str) -> list[Path]:
    """Return the paths inside a folder that fit a pattern, in order."""
    try:
        return sorted(folder.glob(pattern))
    except OSError as error:  # such as a name that is too long
        raise UserError(f"{folder / pattern}: cannot be read: {error.strerror}") from None


def is_part(name: str) -> bool:
    """Say whether a file may be part of a table, unlike Spark's `_SUCCESS` or macOS's `.DS_Store`."""
    return not name.startswith((".", "_"))


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the tables inside a folder that a name or pattern means, such as `train-*.parquet`. A name that fits no
    file stands for itself."""
    try:
        paths = [path for path in fitting(folder, pattern) if is_part(path.name) or not is_part(Path(pattern).name)]
    except (ValueError, NotImplementedError):  # an empty pattern, or one with an absolute path
        paths = []
    return paths or [plain_or_gz(folder / pattern)]


def splits(folder: Path, before: str) -> list[str]:
    """Return the splits of a folder: the part SPLIT of files called `BEFORESPLIT.tsv`, gzipped or not."""
    names = [path.name.removesuffix(".gz") for path in fitting(folder, f"{before}*.tsv*")]
    return sorted({name[len(before) : -4] for name in names if name.endswith(".tsv") and is_part(name[len(before) :])})


def named(folder: Path, paths: Iterable[Path]) -> dict[str, Path]:
    """Return files by their names inside a folder. Raise UserError for a file elsewhere."""
    try:
        return {path.relative_to(folder).as_posix(): path for path in paths}
    except ValueError as error:
        raise UserError(f"{folder}: {error}; accepted: names inside the folder `path`") from None


@contextmanager
def readable(place: object, kind: str) -> Iterator[None]:
    """Turn every error of a library that reads a file into a UserError: the file may be damaged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{place}: not {kind}: {message}") from None


def read_lines(path: Path, *, encoding: str = "utf-8", blank: bool = False, once: bool = False) -> Iterator[Line | Bad]:
    """Yield the lines of a file, without blank lines unless `blank`. A file that is read `once` may be a pipe."""
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
    """Yield the objects of a JSON file that holds one array, which may be larger than memory."""
    parse, number = json.JSONDecoder().raw_decode, 0
    with _open(path) as raw:
        text = _Text(raw, path, chunk_chars)
        if text.next() != "[":
            raise UserError(f"{path}: expected a JSON array")
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
                raise UserError(f"{place}: not JSON that can be read: {error}") from None
            yield Item(value, place) if isinstance(value, dict) else Bad("wrong columns", place, "not a JSON object")
            text.offset, number = end, number + 1
            if (separator := text.next()) not in ("]", ","):
                raise UserError(f"{place}: not JSON: expected , or ] after the object")
            more = separator == ","
            text.offset += more
        text.offset += 1
        if text.next():
            raise UserError(f"{path}: text follows the JSON array; accepted: one array a file, or .jsonl")


class _Text:
    """The part of a JSON file that was read but not yet parsed."""

    def __init__(self, raw: IO[bytes], path: Path, chunk_chars: int) -> None:
        self.file, self.path, self.chunk_chars = io.TextIOWrapper(raw, "utf-8-sig"), path, chunk_chars
        self.buffer, self.offset = "", 0

    def next(self) -> str:
        """Move to the next character that is not white space, and return it. The end of the file is empty."""
        while True:
            rest = self.buffer[self.offset : self.offset + 1]
            if rest and not rest.isspace():
                return rest
            if rest:
                self.offset += 1
            elif not self.read():
                return ""

    def read(self) -> bool:
        """Read twice as much as is waiting, so that a long value is parsed few times. Return False at the end."""
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
"""The columns of TREC's qrels, which have no header."""


def read_judgements(path: Path, split: str) -> Iterator[Judgement | Bad]:
    """Yield the judgements of a file of TREC's qrels."""
    for row in read_cells(path, QRELS, str.split):
        if isinstance(row, Bad):
            yield row
        else:
            yield judgement(row.value["query_id"], row.value["doc_id"], row.value["relevance"], split, row.place)


CELL_CHARS = 1 << 24
"""The longest cell of a .csv file: a longer one is a quote that is never closed."""


def read_csv(path: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the rows of a .csv file with their places, the header first, without blank rows.

    Commas separate cells, or semicolons if the header has more of these. Quoted cells may extend over lines. Bytes that
    are not UTF-8 become lone surrogates, which the records refuse.
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
                raise UserError(f"{path}:{line}: not CSV: {error}") from None
            if cells is None:
                return
            if any(cells):
                yield cells, f"{path}:{line}"
            line = rows.line_num + 1


def fields(text: str) -> list[str]:
    """Divide a line at its tabs. Cells may be quoted. A line with an unclosed quote is one cell."""
    if '"' not in text:
        return text.split("\t")
    # The csv module limits the length of a cell in case a quote is never closed; here it cannot exceed the line.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        return next(csv.reader([text], delimiter="\t"))
    except csv.Error:  # such as a carriage return
        return [text]


def regular(path: Path) -> Path:
    """Return the path of a file that can be read again. Raise UserError for a missing file, a folder or a pipe."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path}: is a {'directory' if stat.S_ISDIR(mode) else 'device or pipe'}; accepted: a file")
    return path


def _open(path: Path) -> IO[bytes]:
    """Open a file's bytes, uncompressed."""
    regular(path)
    try:
        with path.open("rb") as file:
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise UserError(f"{path}: UTF-16 text; accepted: UTF-8 (iconv -f UTF-16 -t UTF-8)")
        return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:  # such as a file that may not be read
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _guarded(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the file's lines. Raise UserError if a compressed file is damaged."""
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged .gz file: {error}") from None


def literal(text: str) -> Any:
    """Return the value of a Python literal. No code in the text is executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # answers that are patterns hold backslashes that Python warns about
        return ast.literal_eval(text.strip())
