"""Recipes by dotted path, and configs that are read without building a graph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.systems.config import SYSTEM
from sparring.workflows.experiments import loading
from sparring.workflows.recipes import dpr
from tests.support import tiny
from tests.support.errors import refused

OWN = """
from typing import Literal

from sparring.workflows.recipes import dpr


class Config(dpr.Config):
    recipe: Literal["my_recipes.mine"]


def build(config):
    if config.k == 13:
        raise ValueError("k: 13 is unlucky")
    return dpr.build(config)
"""


@pytest.fixture
def tree() -> dict[str, Any]:
    return tiny.dpr(Path("data/toy"), Path("models/toy"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of recipes outside `workflows`."""
    (package := tmp_path / "my_recipes").mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(OWN)
    (package / "empty.py").write_text("Config = None\n")
    (package / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("my_recipes")]:
        monkeypatch.delitem(sys.modules, name)
    return package


def test_a_recipe_may_be_a_modules_dotted_path(own: Path, tmp_path: Path, tree: dict[str, Any]) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", {**tree, "recipe": "my_recipes.mine"})
    mine = loading.read(path, [], tmp_path)
    plain = loading.read(tiny.write(tmp_path / "plain.yaml", tree), [], tmp_path)
    assert mine.config.recipe == "my_recipes.mine"
    assert mine.outcome.results.fingerprint == plain.outcome.results.fingerprint
    with refused("k", "invalid"):
        loading.read(path, ["k=13"], tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "my_recipes.nowhere",
            r"recipe: 'my_recipes\.nowhere' cannot be imported: No module named .*; looked among",
        ),
        ("no_such_package.recipe", r"recipe: 'no_such_package\.recipe' cannot be imported: No module named"),
        ("my_recipes.broken", r"recipe: 'my_recipes\.broken' cannot be imported: .*nothing_of_this_name"),
        ("my_recipes.empty", r"recipe: the module 'my_recipes\.empty' has no build; a recipe has Config and build"),
        ("nothing", r"recipe: 'nothing'; accepted: .*ar2, .*, or a module's dotted path"),
        (".relative", r"recipe: '\.relative'; accepted: .*ar2, "),
    ],
)
def test_a_recipe_that_cannot_be_had_is_named(
    own: Path, tmp_path: Path, tree: dict[str, Any], name: str, says: str
) -> None:
    with pytest.raises(UserError, match=rf"tiny\.yaml: {says}"):
        loading.read(tiny.write(tmp_path / "tiny.yaml", {**tree, "recipe": name}), [], tmp_path)


@pytest.mark.parametrize(
    ("assignment", "key", "code"),
    [
        ("retriever.colour=3", "retriever.colour", "unknown-key"),
        ("recipe=nothing", "recipe", "unknown-recipe"),
        ("tokens.max_tokens=4", "query_tokens", "too-many-tokens"),
        ("scale=tiny", "scale", "unknown-scale"),
    ],
)
def test_an_error_keeps_its_key_and_code_when_another_experiment_reads_the_file(
    tmp_path: Path, tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch, assignment: str, key: str, code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tiny.write(tmp_path / "tiny.yaml", tree)
    with refused(key, code):
        loading.read(path, [assignment], tmp_path)
    pair = {"tiny": {"file": str(path), "sets": [assignment]}, "plain": str(path)}
    compare = {"recipe": "compare", "experiments": pair, "baseline": "plain", "systems": ["retriever"]}
    with refused(key, code) as caught:
        loading.read(tiny.write(tmp_path / "compare.yaml", compare), [], tmp_path)
    assert "experiments.tiny" in str(caught.value)


def test_a_config_is_read_without_building_a_graph(
    tmp_path: Path, tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(config: dpr.Config) -> None:
        raise AssertionError("builds")

    monkeypatch.setattr(dpr, "build", build)
    config = loading.read_config(tiny.write(tmp_path / "tiny.yaml", {**tree, "tune": {}}), ["k=7"])
    assert isinstance(config, dpr.Config)
    assert config.k == 7


def test_an_outcome_is_that_of_the_experiment(tmp_path: Path, tree: dict[str, Any]) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", tree)
    outcome = loading.read_outcome(path, ["k=7"])
    assert outcome.results.fingerprint == loading.read(path, ["k=7"], tmp_path).outcome.results.fingerprint


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mine", "mine: there is no such file; did you mean mine.yaml?"),
        ("mines.yaml", "mines.yaml: there is no such file; did you mean mine.yaml?"),
        ("ar2-squad", "ar2-squad: there is no such file; did you mean configs/ar2/squad.yaml?"),
        ("runs", r"runs: a folder without config\.yaml; accepted: a config, or the folder of a run, which has it$"),
        ("out/system", "out/system: an exported system; accepted: a config .search, serve and marks"),
        ("else/where.yaml", "else/where.yaml: there is no such file; `.* init FOLDER` writes one$"),
        ("runs-of-mine", "runs-of-mine: there is no such file; accepted: a config .*, or the folder of a run$"),
        ("faq.csv.gz", "faq.csv.gz: a table; accepted: a config, which `.* init faq.csv.gz` writes for it$"),
        ("table.csv", "table.csv: there is no such file; "),
    ],
)
def test_the_config_that_may_be_meant_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: dict[str, Any], given: str, says: str
) -> None:
    tiny.write(tmp_path / "mine.yaml", tree)
    (tmp_path / "runs").mkdir()
    (tmp_path / "faq.csv.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "out" / "system").mkdir(parents=True)
    (tmp_path / "out" / "system" / SYSTEM).write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        loading.read(Path(given), [], Path("runs"))
    assert not loading.is_run(Path(given))
    assert loading.is_system(Path(given)) is (given in ("runs", "out/system"))


def test_a_runs_folder_stands_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: dict[str, Any]
) -> None:
    """With the values that it had; `--set` would make another. Its config's other runs are known."""
    monkeypatch.chdir(tmp_path)
    config, runs = tiny.write(tmp_path / "mine.yaml", tree), Path("runs")
    plain, changed = (loading.read(config, sets, runs) for sets in ([], ["k=7"]))
    for plan in (plain, changed):
        plan.run.mkdir(parents=True)
        tiny.write(plan.run / loading.CONFIG, plan.config.model_dump(mode="json"))
    again = loading.read(changed.run, [], runs)
    assert (again.name, again.run) == (changed.run.name, changed.run)
    assert again.outcome.results.fingerprint == changed.outcome.results.fingerprint
    assert again.outcome.results.fingerprint != plain.outcome.results.fingerprint
    assert loading.other_runs(again) == loading.other_runs(changed) == [plain.run]
    assert loading.other_runs(plain) == [changed.run]
    assert loading.other_runs(loading.read(config, ["k=8"], runs)) == [plain.run, changed.run]
    says = (
        r"runs/mine-.*: the folder of a run, as it was run; accepted with --set: its config; did you mean mine.yaml\?"
    )
    with pytest.raises(UserError, match=says):
        loading.read(changed.run, ["k=8"], runs)
