"""The plan of every config, fingerprints included, so that a change of what a run computes shows in review.

`tests/golden/plans.json` has a digest of every plan. One plan of each recipe is kept as text, where a diff shows the
steps that changed. `UPDATE_GOLDEN=1 make test ARGS=tests/system/test_golden_plans.py` writes them as they are now.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparring.components.evaluation.averages import AVERAGE
from sparring.components.yaml_files import read_based, yaml_text
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.expected import Expected, ExpectedMeasure
from sparring.workflows.store.dag import graph
from tests.support.planned import CONFIGS, SMALL, planned
from tests.support.tiny import ROOT

GOLDEN = ROOT / "tests" / "golden"
UPDATE = "UPDATE_GOLDEN"
AT_SMALL_SCALE = "scale=small"


def name(config: Path, *sets: str) -> str:
    """What a plan is called: the config's path, with `small` before it for its small twin."""
    parts = config.relative_to(ROOT / "configs").with_suffix("").parts
    return "-".join([*(["small"] if sets else []), *parts])


PLANS = [(config, *sets) for configs, sets in ((CONFIGS, []), (SMALL, [AT_SMALL_SCALE])) for config in configs]
FIRST = {read_based(config)["recipe"]: (config, *sets) for config, *sets in reversed(PLANS)}
SOME = [plan for number, plan in enumerate(PLANS) if number % 3 == 0 or plan in FIRST.values()]
"""Every third plan, and one of each recipe."""
DIGESTS = GOLDEN / "plans.json"
TEXTS = {name(*plan): GOLDEN / f"{name(*plan)}.txt" for plan in FIRST.values()}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_plans_are_what_they_were() -> None:
    texts = {name(*plan): planned(*plan).text for plan in PLANS}
    digests = {plan: digest(text) for plan, text in texts.items()}
    if os.environ.get(UPDATE):
        for path in set(GOLDEN.iterdir()) - set(TEXTS.values()):
            path.unlink()
        for plan, path in TEXTS.items():
            path.write_text(texts[plan])
        DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
    hint = f"if it is meant: {UPDATE}=1 make test ARGS=tests/system/test_golden_plans.py"
    recorded = json.loads(DIGESTS.read_text())  # the plan of a new config is not, until the next update
    assert {plan: digests.get(plan) for plan in recorded} == recorded, hint
    for path in set(GOLDEN.iterdir()) - {DIGESTS}:
        assert texts[path.stem] == path.read_text(), hint


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: name(config))
def test_a_runs_own_config_says_the_same(config: Path, tmp_path: Path) -> None:
    """With all that was left open written out, as a run's folder has it."""
    assignments = ["data={format: beir, path: nowhere}"] if read_based(config)["recipe"] == "adapt" else []
    experiment = loading.read_config(config, assignments)
    again = tmp_path / "config.yaml"
    again.write_text(yaml_text(experiment.model_dump(mode="json")))
    assert loading.read_config(again, []) == experiment


def test_plans_are_the_same_wherever_they_are_made(tmp_path: Path) -> None:
    """Whatever the machine's cores, GPUs, data, home, time zone, order of hashes: identity is in the file alone.

    Nor does planning load what is heavy: torch, Ray and Java are imported where a step runs.
    """
    code = """
import sys
from tests.system.test_golden_plans import SOME, digest, planned
for plan in SOME:
    print(digest(planned(*plan).text))
heavy = {"torch", "transformers", "ray", "faiss", "jnius", "pyserini", "sentence_transformers", "matplotlib"}
print(sorted(heavy & sys.modules.keys()))
"""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "SPARRING_DATA": str(tmp_path),
        "PYTHONHASHSEED": "7",
        "TZ": "Pacific/Chatham",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "3",
        "SPARRING_STORE": str(tmp_path),
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    kept = json.loads(DIGESTS.read_text())
    assert done.stdout == "".join(kept[name(*plan)] + "\n" for plan in SOME) + "[]\n"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: name(path))
def test_a_config_says_how_to_run_it(config: Path) -> None:
    """Its first lines are for whoever opens it."""
    text = config.read_text()
    assert text.startswith("# ")
    assert f"python -m workflows run {config.relative_to(ROOT)}" in text or "make demo" in text
    first = next(line for line in text.splitlines() if not line.startswith("#"))
    assert re.fullmatch(r"recipe: \w+|base: [\w./-]+\.yaml", first)


TABLES = [config for config in CONFIGS if read_based(config).get("expected")]


@pytest.mark.parametrize("config", TABLES, ids=lambda path: name(path))
def test_what_a_paper_has_stands_beside_a_row(config: Path, tmp_path: Path) -> None:
    """Each of its values is of a system, and a collection, that the experiment measures."""
    experiment = loading.read(config, [], tmp_path)
    assert experiment.expected is not None
    systems = experiment.outcome.rows
    places = {system.collection for system in systems} | {AVERAGE, None, *(experiment.outcome.parts or {}).values()}
    for column in measured(experiment.expected):
        assert column.collection in places
        assert column.values.keys() <= {system.name for system in systems}


@pytest.mark.parametrize("config", SMALL, ids=lambda path: name(path))
def test_a_small_twin_has_the_rows_of_its_table_and_none_of_its_files(config: Path, tmp_path: Path) -> None:
    """All systems of the paper's values, on other data."""
    small = loading.read(config, [AT_SMALL_SCALE], tmp_path)
    assert small.expected is not None
    assert {system for column in measured(small.expected) for system in column.values} <= {
        system.name for system in small.outcome.rows
    }
    folders = {file.parts[1] for node in graph(small.wanted) for file in sources(node) if file.parts[0] == "data"}
    assert folders <= {"squad", "cranfield", "scifact", "stsb", "transfer", "wiki-sentences"}


def measured(expected: Expected) -> list[ExpectedMeasure]:
    """The columns of measures. Numbers, such as costs and words, may be of further things: indexes, the questions."""
    return [column for column in expected.of if (column.unit or expected.unit) != "number"]


def sources(node: Any) -> list[Path]:
    """The files that a step reads."""
    source = node.inputs.get("source")
    return [] if source is None else list(source.files().values())
