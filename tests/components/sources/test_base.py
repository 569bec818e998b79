"""Declarations: what a source may say, what is wrong with one in a line, and what is missing of its files."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import Config, UserError, parse
from sparring.components.sources.base import AnySource, formats, locate
from tests.support.sources import beir, source


class Recipe(Config):
    """A config with a source."""

    data: AnySource


def test_a_format_is_a_file_with_a_source() -> None:
    assert {"beir", "sentence_transformers", "tables"} <= {*formats()}
    assert not {"base", "labelled", "records", "training_groups"} & {*formats()}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"format": "bier"}, "c.yaml: data: unknown format 'bier'; accepted: "),
        ({"path": "x"}, "c.yaml: data: no format; accepted: "),
        (
            {"format": "beir", "path": "x", "pth": 1},
            "c.yaml: data.pth: unknown key; accepted: format, on_bad, sha256, ",
        ),
        ({"format": "beir"}, "c.yaml: data.path: it is needed, and is not there"),
        (
            {"format": "beir", "path": "x", "on_bad": "skip"},
            "c.yaml: data.on_bad: got 'skip'; accepted: 'fail' or 'drop'",
        ),
        (
            {"format": "beir", "path": "x", "sha256": {"a": "b"}},
            "c.yaml: data.sha256.a: got 'b'; accepted: text that matches ^",
        ),
        (
            {"format": "tables", "path": "x", "columns": {"docs": {}}},
            "c.yaml: data.columns.docs: unknown key; accepted: documents, queries, qrels",
        ),
        (
            {"format": "dpr", "path": "x", "retriever": {"dev": "a"}, "questions": {"dev": "b"}},
            "c.yaml: data: the split 'dev' is in both `retriever` and `questions`",
        ),
        (
            {"format": "huggingface", "documents": {"path": "x", "dataset": "y"}, "queries": {"path": "z"}},
            "c.yaml: data.documents: set either `dataset` (a name on the hub) or `path` (a folder)",
        ),
        (3, "c.yaml: data: got 3; accepted: keys and values"),
    ],
)
def test_a_wrong_declaration_is_one_clear_line(tree: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Recipe, {"data": tree}, where="c.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_declaration_is_dumped_with_all_its_keys() -> None:
    recipe = parse(Recipe, {"data": {"format": "docstrings", "packages": ["numpy"]}}, where="c.yaml")
    dumped = recipe.model_dump(mode="json")
    assert dumped["data"]["packages"] == ["numpy"]
    assert dumped["data"]["min_text_words"] == 20
    assert parse(Recipe, dumped, where="c.yaml") == recipe


def test_declaring_imports_nothing_heavy() -> None:
    trees = [
        {"format": "docstrings", "packages": ["numpy"]},
        {"format": "huggingface", "documents": {"path": "x"}, "queries": {"path": "x"}},
        {"format": "ir_datasets", "dataset": "vaswani"},
    ]
    code = f"""if True:
        import sys
        from sparring.components.sources.base import declared
        for tree in {trees!r}:
            declared(tree).missing()
        print([name for name in ("torch", "datasets", "ray", "pandas", "ir_datasets") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_environment_moves_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARRING_DATA", raising=False)
    assert locate("data/squad") == Path("data/squad")
    monkeypatch.setenv("SPARRING_DATA", str(tmp_path))
    assert locate("data/squad") == tmp_path / "squad"
    assert locate("other/data/squad") == Path("other/data/squad")
    assert locate("/data/squad") == Path("/data/squad")


def test_what_is_missing_is_named_without_reading(tmp_path: Path) -> None:
    missing = source(format="beir", path=str(tmp_path / "no"), splits=["test"]).missing()
    assert missing == [str(tmp_path / "no" / name) for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")]
    assert source(format="beir", path=str(beir(tmp_path / "yes", gz=".gz"))).missing() == []
    assert source(format="docstrings", packages=["numpy", "nonesuch"]).missing() == ["the package nonesuch"]
    table = {"path": str(tmp_path / "no")}
    assert source(format="huggingface", documents=table, queries=table).missing() == [str(tmp_path / "no")]


def test_the_format_of_csv_files_is_named() -> None:
    with pytest.raises(
        UserError,
        match=r"unknown format 'csv'; accepted: .*; for \.csv, \.jsonl, \.txt and \.parquet files use tables$",
    ):
        parse(Recipe, {"data": {"format": "csv"}}, where="c.yaml")
