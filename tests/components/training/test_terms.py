"""What a loss may be: a function of the scores, with options behind a `*`, that returns one value a query."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.components.config import UserError, parse
from sparring.components.needs import CANDIDATES, Needs
from sparring.components.scores import Block, Scores
from sparring.components.training.terms import LossTerm, declared, evaluate, losses_for
from tests.support.errors import refused

LOSSES = """
from sparring.components.needs import needs

def mean(scores):
    return scores.student.mean()

def number(scores):
    return 1.0

def two(scores, other, *, temperature=1.0):
    return scores.student.sum(1)

def positional(scores, temperature=1.0):
    return scores.student.sum(1)

def bare(scores, *, temperature):
    return scores.student.sum(1)

def nothing():
    return 0

def detached(scores):
    return scores.student.sum(1).detach()

def columns(scores):
    return scores.student.sum(0)

def wrong(scores):
    return scores.student @ scores.student

@needs(teacher=True)
def reads_teacher(scores):
    return (scores.student * scores.teacher).sum(1)

@needs(teacher=False)
def may_do_without(scores):
    return scores.student.sum(1) if scores.teacher is None else scores.teacher.sum(1)

@needs(blocks=True, teacher=True)
def reads_both(scores):
    return scores.others["document-mined"].scores.sum(1) + reads_teacher(scores)

def undeclared(scores):
    return scores.student.sum(1) - scores.teacher.sum(1)

def by_another(scores):
    return reads_teacher(scores)

def undeclared_block(scores):
    return scores.others["query-query"].scores.sum(1)

@needs(teacher=bool(1))
def computed(scores):
    return scores.taught("computed").sum(1)

@needs(blocks=("back",))
def by_no_option(scores):
    return scores.student.sum(1)
"""

MISSPELT = """
from sparring.components.needs import needs

@needs(taecher=True)
def loss(scores):
    return scores.student.sum(1)
