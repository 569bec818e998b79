"""The same experiment at small scale: what is changed, in what order, and where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.experiments.scale import NoSmallScale, rescaled
from sparring.workflows.report.runs import read_runs
from sparring.workflows.store.dag import graph
from tests.support import tiny
from tests.support.errors import refused

SMALL = ["scale=small"]


def own(**small: Any) -> dict[str, Any]:
    """A config with changes at small scale."""
    return {**tiny.dpr(Path("data/toy"), Path("models/toy")), "small": small}


def read(folder: Path, tree: dict[str, Any], sets: list[str] = SMALL) -> Experiment:
    return loading.read(tiny.write(folder / "tiny.yaml", tree), sets, folder)


def test_the_changes_are_made_before_other_values(tmp_path: Path) -> None:
    tree = own(**{"k": 9, "train.updates": 2, "retriever": {"model": "m", "layers": 2}})
    whole, small = read(tmp_path, tree, []), read(tmp_path, tree)
    assert (whole.config.k, whole.config.train.updates, whole.scale) == (20, 3, None)
    assert (small.config.k, small.config.train.updates, small.scale) == (9, 2, "small")
    assert small.config.retriever.query_tokens != whole.config.retriever.query_tokens  # another mapping, not merged
    assert read(tmp_path, tree, ["k=8", *SMALL]).config.k == 8
    assert read(tmp_path, tree, ["retriever.layers=1", *SMALL]).config.retriever.layers == 1
    assert small.run != whole.run


def test_what_the_file_leaves_out_is_left_out() -> None:
    tree = {"a": None, "b": [1], "small": {"a": 2, "a.c": 2, "b.0": 2, "b.1": 2, "d.e": 2}}
    assert rescaled(tree, SMALL, "it") == {"a": None, "b": [2], "d": {"e": 2}, "scale": "small"}
    assert tree["b"] == [1]


def test_changes_are_those_of_the_base_and_then_the_files_own(tmp_path: Path) -> None:
    tiny.write(tmp_path / "base.yaml", own(k=9, **{"train.updates": 2}))
    small = read(tmp_path, {"base": "base.yaml", "small": {"k": 7}})
    assert (small.config.k, small.config.train.updates) == (7, 2)
    with pytest.raises(NoSmallScale, match="there is no small one: it takes a year"):
        read(tmp_path, {"base": "base.yaml", "small": "it takes a year"})


def test_experiments_that_one_builds_on_are_at_its_scale(tmp_path: Path) -> None:
    """Those of a comparison with their own numbers on top, and what a training starts from."""
    first, two, start = (str(tmp_path / f"{name}.yaml") for name in ("one", "two", "start"))
    tiny.write(Path(start), own(**{"train.updates": 1}))
    tiny.write(Path(first), own(k=9, **{"train.updates": 2}))
    tiny.write(Path(two), {**own(k=9, **{"train.updates": 2}), "start_from": start})
    tree = {
        "recipe": "compare",
        "baseline": "a",
        "systems": ["retriever"],
        "experiments": {"a": first, "b": {"file": first, "sets": ["train.updates=4"]}, "c": two},
    }
    small, whole = read(tmp_path, tree), read(tmp_path, tree, [])

    def updates(experiment: Experiment, name: str) -> list[int]:
        row = next(row for row in experiment.outcome.rows if row.name == f"{name}: retriever")
        assert row.retriever is not None
        trained = row.retriever.retriever
        return [node.inputs["config"].updates for node in graph([trained]) if node.function.__name__ == "train"]

    assert [updates(small, name) for name in "abc"] == [[2], [4], [1, 2]]
    assert [updates(whole, name) for name in "abc"] == [[3], [4], [3, 3]]


def test_a_runs_folder_knows_its_scale(beir: Path, encoder: Path, tmp_path: Path) -> None:
    tiny.write(tmp_path / "one.yaml", {**tiny.dpr(beir, encoder), "train": None, "small": {"k": 9}})
    experiment = {"file": str(tmp_path / "one.yaml"), "sets": ["seeds=[1, 2]"]}
    tree = {
        "recipe": "compare",
        "baseline": "a",
        "systems": ["start model"],
        "experiments": {"a": str(tmp_path / "one.yaml"), "b": experiment},
    }
    place = tiny.place(tmp_path / "place", tree)
    assert place("run", "--set", "scale=small") == 0
    (folder,) = place.runs.iterdir()
    assert yaml.safe_load((folder / "config.yaml").read_text())["scale"] == "small"
    again = read_runs([folder, folder], place.runs, place.where)[0].experiment
    plan = loading.read(place.config, SMALL, place.runs)
    assert again.outcome.results.fingerprint == plan.outcome.results.fingerprint


@pytest.mark.parametrize(
    ("small", "sets", "message"),
    [
        ({"k": 9}, ["scale=tiny"], r"tiny\.yaml: scale: 'tiny'; accepted: small"),
        (None, SMALL, r"tiny\.yaml: scale: there is no small one: the file has no key `small`"),
        (7, SMALL, r"tiny\.yaml: small: 7; accepted: `key\.path: value`, or a line that says why not"),
        ({"k.x": 9}, SMALL, r"tiny\.yaml: small: k\.x: 'k' holds a value, not keys"),
    ],
    ids=str,
)
def test_mistakes_are_told(tmp_path: Path, small: Any, sets: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, {**own(), "small": small}, sets)


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with refused("trian", "unknown-key"):
        read(tmp_path, {**own(), "small": {"trian": 9}}, SMALL)
