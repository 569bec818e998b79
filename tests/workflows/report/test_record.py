"""The record of a run: what `sparring record` writes is what metrics.json says, with how it was made."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from sparring.components.evaluation.result_table import table
from sparring.workflows.report.record import MEASURED, text_of
from tests.support import tiny
from tests.support.tiny import Place, Said


def test_a_record_has_what_was_measured_and_how(played: Place, tmp_path: Path, said: Said) -> None:
    before = tiny.contents(played.folder)
    file = tmp_path / "records" / "tiny.json"
    assert played("record", str(file)) == 0
    assert said()[0] == f"{file}\n"
    assert tiny.contents(played.folder) == before
    record, metrics = json.loads(file.read_text()), played.metrics()
    assert {key: record[key] for key in record if key != "run"} == {
        key: metrics[key] for key in MEASURED if key in metrics
    }
    assert table(record) == table(metrics)
    run, steps = record["run"], tiny.records(played.store)
    assert run["config"] == "tiny.yaml"
    assert (run["seeds"], run["set"]) == ([1], [])
    assert sum(value["steps"] for value in run["steps"].values()) == len(steps)
    assert abs(run["seconds"] - sum(step["seconds"] for step in steps)) < 0.1 + 0.01 * len(steps)
    assert all(step["code"] in run["code"] for step in steps)
    assert run["collections"] == [{"name": "toy", "documents": 40, "queries": {"train": 16, "dev": 4, "test": 4}}]
    [machine] = run["machines"]
    assert machine.items() >= {"device": "cpu", "mode": "inline", "train": {"workers": 1, "threads": 1}}.items()
    assert machine["cores"] >= 1
    assert machine["processor"]


def test_a_record_names_no_path_of_the_machine(played: Place, tmp_path: Path) -> None:
    assert played("record", str(tmp_path / "tiny.json")) == 0
    text = (tmp_path / "tiny.json").read_text()
    assert [part for part in (str(played.folder), str(tiny.ROOT), str(Path.home()) + "/") if part in text] == []


def test_a_run_that_is_not_finished_has_no_record(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "new", yaml.safe_load(played.config.read_text()))
    file = tmp_path / "old.json"
    file.write_text("old")
    assert place("record", str(file)) == 2
    assert said()[1].startswith("error: the step 'results' is not done; run it first: ")
    assert file.read_text() == "old"


def test_a_record_replaces_an_older_one_and_nothing_else(played: Place, tmp_path: Path, said: Said) -> None:
    file = tmp_path / "tiny.json"
    for text in (
        '{"run": {"config": "another.yaml"}}',
        '{"run": {"config": "tiny.yaml", "set": ["k=3"]}}',
        "precious: true",
        "[]",
    ):
        file.write_text(text)
        assert played("record", str(file)) == 2
        assert said()[1] == f"error: {file}: is there already, and no record of tiny.yaml; accepted: another FILE\n"
        assert file.read_text() == text
    file.write_text('{"run": {"config": "tiny.yaml"}}')
    assert played("record", str(file)) == 0
    assert json.loads(file.read_text())["rows"]


def test_a_record_has_a_line_for_each_row() -> None:
    record = {"run": {"set": [], "seeds": [1, 2]}, "rows": [{"a": 1}, {"a": None}], "comparisons": [], "leading": None}
    text = text_of(record)
    assert json.loads(text) == record
    assert '\n  {"a": 1},\n  {"a": null}\n' in text