"""


@pytest.fixture(scope="module", autouse=True)
def own_losses(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A module of a user's own."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_losses.py").write_text(LOSSES)
    (folder / "own_misspelt.py").write_text(MISSPELT)
    sys.path.append(str(folder))


@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("own_losses.two", "wrong-signature"),
        ("own_losses.positional", "wrong-signature"),
        ("own_losses.bare", "wrong-signature"),
        ("own_losses.nothing", "wrong-signature"),
        ("own_loses.two", "unknown-module"),
        ("two", "unknown-function"),
    ],
)
def test_a_wrong_signature_is_found_before_anything_runs(function: str, code: str) -> None:
    with refused("function", code):
        parse(LossTerm, {"function": function}, where="own.yaml")


def test_a_loss_whose_values_do_not_depend_on_the_scores_is_named() -> None:
    values: Tensor = torch.ones(2, 3, requires_grad=True)
    scores = Scores(values, target=torch.ones(2, 3), where=torch.ones(2, 3).bool())
    term = parse(LossTerm, {"function": "own_losses.detached"}, where="own.yaml")
    with pytest.raises(UserError, match=r"own_losses\.detached returned values without a gradient, from which nothing"):
        evaluate([term], lambda _: scores)
    with torch.no_grad():  # as where it is measured on dev
        scores = Scores(values * 2, target=scores.target, where=scores.where)
        assert evaluate([term], lambda _: scores)["detached (group)"].rows == 2


def test_a_loss_that_fails_is_named_with_its_line() -> None:
    values: Tensor = torch.ones(2, 3)
    scores = Scores(values, target=values, where=values.bool())
    term = parse(LossTerm, {"function": "own_losses.wrong"}, where="own.yaml")
    line = next(number for number, text in enumerate(LOSSES.split("\n"), 1) if "student @" in text)
    with pytest.raises(
        RuntimeError, match=rf"^own_losses\.wrong failed at .*own_losses\.py:{line}: RuntimeError: mat1"
    ):
        evaluate([term], lambda _: scores)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", r"a tensor of shape \(\)"),
        ("number", "float"),
        ("columns", r"a tensor of shape \(3,\)"),
    ],
)
def test_a_loss_that_returns_something_else_is_named(name: str, value: str) -> None:
    values: Tensor = torch.ones(2, 3)
    scores = Scores(values, target=values, where=values.bool())
    wanted = rf"own_losses\.{name} returned {value}\. Return a value per query: a tensor of shape \(Q,\), here \(2,\)"
    with pytest.raises(UserError, match=wanted):
        evaluate([LossTerm(function=f"own_losses.{name}")], lambda term: scores)


def test_a_declaration_is_the_modules_or_its_classs_and_no_local_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_things").mkdir()
    (tmp_path / "own_things" / "__init__.py").touch()
    (tmp_path / "own_things" / "objective.py").write_text(
        "views = ('group',)\nreads = float('2')\n\n\nclass Own:\n    predicts = 0.2\n\n"
        "    def collate(self):\n        reads = writes = self.template\n        views = reads.both\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    declarations = {name: declared("own_things.objective", name) for name in ("views", "reads", "predicts", "absent")}
    assert declarations == {"views": ("group",), "reads": None, "predicts": 0.2, "absent": None}
    assert declared("generator", "views") == ("group",)
    assert declared("generator", "reads") is None


@pytest.mark.parametrize(
    ("loss", "needs", "options", "blocks"),
    [
        ("components.losses.listwise.cross_entropy", Needs(), {}, False),
        ("components.losses.listwise.kl", Needs(teacher=True), {}, False),
        ("components.losses.likelihood.negative_log_likelihood", Needs(of="tokens"), {}, False),
        ("components.losses.in_batch.both_directions", Needs(blocks=True), {}, True),
        ("components.losses.in_batch.hardness_weighted", Needs(blocks=("both_directions",)), {}, False),
        (
            "components.losses.in_batch.hardness_weighted",
            Needs(blocks=("both_directions",)),
            {"both_directions": True},
            True,
        ),
        ("own_losses.reads_both", Needs(teacher=True, blocks=True), {}, True),
        ("own_losses.may_do_without", Needs(), {}, False),
    ],
)
def test_a_loss_declares_what_it_needs(loss: str, needs: Needs, options: dict[str, Any], blocks: bool) -> None:
    term = LossTerm(function=loss, options=options)
    assert (term.needs, term.needs_blocks) == (needs, blocks)


@pytest.mark.parametrize("loss", ["undeclared", "by_another", "undeclared_block"])
def test_a_need_that_is_not_declared_is_refused(loss: str) -> None:
    with refused("own.yaml", "undeclared-need"):
        parse(LossTerm, {"function": f"own_losses.{loss}"}, where="own.yaml")


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("own_misspelt.loss", r"@needs\(taecher=\.\.\.\)` is not an argument of `needs`. Use teacher, blocks, of"),
        ("own_losses.computed", r"own_losses\.computed: the arguments of @needs\(\.\.\.\) must be literals"),
        ("own_losses.by_no_option", r"@needs\(blocks=\('back',\)\)` names options that the loss does not have"),
    ],
)
def test_a_wrong_declaration_is_refused(loss: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse(LossTerm, {"function": loss}, where="own.yaml")


@pytest.mark.parametrize("loss", [path for kind in (CANDIDATES, "tokens", "query ranks") for path in losses_for(kind)])
def test_our_losses_fail_without_what_they_declare_and_work_with_it(loss: str) -> None:
    """On scores of two queries: the declarations are true."""
    term = LossTerm(function=loss)
    student, where = torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)
    target = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    blocks = ("query-query", "document-query", "document-document", "document-candidate", "document-mined")
    whole = Scores(student, target, where, student, others=dict.fromkeys(blocks, Block(student, where)))
    term.called(whole)
    for need, without in (
        (term.needs.teacher, replace(whole, teacher=None)),
        (term.needs_blocks, replace(whole, others={})),
    ):
        with pytest.raises(RuntimeError) if need else nullcontext():
            term.called(without)
