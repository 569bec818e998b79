"""Damage to files and to trees of keys, as accidents and attackers do it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    3,
    2**31,
    2**63,
    2**80,
    -(2**80),
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "d1",
    "q1",
    "-1",
    "1.5",
    "1e999",
    "NaN",
    "9" * 5_000,
    "\u0661",
    "\u00b2",
    "0x10",
    "1_000",
    "\x00",
    "a\x00b",
    "a b",
    "a\tb",
    "a\nb",
    "a\rb",
    "\x1b[31mred",
    "\u202eabc",
    "\u2028",
    "\ufeffid",
    "e\u0301",
    "\U0001f600",
    "\ud800",
    "../../../etc/passwd",
    "/etc/passwd",
    "..",
    "**/*",
    "*",
    "[",
    "x" * 300,
    "x" * 200_000,
    "{split}",
    "{}",
    "%s",
    "(a+)+$",
    "<DOC>",
    "null",
    [],
    {},
    [None],
    ["a", 1],
    [[]],
    {"a": 1},
    {"": None},
    ["x"] * 50,
    10**400,
]
"""What may stand where a value stands."""
BYTES = [
    b"",
    b"\x00",
    b"\xff",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\x0b",
    b"\x0c",
    b"\x85",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\t",
    b"\t\t",
    b" ",
    b",",
    b";",
    b'"',
    b'""',
    b"'",
    b"\\",
    b"[",
    b"]",
    b"{",
    b"}",
    b":",
    b"[[",
    b"<DOC>",
    b"</DOC>",
    b"<TEXT>",
    b"</TEXT>",
    b"<top>",
    b"</top>",
    b"<title>",
    b"\\ud800",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"x" * 200_000,
    b"9" * 5_000,
    b"\x1f\x8b\x08",
    b"PAR1",
    b"NaN",
    b"1e999",
    b"9" * 400,
    b"-1",
    b"null",
    b"d1",
    b"q1",
    b"../..",
    b"&a [*a]",
    b"*a",
    b"!!python/object/apply:os.system [x]",
]
"""What may stand anywhere in a file."""

_TOKEN = re.compile(rb'"[^"\n]*"|[^\s,;:<>\[\]{}"]+')


class Damage(NamedTuple):
    """One thing that is done: its kind, where (taken modulo what there is), and with what."""

    kind: str
    file: int
    position: int
    choice: int


def _spliced(raw: bytes, position: int, choice: int) -> bytes:
    place = position % (len(raw) + 1)
    return raw[:place] + BYTES[choice % len(BYTES)] + raw[place:]


def _token(raw: bytes, position: int, choice: int) -> bytes:
    """Another value in the place of a word, a number or a quoted text."""
    tokens = list(_TOKEN.finditer(raw))
    if not tokens:
        return _spliced(raw, position, choice)
    start, end = tokens[position % len(tokens)].span()
    value = VALUES[choice % len(VALUES)]
    text = value if isinstance(value, str) and position % 2 else json.dumps(value, allow_nan=True)
    return raw[:start] + text.encode("utf-8", "surrogatepass") + raw[end:]


def _json(raw: bytes, position: int, choice: int) -> bytes:
    """Another value in the place of one inside a line, or a file, of JSON."""
    lines = raw.split(b"\n")
    number = position % len(lines)
    for before, part, after in (([], raw, []), (lines[:number], lines[number], lines[number + 1 :])):
        try:
            tree = json.loads(part)
        except (ValueError, RecursionError):
            continue
        changed = json.dumps(
            replaced(tree, position // 7, VALUES[choice % len(VALUES)]), ensure_ascii=position % 3 == 0
        )
        return b"\n".join([*before, changed.encode("utf-8", "surrogatepass"), *after])
    return _token(raw, position, choice)


def _lines(change: Callable[[list[bytes], int, int], list[bytes]]) -> Callable[[bytes, int, int], bytes]:
    def changed(raw: bytes, position: int, choice: int) -> bytes:
        lines = raw.split(b"\n")
        return b"\n".join(change(lines, position % len(lines), choice % len(lines)))

    return changed


def _flipped(raw: bytes, position: int, choice: int) -> bytes:
    if not raw:
        return raw
    place = position % len(raw)
    return raw[:place] + bytes([raw[place] ^ (1 + choice % 255)]) + raw[place + 1 :]


def _encoded(raw: bytes, position: int, choice: int) -> bytes:
    return raw.decode("utf-8", "replace").encode(("utf-16", "utf-32", "utf-8-sig", "cp500")[choice % 4], "replace")


RAW: dict[str, Callable[[bytes, int, int], bytes]] = {
    "splice": _spliced,
    "token": _token,
    "json": _json,
    "flip": _flipped,
    "encode": _encoded,
    "cut": lambda raw, position, _: raw[: position % (len(raw) + 1)],
    "cut out": lambda raw, position, choice: (
        raw[: position % (len(raw) + 1)] + raw[position % (len(raw) + 1) + choice % 40 :]
    ),
    "drop a line": _lines(lambda lines, position, _: lines[:position] + lines[position + 1 :]),
    "repeat a line": _lines(lambda lines, position, choice: [*lines[:choice], lines[position], *lines[choice:]]),
    "join lines": _lines(
        lambda lines, position, _: [*lines[:position], b"".join(lines[position : position + 2]), *lines[position + 2 :]]
    ),
    "other line ends": lambda raw, position, choice: raw.replace(b"\n", (b"\r\n", b"\r", b"\x0b")[choice % 3]),
    "nothing": lambda raw, position, choice: b"",
}
"""What may happen to the contents of a file."""


def _compressed(path: Path, position: int, choice: int) -> None:
    """The same under the name .gz: whole, cut, with a byte changed, twice in one, or no archive at all."""
    raw = gzip.compress(path.read_bytes())
    raw = (raw, RAW["cut"](raw, position, 0), _flipped(raw, position, choice), raw + raw, path.read_bytes())[choice % 5]
    path.with_name(path.name + ".gz").write_bytes(raw)
    path.unlink()


def _linked(path: Path, position: int, choice: int) -> None:
    """A link in its place: to itself, to nothing, to a folder, to another file, to a device, a pipe."""
    target = (path.name, "nowhere", "..", "/etc/hostname", "/dev/null", "")[choice % 6]
    path.unlink()
    if target:
        path.symlink_to(target)
    else:
        os.mkfifo(path)


def _made_a_folder(path: Path, position: int, choice: int) -> None:
    path.unlink()
    path.mkdir()
    if choice % 2:
        (path / "x").write_text("x")


def _renamed(path: Path, position: int, choice: int) -> None:
    """A copy of the file, or the file, under a hostile name that keeps its beginning and its end."""
    stem, suffix = path.name.partition(".")[0], "".join(path.suffixes)
    name = stem + ("\n", " ", "\x1b[31m", "..", "x" * 200, "\udcff", "*", "[", ".tsv", "")[choice % 10] + suffix
    if name != path.name:
        (shutil.copyfile if position % 2 else os.replace)(path, path.with_name(name))


def _columns(path: Path, position: int, choice: int) -> None:
    """A Parquet table in which a column has another value, another type or another name, is gone or comes twice."""
    if path.suffix != ".parquet":
        path.write_bytes(_token(path.read_bytes(), position, choice))
        return
    value, kind = VALUES[choice % len(VALUES)], (position // 11) % 7
    try:
        table = pq.ParquetFile(io.BytesIO(path.read_bytes())).read()
        column = position % table.num_columns
        name, cells = table.column_names[column], table.column(column).to_pylist()
        if kind == 0:
            table = table.drop_columns([name])
        elif kind == 1:
            table = table.rename_columns(["text" if column == name else column for column in table.column_names])
        elif kind == 2:
            table = table.append_column(name, table.column(column))
        elif kind == 3:
            table = pa.concat_tables([table, table.slice(0, 1)])
        elif kind == 4:
            table = table.set_column(column, name, pa.array([value] * len(cells)))
        elif kind == 5:
            raw = [BYTES[choice % len(BYTES)] for _ in cells]
            table = table.set_column(column, name, pa.array(raw, pa.binary()).view(pa.string()))
        else:
            table = table.set_column(column, name, pa.array([*cells[:-1], value], table.schema.field(name).type))
        pq.write_table(table, path)
    except Exception:
        return  # damaged before, or such that no table holds it


FILES: dict[str, Callable[[Path, int, int], None]] = {
    "compress": _compressed,
    "link": _linked,
    "folder": _made_a_folder,
    "rename": _renamed,
    "columns": _columns,
    "remove": lambda path, position, choice: path.unlink(),
}
"""What may happen to a file as such."""

KINDS = ("keys", *RAW, *FILES, "columns", "json", "token", "json", "token")
"""What is done, some of it more often."""


def damages(random: Random) -> list[Damage]:
    """One to three damages."""
    count = random.randint(1, 3)
    return [Damage(random.choice(KINDS), *(random.randrange(100_000) for _ in range(3))) for _ in range(count)]


def paths_in(tree: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a tree of mappings and lists, its own first."""
    yield above
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from paths_in(value, (*above, key))


