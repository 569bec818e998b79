"""SimLM's pipeline: what each stage begins from and learns from, run whole, and cut short by a key that is null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import Step, graph
from tests.support import tiny, toy
from tests.support.tiny import Said
from tests.support.trainings import lines

UNTRAINED = {"BM25", "start model", "BM25 + start model, reciprocal", "BM25 + start model, interpolated"}
STAGES = {
    "pretrain": "pre-trained",
    "retriever_1": "retriever 1",
    "retriever_2": "retriever 2",
    "ranker": "ranker over retriever 2",
    "distilled": "distilled retriever",
}
"""The system of each key."""


@pytest.fixture
def tree(beir: Path, encoder: Path) -> dict[str, Any]:
    return tiny.simlm(beir, encoder)


def steps(tree: dict[str, Any], folder: Path, *assignments: str) -> dict[str, Step]:
    """The steps of a config by their labels."""
    outcome = loading.read(tiny.write(folder / "tiny.yaml", tree), list(assignments), folder).outcome
    return {node.label: node for node in graph([outcome.results])}


def same(single: Step, second: Step) -> bool:
    """Whether two steps are one."""
    return single.fingerprint == second.fingerprint


def test_a_head_of_another_vocabulary_is_told_with_the_plan(tree: dict[str, Any], tmp_path: Path, said: Said) -> None:
    tree["pretrain"]["head"] = {"model": str(toy.write_encoder(tmp_path / "roberta", "roberta"))}
    assert tiny.place(tmp_path / "place", tree)("plan") == 2
    assert "/roberta differs from the retriever's. Use a masked language model with" in said()[1]


def test_the_pipeline_is_that_of_figure_2(tree: dict[str, Any], tmp_path: Path) -> None:
    """All retrievers begin from the pre-trained encoder, and hand on negatives; the ranker from a model of its own."""
    output = steps(tree, tmp_path)
    for name in ("retriever 1", "retriever 2", "distilled retriever"):
        assert same(output[name].inputs["start"], output["pre-training"])
    negatives = {"retriever 1": "bm25", "retriever 2": "retriever 1", "ranker": "retriever 2"}
    for name, before in {**negatives, "distilled retriever": "retriever 2"}.items():
        assert same(output[f"{name} groups"].inputs["ranking"], output[f"{before} ranking (train)"])
    assert same(output["ranker"].inputs["start"], output["start ranker"])
    assert same(output["judged"].inputs["groups"], output["distilled retriever groups"])
    assert same(output["judged"].inputs["ranker"], output["ranker"])
    assert same(output["distilled retriever"].inputs["rows"], output["judged"])
    control = output["retriever 1 without pre-training"]
    assert same(control.inputs["start"], output["start retriever"])
    assert same(control.inputs["rows"], output["retriever 1 groups"])


def test_it_runs_stage_by_stage_and_measures_each(tree: dict[str, Any], tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tree)
    assert place("run", "--until", "retriever 2") == 0
    assert place("run") == 0
    rows = place.metrics()["rows"]
    assert {row["system"] for row in rows} == {*UNTRAINED, *STAGES.values(), "retriever 1 without pre-training"}
    compared = [(metric["system"], metric["baseline"]) for metric in place.metrics()["comparisons"]]
    for pair in (
        ("distilled retriever", "retriever 2"),
        ("retriever 2", "retriever 1"),
        ("ranker over retriever 2", "retriever 2"),
        ("retriever 1", "retriever 1 without pre-training"),
    ):
        assert pair in compared
    done = {metric["label"]: metric["executed"] for metric in place.metrics()["steps"]}
    assert not done["retriever 2"]
    assert done["distilled retriever"]
    terms = {name: set(lines(place.artifact(name))[0]) for name in ("retriever 1", "ranker", "distilled retriever")}
    assert "contrastive (batch)" in terms["retriever 1"]
    assert {"cross_entropy (group)", "symmetric_kl (passes)"} <= terms["ranker"]
    assert {"kl (group)", "contrastive (batch)"} <= terms["distilled retriever"]
    assert all(line["symmetric_kl (passes)"] > 0 for line in lines(place.artifact("ranker")))
    for row in pq.read_table(place.artifact("judged") / "groups.parquet").to_pylist():
        assert len(row["teacher"]) == len(row["doc_ids"]) == 4
    said()
    assert place("run") == 0
    assert not any(metric["executed"] for metric in place.metrics()["steps"])
    assert place("search", "bara comi", "--system", "ranker over retriever 2") == 0


@pytest.mark.parametrize("key", [key for key in STAGES if key != "pretrain"])
def test_a_stage_that_is_null_leaves_out_those_behind_it(tree: dict[str, Any], tmp_path: Path, key: str) -> None:
    forward = list(STAGES)[: list(STAGES).index(key)]
    outcome = loading.read(tiny.write(tmp_path / "tiny.yaml", tree), [f"{key}=null"], tmp_path).outcome
    names = {system.name for system in outcome.rows} - UNTRAINED - {"retriever 1 without pre-training"}
    assert names == {STAGES[item] for item in forward}
    assert (outcome.ranker is None) == (key != "distilled")
    last = {"retriever_1": "pre-training", "retriever_2": "retriever 1", "ranker": "retriever 2"}
    assert outcome.retrieval.retriever.label == last.get(key, "retriever 2")


def test_without_pretraining_all_begin_from_the_start_model(tree: dict[str, Any], tmp_path: Path) -> None:
    output = steps({**tree, "pretrain": None, "without_pretraining": False}, tmp_path)
    assert same(output["distilled retriever"].inputs["start"], output["start retriever"])
    assert same(output["retriever 2 groups"].inputs["ranking"], output["retriever 1 ranking (train)"])
    assert "pre-training" not in output


def test_the_ranker_can_begin_as_the_retrievers_do(tree: dict[str, Any], tmp_path: Path) -> None:
    """Table 5's last row."""
    output = steps(tree, tmp_path, "ranker.encoder=pre-trained")
    assert same(output["start ranker"].inputs["encoder"], output["pre-training"])
    assert steps(tree, tmp_path)["start ranker"].inputs.get("encoder") is None


