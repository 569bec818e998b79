"""What the graph alone tells of a training, so that nobody waits for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.store.dag import graph
from tests.support import tiny

BEIR, ENCODER = Path("data/toy"), Path("models/toy")
TEACHER = "[{function: components.losses.listwise.distillation%s}]"
ADAFACTOR = "train.optimizer=adafactor"


def read(tmp_path: Path, tree: dict[str, Any], *assignments: str) -> Experiment:
    return loading.read(tiny.write(tmp_path / "tiny.yaml", tree), list(assignments), Path("runs"))


def two_stages(**second: Any) -> dict[str, Any]:
    tree = tiny.dpr(BEIR, ENCODER)
    tree["train"] |= {"updates": 4, "schedule_updates": 6}
    return {**tree, "second_stage": {**tree["train"], "updates": 2, "carry": "all", **second}}


def coder(**options: Any) -> dict[str, Any]:
    return {**tiny.coder(BEIR, ENCODER), **options}


@pytest.mark.parametrize(
    ("tree", "changes", "says"),
    [
        (
            tiny.ar2(BEIR, ENCODER),
            ["retriever.warm.train.carry=all"],
            "warm retriever: carry: all: 'start retriever' keeps no optimizer; accepted: weights, or a start from",
        ),
        (
            tiny.ar2(BEIR, ENCODER),
            ["ranker.warm.train.carry=all"],
            "warm ranker: carry: all: 'start ranker' keeps no optimizer",
        ),
        (
            two_stages(schedule_updates=None),
            [],
            "retriever, second stage: schedule_updates: 2 is less than the 6 updates of this training and those",
        ),
        (two_stages(schedule_updates=5), [], "schedule_updates: 5 is less than the 6 updates"),
        (
            two_stages(),
            [ADAFACTOR],
            "carry: all: the optimizer of 'retriever' is of adafactor for the objective retriever, and this training's "
            "of adamw for the objective retriever; accepted: weights, or the same for both",
        ),
        (two_stages(), ["train.schedule_updates=null"], "carry: all: 'retriever' keeps no optimizer"),
        (coder(), [f"train.losses={TEACHER % ''}"], "CODER 1: losses: components.losses.listwise.distillation reads a"),
        (
            tiny.ar2(BEIR, ENCODER),
            [f"retriever.game.train.losses={TEACHER % ', over: batch'}"],
            "retriever 1: losses: components.losses.listwise.distillation reads a teacher's scores, and `over: batch` "
            "of the objective retriever has none. Use `over: group`: a teacher has scored each query's own candidates.",
        ),
        (
            tiny.dpr(BEIR, ENCODER),
            ["train.validate_on_dev={every: 1, split: train}"],
            "validate_on_dev: split: 'train' is what is learnt from; accepted: another, such as",
        ),
        (
            tiny.ar2(BEIR, ENCODER),
            ["evaluate.measures=[R@20, RR@10]", "gate={level: 1.0}"],
            "gate: it is decided by R@20, the first of evaluate.measures, and that is the same in every order of the "
            "10 documents that are reranked; accepted: one such as RR@10 or nDCG@10 first",
        ),
        (
            tiny.ar2(BEIR, ENCODER),
            ["ranker.warm.screen={vote: {above: 0.5}}"],
            "warm ranker groups: screen.vote: there is no ranker yet that could be asked",
        ),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_runs(
    tmp_path: Path, tree: dict[str, Any], changes: list[str], says: str
) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        read(tmp_path, tree, *changes)


OWN_LOSS = """
from sparring.components.needs import needs

@needs(teacher=True)
def taught(scores):
    return (scores.student - scores.teacher).sum(1)

def undeclared(scores):
    return (scores.student - scores.teacher).sum(1)

@needs(blocks=True)
def of_queries(scores):
    return scores.others["query-query"].scores.sum(1)
