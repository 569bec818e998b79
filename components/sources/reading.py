"""Reading text files, plain or .gz, record by record, with the place (`file:line`) of each record."""

import ast
import codecs
import csv
import gzip
import itertools
import json
import re
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
        """Its number in the file, from 1."""
        return int(self.place.rpartition(":")[2])


class Item(NamedTuple):
    """A value of a JSON file."""

    value: Any
    place: str


LOOKED_AT = 100
"""So many objects tell what keys a file has."""


def some(records: Iterable[Any], place: str | Path, role: str, accepted: str) -> Iterator[Any]:
    """The records of a declared file; UserError where it has none, or nobody would notice that nothing was read."""
    none = True
    for record in records:
        none = False
        yield record
    if none:
        raise UserError(f"{place}: no {role} are there; accepted: a file with {role}, or {accepted}")


def plain_or_gz(path: Path) -> Path:
    """The file, or if only the compressed file (`.gz`) beside it exists, that one."""
    compressed = Path(f"{path}.gz")
    return compressed if exists(compressed) and not exists(path) else path


def exists(path: Path) -> bool:
    """Whether something is there; not where a name is longer than names can be."""
    try:
        return path.exists()
    except OSError:
        return False


def fitting(folder: Path, pattern: str) -> list[Path]:
    """What a folder has that fits a pattern, in order; nothing where there is no such folder."""
    try:
        return sorted(folder.glob(pattern))
    except OSError as error:  # such as a name that is too long
        raise UserError(f"{folder / pattern}: cannot be read: {error.strerror}") from None


def is_part(name: str) -> bool:
    """Whether a file may be a part of a table. What begins with a `.` or `_` is another program's note, such as Spark's
    `_SUCCESS` or macOS's `.DS_Store`."""
    return not name.startswith((".", "_"))


def matching(folder: Path, pattern: str) -> list[Path]:
    """The tables inside a folder that a name or pattern means, such as `train-*.parquet`, without `_SUCCESS` and hidden
    files unless it begins so; a name for which there is none stands for itself."""
    try:
        found = [path for path in fitting(folder, pattern) if is_part(path.name) or not is_part(Path(pattern).name)]
    except (ValueError, NotImplementedError):  # no pattern: empty, or of another folder
        found = []
    return found or [plain_or_gz(folder / pattern)]


def splits(folder: Path, before: str) -> list[str]:
    """The splits that a folder has a table of: those of `BEFOREsplit.tsv`, gzipped or not. Copies that an editor or a
    system has left are none."""
    names = [path.name.removesuffix(".gz") for path in fitting(folder, f"{before}*.tsv*")]
    found = {name.removeprefix(before).removesuffix(".tsv") for name in names if name.endswith(".tsv")}
    return sorted(filter(is_part, found))


def named(folder: Path, paths: Iterable[Path]) -> dict[str, Path]:
    """Files by their names inside a folder; UserError for one that is elsewhere."""
    try:
        return {path.relative_to(folder).as_posix(): path for path in paths}
    except ValueError as error:
        raise UserError(f"{folder}: {error}; accepted: names inside the folder `path`") from None


@contextmanager
def readable(place: object, kind: str) -> Iterator[None]:
    """While a library reads a file that may be damaged: UserError for whatever it says."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{place}: not {kind}: {said}") from None


def read_lines(path: Path, *, encoding: str = "utf-8", blank: bool = False, once: bool = False) -> Iterator[Line | Bad]:
    """The lines of a file; without blank ones unless `blank`. A file that is read `once` may be a pipe."""
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
    """The objects of a JSON-lines file, as dictionaries."""
    for line in read_lines(path):
        if isinstance(line, Bad):
            yield line
            continue
        try:
            value = json.loads(line.text)
        except (ValueError, RecursionError) as error:
            yield Bad("line that is not JSON", line.place, str(error))
            continue
        yield (
            Item(value, line.place)
            if isinstance(value, dict)
            else Bad("line that is not JSON", line.place, "not an object")
        )


def first_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The first objects of a JSON-lines file, without lines that are none."""
    return (item.value for item in itertools.islice(read_objects(path), LOOKED_AT) if isinstance(item, Item))


def first_keys(path: Path) -> list[str]:
    """The keys of the first objects of a JSON-lines file, in order of first appearance: one object may lack some."""
    return list(dict.fromkeys(key for one in first_objects(path) for key in one))


def read_array(path: Path, *, chunk_chars: int = 1 << 22) -> Iterator[Item | Bad]:
    """The objects of a JSON file that holds one array, which may be larger than memory."""
    with _open(path) as file:
        buffer = _Buffer(file, path, chunk_chars)
        if buffer.next_character() != "[":
            raise UserError(f"{buffer.place}: expected a JSON array")
        buffer.skip()
        more = buffer.next_character() != "]"
        while more:
            place = buffer.at_value()
            value = buffer.value()
            yield Item(value, place) if isinstance(value, dict) else Bad("wrong columns", place, "not a JSON object")
            separator = buffer.next_character()
            if separator not in ("]", ","):
                raise UserError(f"{buffer.place}: not JSON: expected , or ] after an object")
            more = separator == ","
            if more:
                buffer.skip()
        buffer.skip()
        if buffer.next_character():
            raise UserError(
                f"{buffer.place}: there is more behind the JSON array; accepted: one array a file, or an "
                "object a line (.jsonl)"
            )


class Row(NamedTuple):
    """The cells of a row."""

    cells: list[str]
    place: str


