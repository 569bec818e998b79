"""YAML files: numbers as people write them, what is wrong with a file, and values set at a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.yaml_files import override, read_based, read_yaml, set_once, yaml_text
from tests.support.errors import refused


class TestYaml:
    def written(self, tmp_path: Path, text: str | bytes) -> Path:
        path = tmp_path / "some.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def test_numbers_as_people_write_them(self, tmp_path: Path) -> None:
        """YAML 1.1 reads 1e-5 as text; as an option of a loss it would fail hours later."""
        path = self.written(tmp_path, "a: 1e-5\nb: 2E+3\nc: -1.5e2\nd: 1.0e-5\ne: 1e\nf: '1e-5'\ng: 12\nh: e5\n")
        assert read_yaml(path) == {
            "a": 1e-5,
            "b": 2000.0,
            "c": -150.0,
            "d": 1e-5,
            "e": "1e",
            "f": "1e-5",
            "g": 12,
            "h": "e5",
        }

    @pytest.mark.parametrize(
        "value", ["12e4", "1e-5", 1e-5, 1e300, "on", "0x1F", "1_000", "12:30", "2026-01-01", "é", None]
    )
    def test_what_is_written_is_read_as_the_same(self, tmp_path: Path, value: Any) -> None:
        """A digest may look like a number."""
        tree = {"b": value, "a": [value]}
        assert read_yaml(self.written(tmp_path, yaml_text(tree))) == tree

    def test_what_stands_twice_is_written_twice(self) -> None:
        task = {"type": "x"}
        assert yaml_text({"a": task, "b": task}) == "a:\n  type: x\nb:\n  type: x\n"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: 1\nb: [1\n", r"some\.yaml:3: not YAML"),
            ("a: 1\n  b: 2\n", r"some\.yaml:2: not YAML"),
            ("- 1\n", r"some\.yaml: expected keys and values, got list"),
            ("# nothing\n", r"some\.yaml: the file is empty\. Write keys and values\."),
            (b"a: caf\xe9\n", r"some\.yaml: not UTF-8 text"),
            ("a: !!python/object/apply:os.system [ls]\n", r"some\.yaml:1: not YAML"),
            ("a: {b: 1, b: 2}\n", r"some\.yaml:1: not YAML: the key 'b' is given twice"),
            ("a: " + "[" * 5_000, r"some\.yaml: not YAML: nested too deeply"),
            ("a: " + "9" * 5_000, r"some\.yaml: not YAML: Exceeds the limit"),
        ],
    )
    def test_what_is_wrong_with_a_file_is_named(self, tmp_path: Path, text: str | bytes, message: str) -> None:
        with pytest.raises(UserError, match=message):
            read_yaml(self.written(tmp_path, text))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"nowhere\.yaml: there is no such file"):
            read_yaml(tmp_path / "nowhere.yaml")


class TestOverriding:
    TREE = {"a": {"b": 1, "none": None}, "list": [{"x": 1}, {"x": 2}], "text": "t"}

    @pytest.mark.parametrize(
        ("assignment", "path", "value"),
        [
            ("a.b=2", ("a", "b"), 2),
            ("a.b=1e-4", ("a", "b"), 1e-4),
            ("a.b=[1, {c: 2}]", ("a", "b"), [1, {"c": 2}]),
            ("a.b=", ("a", "b"), None),
            ("a.b=x=y", ("a", "b"), "x=y"),
            ("a.new.deep=true", ("a", "new", "deep"), True),
            ("a.none.x=1", ("a", "none", "x"), 1),
            ("list.1.x=5", ("list", 1, "x"), 5),
            ("list.0=7", ("list", 0), 7),
            ("text=other", ("text",), "other"),
        ],
    )
    def test_a_value_is_set_at_its_path(self, assignment: str, path: tuple[Any, ...], value: Any) -> None:
        before = {"a": dict(self.TREE["a"]), "list": [dict(item) for item in self.TREE["list"]], "text": "t"}
        result: Any = override(before, [assignment])
        for part in path:
            result = result[part]
        assert result == value
        assert before == self.TREE  # a copy was changed

    def test_a_list_gives_a_key_one_value(self) -> None:
        assert set_once(["a=1", "a.b=2", "b", "a=1"]) == ["a=1", "a.b=2", "b", "a=1"]
        with pytest.raises(ValueError, match=r"^a\.b is set twice, to 1 and to 2\. Use one value\.$"):
            set_once(["a.b=1", "c=3", "a.b=2"])

    def test_later_assignments_come_after_earlier_ones(self) -> None:
        assert override({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}

    @pytest.mark.parametrize(
        ("assignment", "message"),
        [
            ("a.b", "expected key.path=value"),
            ("=1", "expected key.path=value"),
            ("list.2.x=1", "'2' is not a position in a list of 2"),
            ("list.x=1", "'x' is not a position in a list of 2"),
            ("list.-1=1", "'-1' is not a position in a list of 2"),
            ("list.\u00b2=1", "'\u00b2' is not a position in a list of 2"),
            ("list." + "9" * 5_000 + "=1", "is not a position in a list of 2"),
            ("a.b.c=1", "'b' holds a value, not keys"),
            ("text.c=1", "'text' holds a value, not keys"),
            ("a.b=[1", "YAML"),
            ("a.b={x: 1, x: 2}", "YAML"),
            ("a.b=" + "[" * 5_000, "YAML: nested too deeply"),
            ("a.b=" + "9" * 5_000, "YAML: Exceeds the limit"),
        ],
    )
    def test_a_path_that_leads_nowhere_is_named(self, assignment: str, message: str) -> None:
        with pytest.raises(UserError) as caught:
            override(self.TREE, [assignment])
        assert str(caught.value).startswith(f"--set {assignment}: "[:500])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_base_that_is_not_there_is_told_with_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text("k: 1")
    (tmp_path / "own.yaml").write_text("base: below.yml")
    with refused("base", "missing-file"):
        read_based(tmp_path / "own.yaml")