def texts_in(tree: Any) -> list[str]:
    """Every text that is a value in a tree."""
    if isinstance(tree, str):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [text for value in values for text in texts_in(value)]


def replaced(tree: Any, position: int, value: Any) -> Any:
    """A copy of a tree with another value in a place, or with a key or element more or less beside it."""
    tree = json.loads(json.dumps(tree))
    places = list(paths_in(tree))
    *above, last = places[position % len(places)] or (None,)
    if last is None:
        return value
    node = tree
    for key in above:
        node = node[key]
    variant = (position // len(places)) % 4
    if variant == 0 and isinstance(node, dict):
        node[value if isinstance(value, str) else "other"] = node.pop(last)
    elif variant == 1 and isinstance(node, list):
        node.insert(last, node[last])
    else:
        node[last] = value
    return tree


def damage(folder: Path, keys: Any, damages: list[Damage]) -> Any:
    """Do some damage to the files below a folder; the tree of keys, to which some may be done too."""
    for damage in damages:
        if damage.kind == "keys":
            keys = replaced(keys, damage.position, VALUES[damage.choice % len(VALUES)])
            continue
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        if not files:
            break
        path = files[damage.file % len(files)]
        if damage.kind in RAW:
            path.write_bytes(RAW[damage.kind](path.read_bytes(), damage.position, damage.choice))
        else:
            FILES[damage.kind](path, damage.position, damage.choice)
    return keys


def raw(whole: bytes, done: list[Damage]) -> bytes:
    """Do some damage to the contents of a file; what damages files as such, to a value in it."""
    for damage in done:
        whole = RAW.get(damage.kind, RAW["json"])(whole, damage.position, damage.choice)
    return whole


def yaml_of(tree: Any, damages: list[Damage]) -> bytes:
    """A tree of keys as YAML, both damaged."""
    for damage in damages:
        if damage.kind == "keys":
            tree = replaced(tree, damage.position, VALUES[damage.choice % len(VALUES)])
    raw = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")
    for damage in damages:
        raw = RAW[damage.kind](raw, damage.position, damage.choice) if damage.kind in RAW else raw
    return raw