def test_a_third_round_mines_from_retriever_2_and_leaves_the_pipeline_as_it_is(
    tree: dict[str, Any], tmp_path: Path
) -> None:
    tree["retriever_3"] = tree["retriever_2"]
    output, without = steps(tree, tmp_path), steps({**tree, "retriever_3": None}, tmp_path)
    assert same(output["retriever 3"].inputs["start"], output["pre-training"])
    assert same(output["retriever 3 groups"].inputs["ranking"], output["retriever 2 ranking (train)"])
    assert output["retriever 3"].inputs["seed"] != output["retriever 2"].inputs["seed"]
    assert same(output["distilled retriever"], without["distilled retriever"])
    names = [row.name for row in loading.read(tmp_path / "tiny.yaml", [], tmp_path).outcome.rows]
    assert "retriever 3" not in names
    tiny.write(tmp_path / "tiny.yaml", tree)
    outcome = loading.read(tmp_path / "tiny.yaml", [], tmp_path).outcome
    assert "retriever 3" in [row.name for row in outcome.rows]
    assert {"system": "retriever 3", "baseline": "retriever 2"} in outcome.results.inputs["comparisons"]
    cut = loading.read(tmp_path / "tiny.yaml", ["retriever_2=null"], tmp_path).outcome
    assert "retriever 3" not in [row.name for row in cut.rows]


def test_retrievers_with_two_towers_begin_both_from_the_encoder(tree: dict[str, Any], tmp_path: Path) -> None:
    output = steps(tree, tmp_path, "retriever.towers=separate")
    both = output["pre-training, two towers"]
    assert same(both.inputs["encoder"], output["pre-training"])
    for name in ("retriever 1", "retriever 2", "distilled retriever"):
        assert same(output[name].inputs["start"], both)
    assert same(output["retriever 1 without pre-training"].inputs["start"], output["start retriever"])
    assert output["start retriever"].inputs["config"].towers == "separate"


