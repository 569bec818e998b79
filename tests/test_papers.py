"""The list of the papers' tables is what their configs say, and each of them says enough."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from sparring.components.yaml_files import read_based
from sparring.workflows.experiments.expected import KEY, Expected
from tests.support.tiny import ROOT

FOLDER = ROOT / "configs" / "papers"
TABLES = [path for path in sorted(FOLDER.rglob("*.yaml")) if read_based(path).get(KEY)]


@pytest.fixture(scope="module")
def papers() -> ModuleType:
    """`docs/papers.py`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("papers", ROOT / "docs" / "papers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_is_current(papers: ModuleType) -> None:
    assert (FOLDER / "README.md").read_text() == papers.text(), "if it is meant: .venv/bin/python docs/papers.py"


def test_what_a_table_needs_is_read_from_its_config(papers: ModuleType) -> None:
    files, models = papers.needs(FOLDER / "ear" / "table3-2-nq-others.yaml")
    assert {"data/nq/psgs_w100.tsv", "data/nq/seal.json"} <= {*files}
    assert {"facebook/bart-large", "bigscience/T0_3B", "microsoft/deberta-v3-base"} <= {*models}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: "-".join(path.relative_to(FOLDER).with_suffix("").parts))
def test_a_table_names_its_source(path: Path) -> None:
    expected = Expected.model_validate(read_based(path)[KEY])
    assert "Table" in expected.source or "Figure" in expected.source
    for column in expected.of:
        if top := {"percent": 100, "share": 1}.get(column.unit or expected.unit):
            least = 0 if column.query is None else -1  # a single query may have 0
            assert all(least < value <= top for value in column.values.values()), column.measure