def read_cells(
    path: Path, columns: Sequence[str], divide: Callable[[str], list[str]] = lambda text: text.split("\t")
) -> Iterator[Row | Bad]:
    """The cells of a file's lines, which must be as many as its columns."""
    for line in read_lines(path):
        cells = divide(line.text) if isinstance(line, Line) else []
        if isinstance(line, Bad):
            yield line
        elif len(cells) != len(columns):
            yield Bad("wrong columns", line.place, f"expected {', '.join(columns)}, got {len(cells)} columns")
        else:
            yield Row(cells, line.place)


def read_judgements(path: Path, split: str) -> Iterator[Judgement | Bad]:
    """The judgements of a file of TREC's qrels."""
    for row in read_cells(path, ("query", "0", "document", "score"), str.split):
        yield row if isinstance(row, Bad) else judgement(row.cells[0], row.cells[2], row.cells[3], split, row.place)


CELL_CHARS = 1 << 24
"""The longest cell of a .csv file: a longer one is a quote that is never closed."""


def read_csv(path: Path) -> Iterator[Row]:
    """The rows of a .csv file, its header first; without blank ones. Cells are divided by commas, or by semicolons
    where the header has more of these, and may be quoted, also over several lines. What is not UTF-8 becomes lone
    surrogates, which the records refuse."""
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
                yield Row(cells, f"{path}:{line}")
            line = rows.line_num + 1


def fields(text: str, *, delimiter: str = "\t") -> list[str]:
    """The columns of a line. Cells may be quoted; a quoted cell must end on the same line. What is not written so is
    one column."""
    if '"' not in text:
        return text.split(delimiter)
    # The csv module limits the length of a cell in case a quote is never closed; here it cannot exceed the line.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        return next(csv.reader([text], delimiter=delimiter))
    except csv.Error:  # such as a carriage return
        return [text]


class _Buffer:
    """The part of a JSON file that was read but not yet parsed."""

    def __init__(self, file: IO[bytes], path: Path, chunk_chars: int) -> None:
        self.file, self.path, self.chunk_chars = file, path, chunk_chars
        self.decode = codecs.getincrementaldecoder("utf-8-sig")()
        self.parse = json.JSONDecoder().raw_decode
        self.text, self.position, self.line = "", 0, 1

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    def skip(self, end: int | None = None) -> None:
        """Move to the position `end`, by default the next one."""
        end = self.position + 1 if end is None else end
        self.line += self.text.count("\n", self.position, end)
        self.position = end

    def next_character(self) -> str:
        """Move to the next character that is not white space, and return it; empty at the end of the file."""
        while True:
            while self.position < len(self.text):
                if self.text[self.position] not in " \t\r\n":
                    return self.text[self.position]
                self.skip()
            if not self._more():
                return ""

    def at_value(self) -> str:
        """The place of the next value."""
        self.next_character()
        return self.place

    def value(self) -> Any:
        """The JSON value that begins at the position."""
        while True:
            try:
                value, end = self.parse(self.text, self.position)
            except json.JSONDecodeError as error:
                # A truncated value fails at the buffer's end, or at the start of the string that is truncated.
                truncated = error.pos > len(self.text) - 16 or error.msg.startswith("Unterminated string")
                if truncated and self._more():
                    continue
                line = self.line + self.text.count("\n", self.position, error.pos)
                raise UserError(f"{self.path}:{line}: not JSON: {error.msg}") from None
            except RecursionError:
                raise UserError(f"{self.place}: not JSON: nested too deeply") from None
            except ValueError as error:  # a number of thousands of digits
                raise UserError(f"{self.place}: not JSON that can be read: {error}") from None
            self.skip(end)
            return value

    def _more(self) -> bool:
        """Read twice as much as is waiting, so that a long value is parsed few times; False at the end of the file."""
        waiting = self.text[self.position :]
        try:
            raw = self.file.read(max(self.chunk_chars, 2 * len(waiting)))
            more = self.decode.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise UserError(f"{self.place}: not UTF-8 text near this line ({error.reason})") from None
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(f"{self.path}: cannot be read: {error}") from None
        self.text, self.position = waiting + more, 0
        return bool(raw)


TREC = {"a ranking": r"\S+\s+(\d+|Q0)\s+\S+\s+\d+\s+-?\d\S*\s+\S+", "judgements": r"\S+\s+(\d+|Q0)\s+\S+\s+-?\d+"}
"""How the lines of TREC's files are written."""
BEGINNING = 1 << 16
"""So many bytes of a file tell whether it is one of TREC's."""


def of_trec(path: Path) -> str | None:
    """Which of TREC's files a file is by its first lines, whatever its name: `judgements`, `a ranking`, or None."""
    try:
        with _open(path) as file:
            text = file.read(BEGINNING)
        text = text if len(text) < BEGINNING else text.rpartition(b"\n")[0]
        lines = [line.strip() for line in text.decode().splitlines()[:LOOKED_AT] if line.strip()]
    except (UserError, OSError, EOFError, ValueError, zlib.error):  # no text, or no file that can be read
        return None
    of = (kind for kind, form in TREC.items() if all(re.fullmatch(form, line) for line in lines))
    return next(of, None) if lines else None


def regular(path: Path) -> Path:
    """The path of a file; UserError unless it is there, and one that can be read again: a pipe is empty then."""
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
    """The file's bytes, uncompressed."""
    regular(path)
    try:
        with path.open("rb") as file:
            if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise UserError(f"{path}: UTF-16 text; accepted: UTF-8 (iconv -f UTF-16 -t UTF-8)")
        return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except OSError as error:  # such as a file that may not be read
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _guarded(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The file's lines. UserError if a compressed file is damaged."""
    try:
        yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged .gz file: {error}") from None


def literal(text: str) -> Any:
    """The value of a Python literal. No code in it is executed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # answers that are patterns hold backslashes that Python warns about
        return ast.literal_eval(text.strip())