def test_seeds_are_whole_pipelines_over_one_start(tree: dict[str, Any], tmp_path: Path) -> None:
    output = steps(tree, tmp_path, "seeds=[1, 2]")
    for seed in (1, 2):
        last = output[f"distilled retriever (seed {seed})"]
        assert same(last.inputs["start"], output[f"pre-training (seed {seed})"])
        assert same(last.inputs["rows"].inputs["ranker"], output[f"ranker (seed {seed})"])
    assert same(output["ranker (seed 1)"].inputs["start"], output["ranker (seed 2)"].inputs["start"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pretrain=null", "without_pretraining: it is compared with pretrain, which is null; accepted: false"),
        ("retriever_2.mine.negatives=0", "retriever_2.mine.negatives: 0: the stage learns from mined negatives"),
        ("distilled.mine.negatives=0", "distilled.mine.negatives: 0: the stage learns from mined negatives"),
        ("ranker.hardest.keep=6", "hardest.keep: 6 of a group's 6 candidates; accepted: fewer"),
        ("ranker.model.dropout=0.0", "losses: `over: passes` compares two passes"),
        ("retriever_1.train.losses.0.over=passes", "the objective retriever accepts group, batch"),
        ("ranker.train.losses.0.over=batch", "the objective ranker accepts group, passes"),
        ("retriever_1.mine.draw.function=components.sampling.turning", "components.sampling has no function 'turning'"),
        ("retriever_1.screen.reciprocal=5", "screen.reciprocal: this ranking was not made by vectors"),
        (
            "retriever_1.train.losses.0.over=group",
            "retriever 1: losses: components.losses.simlm.contrastive reads scores among queries or among documents, "
            "and `over: group` of the objective retriever has none. Use `over: batch`.",
        ),
        (
            "ranker.train.losses.1.over=group",
            "ranker: losses: components.losses.listwise.symmetric_kl reads a teacher's scores, and these groups have "
            "none. Use a loss over targets, a recipe whose ranker scores the groups (ar2, simlm), a contender "
            "(`teacher` in ar2, dpr and simlm), or, if the collection's source has scores, `given: scores`, or `over: "
            "passes`, whose teacher is the second pass.",
        ),
        (
            "distilled.train.validate_on_dev={every: 1, measure: loss}",
            "distilled retriever: validate_on_dev: measure: got loss, but components.losses.listwise.kl reads a "
            "teacher's scores, and the groups of dev have none. Use one of these measures: RR, accuracy.",
        ),
        ("pretrain.bottleneck={task: masked, encoder_rate: 0}", "over: encoder: no tokens are masked for this view. "),
        (
            "pretrain.bottleneck={task: masked, generator_dropout: true}",
            "generator_dropout: `task: masked` uses no generator",
        ),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    tree: dict[str, Any], tmp_path: Path, said: Said, change: str, message: str
) -> None:
    place = tiny.place(tmp_path, tree)
    assert place("plan", "--set", change) == 2
    assert message in said()[1]


def test_the_generators_of_two_phases_have_labels_of_their_own(tree: dict[str, Any], tmp_path: Path) -> None:
    first = tree["pretrain"]
    training = {**first["generator"]["train"], "updates": first["generator"]["train"]["updates"] + 1}
    second = {**first, "generator": {**first["generator"], "train": training}}
    result = steps({**tree, "pretrain": [first, second]}, tmp_path)
    assert result["generator 1"].inputs["config"].updates + 1 == result["generator 2"].inputs["config"].updates
    assert result["pre-training 2"].inputs["start"] is result["pre-training 1"]


def test_the_generator_reads_the_retrievers_tokens(tree: dict[str, Any], tmp_path: Path) -> None:
    """Behind its prompts: the training stopped at tokens that were made with another tokenizer."""
    output = steps(tree, tmp_path, "retriever.document_prompt='lora '", "retriever.query_prompt='gimi '")
    config = output["start generator"].inputs["config"]
    assert (config.document_prompt, config.query_prompt) == ("lora ", "gimi ")
    assert same(output["generator"].inputs["tokens"], output["pre-training"].inputs["tokens"])


def test_a_ranker_learns_from_some_negatives(tree: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ranker\.mine\.negatives: 0: the stage learns from mined negatives"):
        steps(tree, tmp_path, "ranker.mine={negatives: 0}", "ranker.hardest=null")
    steps(tree, tmp_path, "ranker.mine={negatives: 0, random: 3}", "ranker.hardest=null")
