"""The contract of every loss. Losses are found by file, so a new one is tested at once; `SPARRING_TEST_LOSSES` names
others instead, by dotted path."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sparring.components.losses
from sparring.components.functions import FunctionRef, keyword_options
from sparring.components.scores import Block, Scores

FOLDER = Path(sparring.components.losses.__file__).parent


def public() -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Every public function of the folder, but for those that losses are written with."""
    for path in sorted(FOLDER.glob("*.py")):
        module = importlib.import_module(f"sparring.components.losses.{path.stem}")
        for name, function in vars(module).items():
            mine = inspect.isfunction(function) and function.__module__ == module.__name__
            if mine and not name.startswith("_") and path.stem != "masking":
                yield f"{path.stem}.{name}", function


def losses() -> Iterator[Any]:
    """Every loss that is to be tested, with its dotted path."""
    named = os.environ.get("SPARRING_TEST_LOSSES", "").split()
    result = ((name, FunctionRef(function=name).resolve()) for name in named) if named else public()
    return (pytest.param(function, id=name) for name, function in result)


ALL = pytest.mark.parametrize("loss", list(losses()))


def some_scores(*, seed: int = 0, queries: int = 5, candidates: int = 6) -> Scores:
    """One positive a row, a third of the pairs masked, a teacher, and the blocks that same-tower losses take."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    where = torch.rand(queries, candidates, generator=rng) < 0.67
    where[:, :2] = True
    target = torch.zeros(queries, candidates, dtype=torch.float64)
    target[:, 0] = 1
    blocks = {
        name: Block(normal(queries, queries), ~torch.eye(queries, dtype=torch.bool))
        for name in ("query-query", "document-query", "document-document")
    }
    for name in ("document-candidate", "document-mined"):
        blocks[name] = Block(normal(queries, candidates), where & (target <= 0))
    return Scores(normal(queries, candidates), target, where, teacher=normal(queries, candidates), others=blocks)


def changed(scores: Scores, **parts: Any) -> Scores:
    """The same scores with other parts."""
    return Scores(**{**vars(scores), **parts})


def with_blocks(scores: Scores, change: Callable[[Block], Block]) -> Scores:
    """The same scores with changed blocks."""
    return changed(scores, others={name: change(block) for name, block in scores.others.items()})


def test_every_public_function_is_a_loss() -> None:
    """Its first argument is the scores, and losses that configs name are among them."""
    first = {name: next(iter(inspect.signature(function).parameters.items())) for name, function in public()}
    assert {name: (item.name, item.annotation) for name, (_, item) in first.items()} == dict.fromkeys(
        first, ("scores", "Scores")
    )
    assert {"listwise.cross_entropy", "listwise.distillation", "adversarial.expected_reward"} <= first.keys()


@ALL
def test_one_finite_value_a_query_with_gradient(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    student = scores.student.clone().requires_grad_()
    values = loss(changed(scores, student=student))
    assert values.shape == (5,)
    assert values.isfinite().all()
    values.sum().backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    moves = student.grad.abs().sum(-1) > 0
    assert (moves | (values == 0)).all()  # every query has a gradient, except where a hinge's margins are all met
    assert moves.any()


@ALL
def test_each_value_depends_on_its_own_row_alone(loss: Callable[..., Tensor]) -> None:
    """The reduction is per row: what one query scores cannot move the loss of another."""
    scores = some_scores()
    student = scores.student.clone().requires_grad_()
    values = loss(changed(scores, student=student))
    for row in range(len(values)):
        (gradient,) = torch.autograd.grad(values[row], student, retain_graph=True)
        rest = torch.cat([gradient[:row], gradient[row + 1 :]])
        assert (rest == 0).all()


@ALL
def test_masking_a_pair_equals_removing_it(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    column = torch.ones(5, 1, dtype=torch.float64)
    wider = changed(
        scores,
        student=torch.cat([scores.student, 50 * column], 1),
        target=torch.cat([scores.target, column], 1),
        where=torch.cat([scores.where, torch.zeros(5, 1, dtype=torch.bool)], 1),
        teacher=torch.cat([scores.teacher, 50 * column], 1),
    )
    torch.testing.assert_close(loss(wider), loss(scores), rtol=0, atol=1e-12)


@ALL
@pytest.mark.parametrize("value", [1e9, -1e9, float("nan"), float("inf")])
def test_the_score_of_a_masked_pair_does_not_matter(loss: Callable[..., Tensor], value: float) -> None:
    scores = some_scores()
    student = scores.student.masked_fill(~scores.where, value).requires_grad_()
    second = changed(scores, student=student, teacher=scores.teacher.masked_fill(~scores.where, value))
    values = loss(second)
    torch.testing.assert_close(values, loss(scores))
    values.sum().backward()
    assert (student.grad[~scores.where] == 0).all()
    assert student.grad.isfinite().all()


@ALL
def test_the_order_of_candidates_does_not_matter(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    parts = {name: getattr(scores, name)[:, order] for name in ("student", "target", "where", "teacher")}
    torch.testing.assert_close(loss(changed(scores, **parts)), loss(scores), rtol=0, atol=1e-12)


@ALL
def test_extreme_scores_give_finite_values_and_gradients(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    for sign in (1, -1):
        for dtype in (torch.float32, torch.bfloat16):
            student = (scores.student * 1e4 * sign).to(dtype).requires_grad_()
            parts = {"target": scores.target.to(dtype), "teacher": (scores.teacher * 1e4).to(dtype)}
            large = with_blocks(scores, lambda block, to=dtype: Block((block.scores * 1e4).to(to), block.where))
            values = loss(changed(large, student=student, **parts))
            assert values.isfinite().all()
            values.sum().backward()
            assert student.grad.isfinite().all()


@ALL
def test_a_fully_masked_row_has_loss_0_and_no_gradient(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    where = scores.where.clone()
    where[2] = False
    student = scores.student.clone().requires_grad_()
    values = loss(changed(scores, student=student, where=where))
    values.sum().backward()
    assert values[2] == 0
    assert (student.grad[2] == 0).all()
    kept = torch.tensor([0, 1, 3, 4])
    torch.testing.assert_close(values[kept], loss(scores)[kept])


@ALL
def test_a_row_without_a_positive_or_a_negative_has_a_small_loss_and_gradient(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    target = scores.target.clone()
    target[1] = 0
    target[2] = 1
    student = scores.student.clone().requires_grad_()
    values = loss(changed(scores, student=student, target=target))
    values.sum().backward()
    assert values.abs().max() < 1e3
    assert student.grad.abs().max() < 1e3


@ALL
def test_gradients_equal_finite_differences(loss: Callable[..., Tensor]) -> None:
    if loss.__name__ == "hardness_weighted":
        pytest.skip("no gradient flows through its weights: see its own test")
    scores = some_scores(queries=3, candidates=4)
    names = list(scores.others)

    def values(student: Tensor, *blocks: Tensor) -> Tensor:
        rest = {name: Block(block, scores.others[name].where) for name, block in zip(names, blocks, strict=True)}
        return loss(changed(scores, student=student, others=rest))

    parts = (scores.student, *(scores.others[name].scores for name in names))
    assert torch.autograd.gradcheck(values, tuple(part.clone().requires_grad_() for part in parts))


@ALL
@pytest.mark.parametrize("value", [1e9, -1e9, float("nan"), float("inf")])
def test_the_score_of_a_masked_pair_in_a_block_does_not_matter(loss: Callable[..., Tensor], value: float) -> None:
    """And it gets no gradient: masking a pair equals leaving it out."""
    scores = some_scores()
    filled = with_blocks(
        scores, lambda block: Block(block.scores.masked_fill(~block.where, value).requires_grad_(), block.where)
    )
    values = loss(changed(filled, student=scores.student.clone().requires_grad_()))
    torch.testing.assert_close(values.detach(), loss(scores), rtol=0, atol=0)
    values.sum().backward()
    for block in filled.others.values():
        if block.scores.grad is not None:
            assert (block.scores.grad[~block.where] == 0).all()
            assert block.scores.grad.isfinite().all()


@ALL
def test_columns_of_a_block_are_a_set_and_rows_are_independent(loss: Callable[..., Tensor]) -> None:
    """The order of columns does not matter, a masked column counts as none, and a row depends on its own row alone."""
    scores = some_scores()
    columns = torch.tensor([2, 0, 3, 1, 4])
    order = with_blocks(scores, lambda block: Block(block.scores[:, columns], block.where[:, columns]))
    short = {
        name: block for name, block in order.others.items() if name not in ("document-candidate", "document-mined")
    }
    again = changed(scores, others={**scores.others, **short})
    torch.testing.assert_close(loss(again), loss(scores), rtol=0, atol=1e-12)

    column = torch.full((5, 1), 50.0, dtype=torch.float64)
    nothing = torch.zeros(5, 1, dtype=torch.bool)
    wider = with_blocks(
        scores, lambda block: Block(torch.cat([block.scores, column], 1), torch.cat([block.where, nothing], 1))
    )
    torch.testing.assert_close(loss(wider), loss(scores), rtol=0, atol=1e-12)

    row = torch.zeros(5, 1, dtype=torch.float64)
    row[3] = 7
    second = loss(with_blocks(scores, lambda block: Block(block.scores + row, block.where)))
    kept = torch.tensor([0, 1, 2, 4])
    torch.testing.assert_close(second[kept], loss(scores)[kept], rtol=0, atol=0)


@ALL
def test_the_order_of_queries_does_not_matter(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    order = torch.tensor([3, 0, 4, 1, 2])
    parts = {name: getattr(scores, name)[order] for name in ("student", "target", "where", "teacher")}
    moved = with_blocks(changed(scores, **parts), lambda block: Block(block.scores[order], block.where[order]))
    torch.testing.assert_close(loss(moved), loss(scores)[order], rtol=0, atol=1e-12)


@ALL
def test_a_loss_changes_no_tensor_in_place(loss: Callable[..., Tensor]) -> None:
    """Scores, targets, masks and the teacher are as they were before the call."""
    scores = some_scores()
    before = {name: getattr(scores, name).clone() for name in ("student", "target", "where", "teacher")}
    loss(scores)
    assert all(torch.equal(getattr(scores, name), value) for name, value in before.items())


@ALL
def test_options_are_keyword_only_and_have_defaults(loss: Callable[..., Tensor]) -> None:
    """So that YAML can name them, and a file that names none still means something."""
    _, *options = inspect.signature(loss).parameters.values()
    assert all(option.kind is option.KEYWORD_ONLY and option.default is not option.empty for option in options)
    path = f"{loss.__module__}.{loss.__name__}"
    assert keyword_options(path) == {option.name: option.default for option in options}
    assert FunctionRef(function=path).resolve() is loss


@ALL
def test_a_docstring_says_what_it_is(loss: Callable[..., Tensor]) -> None:
    assert loss.__doc__
    assert importlib.import_module(loss.__module__).__doc__
