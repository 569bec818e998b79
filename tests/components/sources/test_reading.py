"""Text and JSON files, line by line and piece by piece, and where they are wrong."""

import gzip
import json
from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.components.sources.reading import Item, fields, read_array, read_csv, read_lines, read_objects
from sparring.components.sources.records import Bad
from tests.support.errors import refused


@pytest.mark.parametrize("chunk_chars", [1, 7, 1000])
def test_an_array_is_read_piece_by_piece(tmp_path: Path, chunk_chars: int) -> None:
    values = [{"a": "x\\u00e9 \\n}]" * n, "b": [n, 1.5, None, True, {"c": "]"}]} for n in range(6)]
    path = tmp_path / "a.json"
    path.write_text(" \n" + json.dumps(values, indent=1) + "\n")
    items = list(read_array(path, chunk_chars=chunk_chars))
    assert [item.value for item in items if isinstance(item, Item)] == values
    assert [item.place for item in items] == [f"{path}: item {n}" for n in range(1, 7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', ": the file is not a JSON array"),
        ('[{"a": 1},\n {"a": 2\n', ": item 2: not JSON: Expecting ',' delimiter"),
        ('[{"a": 1},\n {"a": "x', ": item 2: not JSON: Unterminated string"),
        ('[{"a": 1}\n {"a": 2}]', ": item 1: not JSON: expected , or ]"),
        ('[{"a": 1}', ": item 1: not JSON: expected , or ]"),
        ('[{"a": nope}, ' + " " * 100 + "]", ": item 1: not JSON: Expecting value"),
        ('[{"a": ' + "9" * 5_000 + "}]", ": item 1: this JSON cannot be read: Exceeds the limit"),
        ("[" * 200_000, ": item 1: this JSON cannot be read: maximum recursion"),
        ('[{"a": 1}]\n[{"a": 2}]', ": there is text after the JSON array. Use one array per file"),
        ("[]\n\n x", ": there is text after the JSON array"),
    ],
)
def test_a_broken_array_names_its_item(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_array(path, chunk_chars=8))
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 200_000])
def test_a_line_that_python_cannot_read_is_bad(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": {value}}}\n{{"a": 1}}\n')
    bad, item = read_objects(path)
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.place) == ("line that is not JSON", f"{path}:1")
    assert isinstance(item, Item)


def test_an_array_of_other_things(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[1, {"a": 2}]')
    bad, item = read_array(path)
    assert isinstance(bad, Bad)
    assert isinstance(item, Item)
    path.write_text("[]")
    assert list(read_array(path)) == []


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\n\xff\nsec\xe2\x80\xa8ond")
    first, bad, second = read_lines(path)
    assert first == ("first", f"{path}:1")
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.place) == ("text that is not UTF-8", f"{path}:3")
    assert second == ("sec\u2028ond", f"{path}:4")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with refused("none.txt", "missing-file"):
        list(read_lines(tmp_path / "none.txt"))
    whole = gzip.compress(b"line\n" * 1000)
    for name, raw in {"cut.gz": whole[:-20], "other.gz": b"no archive"}.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=rf"{name}: the \.gz file is damaged"):
            list(read_lines(tmp_path / name))
        with pytest.raises(UserError, match=f"{name}: not a JSON file"):
            list(read_array(tmp_path / name))


def test_cells_may_be_quoted_and_long() -> None:
    assert fields('a\t"b\t""c"""\td') == ["a", 'b\t"c"', "d"]
    assert fields(f'"{"x" * 300_000}"\ty') == ["x" * 300_000, "y"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_called_so(tmp_path: Path, encoding: str) -> None:
    """As spreadsheets write "Unicode text"; it was called no CSV."""
    (tmp_path / "faq.csv").write_text("\ufeffquestion,answer\r\na?,A\r\n", encoding=encoding)
    with pytest.raises(UserError, match=r"faq\.csv: the text is UTF-16. Convert it to UTF-8 \(iconv"):
        list(read_csv(tmp_path / "faq.csv"))