"""
NO_TEACHER = (
    "reads a teacher's scores, and these groups have none. Use a loss over targets, a recipe whose ranker scores the "
    "groups (ar2, simlm), a contender (`teacher` in ar2, dpr and simlm), or, if the collection's source has scores, "
    "`given: scores`"
)


def own(name: str, over: str = "group") -> str:
    return f"[{{function: own_learning_losses.{name}, over: {over}}}]"


@pytest.fixture
def own_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of a user's own, as the guide on extending has it."""
    (tmp_path / "own_learning_losses.py").write_text(OWN_LOSS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_losses")
@pytest.mark.parametrize(
    ("tree", "change", "says"),
    [
        (
            tiny.dpr(BEIR, ENCODER),
            f"train.losses={own('taught')}",
            f"retriever: losses: own_learning_losses.taught {NO_TEACHER}.",
        ),
        (
            tiny.dpr(BEIR, ENCODER),
            f"train.losses={own('taught', 'batch')}",
            f"retriever: losses: own_learning_losses.taught {NO_TEACHER}.",
        ),
        (coder(), f"train.losses={own('taught')}", f"CODER 1: losses: own_learning_losses.taught {NO_TEACHER}."),
        (
            tiny.ar2(BEIR, ENCODER),
            f"ranker.warm.train.losses={own('taught')}",
            f"warm ranker: losses: own_learning_losses.taught {NO_TEACHER}, or `over: passes`, whose teacher is the "
            "second pass.",
        ),
        (
            tiny.dpr(BEIR, ENCODER),
            f"train.losses={own('of_queries')}",
            "retriever: losses: own_learning_losses.of_queries reads scores among queries or among documents, and "
            "`over: group` of the objective retriever has none. Use `over: batch`.",
        ),
        (
            tiny.ar2(BEIR, ENCODER),
            f"ranker.game.train.losses={own('of_queries')}",
            "ranker 1: losses: own_learning_losses.of_queries reads scores among queries or among documents, and "
            "`over: group` of the objective ranker has none. Use another loss.",
        ),
    ],
)
def test_a_loss_whose_scores_no_step_makes_is_refused_with_the_plan(
    tmp_path: Path, tree: dict[str, Any], change: str, says: str
) -> None:
    """Such a plan once looked right, and its training failed after all that came before it."""
    with pytest.raises(UserError, match=re.escape(says) + "$"):
        read(tmp_path, tree, change)


@pytest.mark.usefixtures("own_losses")
@pytest.mark.parametrize("tree", [tiny.dpr(BEIR, ENCODER), tiny.ar2(BEIR, ENCODER)], ids=["dpr", "ar2"])
def test_a_loss_must_declare_a_teacher_that_it_reads(tmp_path: Path, tree: dict[str, Any]) -> None:
    """In every recipe: the same loss is not right in one and wrong in another."""
    place = "train" if tree["recipe"] == "dpr" else "retriever.game.train"
    with pytest.raises(
        UserError, match=r"undeclared reads `scores\.teacher` but does not declare it\. Write `@needs\("
    ):
        read(tmp_path, tree, f"{place}.losses={own('undeclared')}")


@pytest.mark.usefixtures("own_losses")
@pytest.mark.parametrize(
    ("tree", "change"),
    [
        (tiny.ar2(BEIR, ENCODER), f"retriever.game.train.losses={own('taught')}"),
        (tiny.ar2(BEIR, ENCODER), f"ranker.warm.train.losses={own('taught', 'passes')}"),
        (tiny.dpr(BEIR, ENCODER), f"train.losses={own('of_queries', 'batch')}"),
    ],
)
def test_a_loss_whose_scores_are_made_is_accepted(tmp_path: Path, tree: dict[str, Any], change: str) -> None:
    read(tmp_path, tree, change)


def test_what_goes_on_with_an_optimizer_is_accepted(tmp_path: Path) -> None:
    read(tmp_path, two_stages())
    read(tmp_path, two_stages(schedule="constant", schedule_updates=None))  # which never falls
    read(tmp_path, two_stages(), ADAFACTOR, "second_stage.optimizer=adafactor")


def test_rounds_of_coder_carry_all_as_rounds_of_ar2_do(tmp_path: Path) -> None:
    output = read(tmp_path, coder(rounds=3, documents="learned"), "train.carry=all", "pictures=null")
    trained = {
        node.label: node.inputs["config"]
        for node in graph(output.wanted)
        if node.label.startswith("CODER ") and node.function.__name__ == "train"
    }
    assert [trained[f"CODER {i}"].carry for i in (1, 2, 3)] == ["weights", "all", "all"]
    assert {value.schedule_updates for value in trained.values()} == {3 * trained["CODER 1"].updates}


def test_who_measures_the_queries_that_chose_the_weights_is_told(tmp_path: Path) -> None:
    tree = {**tiny.dpr(BEIR, ENCODER), "evaluate": {"split": "dev", "select": None}}
    assert "chose among the weights" not in read(tmp_path, tree).outcome.note
    note = read(tmp_path, tree, "train.validate_on_dev={every: 1}").outcome.note
    assert note.endswith("The measured queries, of `dev`, chose among the weights of trainings too.")


def test_rated_pairs_are_neither_measured_queries_nor_learnt_from(tmp_path: Path) -> None:
    """They choose the weights of a pre-training, whatever their split is called."""
    tree = {**tiny.dpr(BEIR, ENCODER), "evaluate": {"split": "dev", "select": None}}
    for split in ("train", "dev"):
        look = {"every": 1, "measure": "Spearman", "split": split}
        pretrain = {
            "objective": "simcse",
            "rated": {"format": "tsv", "path": "{split}.tsv", "splits": [split]},
            "train": {**tiny.training(over="batch"), "validate_on_dev": look},
        }
        tree["retriever"] = {**tree["retriever"], "dropout": 0.1}
        assert "chose among the weights" not in read(tmp_path, {**tree, "pretrain": pretrain}).outcome.note
