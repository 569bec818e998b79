"""The systems that a recipe's outcome names, and their models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.workflows import ROOT
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from sparring.workflows.systems.rows import Outcome, name_of, note_on


def outcome(config: str, *sets: str) -> Outcome:
    """What the recipe of a config in `configs` makes of it."""
    plan: Any = loading.read(ROOT / "configs" / config, list(sets), Path("runs")).outcome
    assert isinstance(plan, Outcome)
    return plan


@pytest.mark.parametrize("config", ["demo.yaml", "coder/tripclick.yaml", "samtone/sde.yaml", "zeroshot.yaml"])
def test_the_results_gather_the_systems_that_the_outcome_names(config: str) -> None:
    plan = outcome(config)
    assert [entry["system"] for entry in plan.results.inputs["systems"]] == [system.name for system in plan.rows]
    gathered = {node.fingerprint for node in graph([plan.results])}
    assert all({node.fingerprint for node in system.steps} <= gathered for system in plan.rows)


def test_a_system_names_the_models_that_made_its_ranking() -> None:
    systems = {system.name: system for system in outcome("demo.yaml").rows}
    assert systems["BM25"].retriever is None
    last = next(name for name in reversed(systems) if name.startswith("ranker over retriever"))
    alone = systems[last.removeprefix("ranker over ")]
    assert alone.retriever is not None
    assert alone.ranking is not None
    assert alone.retriever.ranking("test").fingerprint == alone.ranking.fingerprint
    assert alone.ranker is None
    assert systems[last].retriever is alone.retriever
    assert systems[last].ranker is not None


def test_rankings_are_those_of_the_last_seed_on_the_recipes_own_collection() -> None:
    plan = outcome("demo.yaml", "seeds=[1, 2]")
    labels = {name: row.ranking.label for name, row in plan.ranked.items() if row.ranking is not None}
    assert labels["BM25"] == "bm25 ranking (test)"
    assert labels["warm retriever"] == "warm retriever (seed 2) ranking (test)"
    zeroshot = outcome("zeroshot.yaml")
    assert len({system.collection for system in zeroshot.rows}) > 1
    assert all(row.ranking and zeroshot.data in row.ranking.upstream for row in zeroshot.ranked.values())


def test_only_what_vectors_alone_found_has_its_space_analysed() -> None:
    plan = outcome("demo.yaml", "analyse={}")
    analysed = {system.name for system in plan.rows if system.analysis is not None}
    assert analysed == {system.name for system in plan.rows if system.retriever is not None and system.ranker is None}
    assert "start model" in analysed
    assert "BM25" not in analysed


def test_other_judgements_of_the_same_rankings_are_systems_of_another_collection() -> None:
    systems = outcome("coder/tripclick.yaml").rows
    collections = {system.collection for system in systems}
    assert len(collections) > 1
    whole = {(system.name, system.seed): system.ranking for system in systems}
    assert all(system.ranking is whole[system.name, system.seed] for system in systems)


def test_the_note_says_what_the_start_model_was_trained_on() -> None:
    assert "SQuAD" in outcome("demo.yaml").note
    assert "not zero-shot" in outcome("demo.yaml").note
    assert note_on("bert-base-uncased") == (
        "The start model is bert-base-uncased. See its model card for what it was trained on."
    )


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"path": "data/squad/"}, "squad"),
        ({"path": "data/sts/{split}.tsv"}, "sts"),
        ({"path": "https://here/of/{split}/{split}.jsonl"}, "of"),
        ({"path": "{split}.tsv"}, "tsv"),
        ({"id": "beir/scifact/test"}, "test"),
        ({}, "tsv"),
    ],
)
def test_a_collection_is_called_by_the_last_part_that_names_no_split(keys: dict[str, str], name: str) -> None:
    assert name_of(SimpleNamespace(format="tsv", **keys)) == name
