"""A retriever trained in two stages, as PAIR is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import Step, graph
from tests.support import tiny, toy
from tests.support.trainings import lines, weights

PAIR = "components.losses.same_tower.pair"


@pytest.fixture
def tree(beir: Path, encoder: Path) -> dict[str, Any]:
    small = {**tiny.dpr(beir, encoder), "negatives": {"negatives": 0}}
    return {**small, "train": tiny.training(PAIR, over="batch"), "second_stage": tiny.training(over="batch", updates=2)}


def test_where_nothing_is_selected_what_was_trained_leads(tmp_path: Path, tree: dict[str, Any]) -> None:
    """As in the run that ends a tuning, which measures the split that has chosen the trial."""
    outcome = loading.read(tiny.write(tmp_path / "tiny.yaml", tree), ["evaluate.select=null"], tmp_path).outcome
    assert outcome.results.inputs["comparisons"][0] == {"system": "retriever", "baseline": "start model"}


def test_the_second_stage_begins_where_the_first_ends_and_is_what_is_measured(
    tmp_path: Path, tree: dict[str, Any]
) -> None:
    def steps(single: dict[str, Any]) -> dict[str, Step]:
        outcome = loading.read(tiny.write(tmp_path / "tiny.yaml", single), ["seeds=[1, 2]"], tmp_path).outcome
        return {node.label: node for node in graph([outcome.results])}

    two, alone = steps(tree), steps({**tree, "second_stage": None})
    for seed in (1, 2):
        first, second = two[f"retriever (seed {seed})"], two[f"retriever, second stage (seed {seed})"]
        assert second.inputs["start"] is first
        assert two[f"retriever (seed {seed}) vectors"].inputs["retriever"] is second
        assert first.fingerprint == alone[f"retriever (seed {seed})"].fingerprint
        assert second.inputs["rows"].fingerprint != first.inputs["rows"].fingerprint


def test_the_second_stage_learns_with_its_own_loss(tmp_path: Path, tree: dict[str, Any]) -> None:
    place = tiny.place(tmp_path, tree)
    assert place("run", "--until", "retriever, second stage") == 0
    first, second = place.artifact("retriever"), place.artifact("retriever, second stage")
    assert any((weights(first)[name] != value).any() for name, value in weights(second).items())
    assert [list(lines(stage)[0])[1] for stage in (first, second)] == ["pair (batch)", "cross_entropy (batch)"]
    assert len(lines(second)) == 2


def test_a_second_stage_wants_a_first(tmp_path: Path, tree: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="second_stage: it needs a first stage; set `train`"):
        loading.read(tiny.write(tmp_path / "tiny.yaml", {**tree, "train": None}), [], tmp_path)


@pytest.mark.parametrize("measure", ["loss", "RR"])
def test_a_teachers_scores_that_the_source_gives_are_distilled_and_validated_on(
    tmp_path: Path, tree: dict[str, Any], measure: str
) -> None:
    """Rows have as many negatives as they have; the dev split's are its own, and need scores for a loss alone."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("dev", 4)):
        rows = []
        for number in range(count):
            negatives = [toy.some_text(rng, 6) for _ in range(number % 4)]
            scores = rng.normal(size=1 + len(negatives)).tolist()
            rows.append(
                {
                    "query": f"{split} {number} {toy.some_text(rng, 3)}",
                    "pos": [toy.some_text(rng, 6)],
                    "neg": negatives,
                    "pos_scores": scores[:1],
                    "neg_scores": scores[1:],
                }
            )
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loss = "components.losses.listwise.kl"
    train = {
        **tiny.training(loss, updates=3, batch=4),
        "learning_rate": 0.01,
        "validate_on_dev": {"every": 1, "measure": measure, "negatives": 2, "queries": 4},
    }
    groups = {"train": "train.jsonl", "dev": "dev.jsonl"}
    place = tiny.place(
        tmp_path,
        {
            **tree,
            "data": {"format": "flagembedding", "path": str(tmp_path), "groups": groups},
            "negatives": {"negatives": 2, "given": "scores"},
            "train": train,
            "second_stage": None,
            "k": 5,
        },
    )
    assert place("run", "--until", "retriever") == 0
    output, dev = (pq.read_table(place.artifact(f"retriever {name}groups") / "groups.parquet") for name in ("", "dev "))
    assert set(pc.list_value_length(output["doc_ids"]).to_pylist()) == {2, 3}
    assert output["teacher"].null_count == 0
    assert dev["teacher"].null_count == (0 if measure == "loss" else len(dev))
    looks = [line[f"dev {measure}"] for line in lines(place.artifact("retriever")) if f"dev {measure}" in line]
    assert len(looks) >= 3
    assert all(map(math.isfinite, looks))
