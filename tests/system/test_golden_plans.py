"""The plan of every config as text, fingerprints included: what would be made anew shows in review as a diff.

`UPDATE_GOLDEN=1 make test ARGS=tests/system/test_golden_plans.py` writes the plans as they are now.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.components.evaluation.averages import AVERAGE
from sparring.components.yaml_files import read_based, yaml_text
from sparring.workflows.stages import experiments
from sparring.workflows.store.dag import graph
from tests.support.planned import CONFIGS, SMALL, planned
from tests.support.tiny import ROOT

GOLDEN = ROOT / "tests" / "golden"
UPDATE = "UPDATE_GOLDEN"
AT_SMALL_SCALE = "scale=small"


def golden(config: Path, *sets: str) -> Path:
    """Where a config's plan is kept, or that of its small twin."""
    parts = config.relative_to(ROOT / "configs").with_suffix("").parts
    return GOLDEN / f"{'-'.join([*(['small'] if sets else []), *parts])}.txt"


PLANS = [(config, *sets) for configs, sets in ((CONFIGS, []), (SMALL, [AT_SMALL_SCALE])) for config in configs]
FIRST = {read_based(config)["recipe"]: (config, *sets) for config, *sets in reversed(PLANS)}
SOME = [plan for number, plan in enumerate(PLANS) if number % 3 == 0 or plan in FIRST.values()]
"""Every third plan, and one of each recipe."""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: golden(*plan).stem)
def test_the_plan_is_what_it_was(plan: tuple[Any, ...]) -> None:
    text, kept = planned(*plan).text, golden(*plan)
    if os.environ.get(UPDATE):
        kept.write_text(text)
    how = f"if it is meant: {UPDATE}=1 make test ARGS=tests/system/test_golden_plans.py"
    assert kept.exists(), f"{kept.stem} has no golden plan; {how}"
    assert text == kept.read_text(), how


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: golden(config).stem)
def test_a_runs_own_config_says_the_same(config: Path, tmp_path: Path) -> None:
    """With all that was left open written out, as a run's folder has it."""
    there = ["data={format: beir, path: nowhere}"] if read_based(config)["recipe"] == "adapt" else []
    made = experiments.read_config(config, there)
    again = tmp_path / "config.yaml"
    again.write_text(yaml_text(made.model_dump(mode="json")))
    assert experiments.read_config(again, []) == made


def test_no_golden_plan_is_left_over() -> None:
    kept = {golden(*plan) for plan in PLANS}
    if os.environ.get(UPDATE):
        for path in set(GOLDEN.glob("*.txt")) - kept:
            path.unlink()
    assert set(GOLDEN.iterdir()) == kept


def test_plans_are_the_same_wherever_they_are_made(tmp_path: Path) -> None:
    """Whatever the machine's cores, GPUs, data, home, time zone, order of hashes: identity is in the file alone.

    Nor does planning load what is heavy: torch, Ray and Java are imported where a step runs.
    """
    code = """
import sys
from tests.system.test_golden_plans import SOME, planned
for plan in SOME:
    print(planned(*plan).text)
heavy = {"torch", "transformers", "ray", "faiss", "jnius", "pyserini", "sentence_transformers", "matplotlib"}
print(sorted(heavy & sys.modules.keys()))
"""
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "SPARRING_DATA": str(tmp_path), "PYTHONHASHSEED": "7",
        "TZ": "Pacific/Chatham", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "3", "SPARRING_STORE": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    # What this process makes is compared with the same files, by the test of each config.
    assert done.stdout == "".join(golden(*plan).read_text() + "\n" for plan in SOME) + "[]\n"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: golden(path).stem)
def test_a_config_says_how_to_run_it(config: Path) -> None:
    """Its first lines are for whoever opens it."""
    text = config.read_text()
    assert text.startswith("# ")
    assert f"python -m workflows run {config.relative_to(ROOT)}" in text or "make demo" in text
    first = next(line for line in text.splitlines() if not line.startswith("#"))
    assert re.fullmatch(r"recipe: \w+|base: [\w./-]+\.yaml", first)


TABLES = [config for config in CONFIGS if read_based(config).get("expected")]


@pytest.mark.parametrize("config", TABLES, ids=lambda path: golden(path).stem)
def test_what_a_paper_has_stands_beside_a_row(config: Path, tmp_path: Path) -> None:
    """Each of its values is of a system, and a collection, that the experiment measures."""
    experiment = experiments.read(config, [], tmp_path)
    assert experiment.expected is not None
    systems = experiment.outcome.systems
    places = {one.collection for one in systems} | {AVERAGE, None, *(experiment.outcome.parts or {}).values()}
    for column in experiment.expected.of:
        assert column.collection in places
        assert column.values.keys() <= {one.name for one in systems}


@pytest.mark.parametrize("config", SMALL, ids=lambda path: golden(path).stem)
def test_a_small_twin_has_the_rows_of_its_table_and_none_of_its_files(config: Path, tmp_path: Path) -> None:
    """All systems of the paper's values, on other data."""
    small = experiments.read(config, [AT_SMALL_SCALE], tmp_path)
    assert small.expected is not None
    assert {system for column in small.expected.of for system in column.values} <= {
        one.name for one in small.outcome.systems
    }
    folders = {file.parts[1] for node in graph(small.wanted) for file in sources(node) if file.parts[0] == "data"}
    assert folders <= {"squad", "cranfield", "scifact", "stsb", "transfer", "wiki-sentences"}


def sources(node: Any) -> list[Path]:
    """The files that a step reads."""
    source = node.inputs.get("source")
    return [] if source is None else list(source.files().values())
