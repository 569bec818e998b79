"""What step functions say of themselves, over the graphs of all configs."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows import ROOT
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import Description, Step, description, graph
from tests.support.planned import CONFIGS, planned

MODELS = {
    "train": "training",
    "encode_documents": "encoding",
    "encode_queries": "encoding",
    "score_groups": "scoring",
    "rerank": "scoring",
    "predict": "predicting",
}


def functions() -> frozenset[Callable[..., Any]]:
    """Those of all steps."""
    return frozenset[Any]().union(*(planned(path).functions for path in CONFIGS))


def descriptions() -> dict[str, Description]:
    """What the functions of all steps say of themselves, by name."""
    return {function.__name__: description(function) for function in functions()}


def nodes(config: str) -> list[Step]:
    """The steps of a config of `configs`."""
    return graph(loading.read(ROOT / "configs" / config, [], Path("runs")).wanted)


def test_every_step_of_our_recipes_has_a_part_of_its_own() -> None:
    assert {label for path in CONFIGS for label, part in planned(path).parts if part in ("other", "training")} == set()


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (
            "ar2/ablations.yaml",
            {
                "AR2: ranker 2 (seed 2)": "ranker training",
                "AR2: retriever 2 (seed 2)": "retriever training",
                "warm retriever (seed 2)": "warm-up",
                "AR2: warm ranker (seed 2)": "warm-up",
                "released: retriever 1 (seed 1)": "retriever training",
            },
        ),
        (
            "demo.yaml",
            {
                "data": "data",
                "bm25 ranking (test)": "BM25",
                "judged 1": "scoring by the ranker",
                "results": "evaluation",
                "warm retriever vectors": "encoding",
                "warm retriever ranking (test)": "search",
                "retriever 1 groups": "groups and negatives",
            },
        ),
        ("ar2/docstrings.yaml", {"control ance 1": "training of controls"}),
        (
            "coder/docstrings.yaml",
            {
                "CODER 1 (seed 1)": "retriever training",
                "contexts 1 (seed 1)": "soft labels",
                "pictures (seed 1)": "evaluation",
                "warm retriever (seed 1)": "warm-up",
            },
        ),
        (
            "ear/squad-gar.yaml",
            {
                "retriever (seed 1)": "retriever training",
                "title ri reranker (seed 1)": "query reranking",
                "title generator": "expansions",
                "title expansions (test)": "expansions",
            },
        ),
    ],
)
def test_a_step_belongs_to_the_part_that_it_is_for(config: str, parts: dict[str, str]) -> None:
    """A training's is said where its step is made: the same function warms up, plays, and trains controls."""
    assert {label: node.part for node in nodes(config) if (label := node.label) in parts} == parts


def test_every_step_of_our_recipes_has_a_phase() -> None:
    assert {(path.name, label) for path in CONFIGS for label, phase in planned(path).phases if not phase} == set()


@pytest.mark.parametrize(
    ("config", "phases"),
    [
        (
            "demo.yaml",
            {
                "data": "collection",
                "bm25 index": "collection",
                "tokens": "collection",
                "BM25 measures": "untrained",
                "start vectors": "untrained",
                "bm25 ranking (dev)": "untrained",
                "warm retriever": "warm-up",
                "warm ranker over warm retriever measures": "warm-up",
                "retriever 1": "round 1",
                "ranker 1": "round 1",
                "retriever 1 measures": "round 1",
                "BM25 + retriever 1, interpolated (test)": "evaluation",
                "BM25 + start model, reciprocal weights": "untrained",
                "selection": "evaluation",
                "results": "evaluation",
            },
        ),
        ("ar2/docstrings.yaml", {"control ance 1": "controls", "retriever 1": "round 1"}),
        ("ar2/ablations.yaml", {"AR2: retriever 2 (seed 2)": "round 2", "warm retriever (seed 1)": "warm-up"}),
        ("coder/docstrings.yaml", {"CODER 1 (seed 1)": "round 1", "pictures (seed 1)": "evaluation"}),
        (
            "simlm/docstrings.yaml",
            {
                "pre-training": "pre-training",
                "retriever 2 (seed 1)": "retriever 2",
                "ranker (seed 1)": "ranker",
                "distilled retriever (seed 1)": "distillation",
            },
        ),
        (
            "ear/squad-gar.yaml",
            {
                "title generator": "expansions",
                "title ri reranker (seed 1)": "query reranking",
                "BM25 measures": "untrained",
                "retriever (seed 1)": "training",
            },
        ),
        ("zeroshot.yaml", {"results": "evaluation"}),
    ],
)
def test_a_step_is_made_in_the_phase_that_its_recipe_names(config: str, phases: dict[str, str]) -> None:
    assert {label: phase for label, phase in planned(ROOT / "configs" / config).phases if label in phases} == phases


def test_what_models_do_is_said_where_models_are_at_work() -> None:
    assert {name: description.models for name, description in descriptions().items() if description.models} == MODELS


def test_what_may_be_dropped_are_vectors_indexes_and_the_state_that_a_training_carried_on() -> None:
    droppable = {name: description.droppable for name, description in descriptions().items() if description.droppable}
    assert droppable.keys() <= {"encode_documents", "encode_queries", "build_index", "smaller_vectors"}
    assert any(fnmatch.fnmatch("documents-00000.npy", pattern) for pattern in droppable["encode_documents"])
    assert any(fnmatch.fnmatch("queries.npy", pattern) for pattern in droppable["encode_queries"])
    assert not any(fnmatch.fnmatch("queries.json", pattern) for pattern in droppable["encode_queries"])
    carried = {
        name: (description.carried, *description.carries)
        for name, description in descriptions().items()
        if description.carried or description.carries
    }
    assert carried == {"train": (("state",), "start")}


def test_what_a_step_carries_on_is_of_one_of_its_inputs() -> None:
    for function in functions():
        assert description(function).carries.keys() <= inspect.signature(function).parameters.keys()
