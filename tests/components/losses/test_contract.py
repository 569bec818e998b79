"""Every loss keeps the contract. Losses are found by file, so a new one is under it at once."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import components.losses
from components.config import Call, keyword_options
from components.scores import Block, Scores

FOLDER = Path(components.losses.__file__).parent
HEAVY = {"torch", "numpy", "transformers", "sentence_transformers", "tokenizers", "scipy"}


def losses() -> Iterator[Any]:
    """Every public function whose first argument is `scores: Scores`, with its dotted path."""
    for path in sorted(FOLDER.glob("*.py")):
        module = importlib.import_module(f"components.losses.{path.stem}")
        for name, function in vars(module).items():
            mine = inspect.isfunction(function) and function.__module__ == module.__name__
            if mine and not name.startswith("_"):
                first = next(iter(inspect.signature(function).parameters.values()))
                if first.annotation == "Scores":
                    yield pytest.param(function, id=f"{path.stem}.{name}")


ALL = pytest.mark.parametrize("loss", list(losses()))


def some_scores(*, seed: int = 0, queries: int = 5, candidates: int = 6) -> Scores:
    """One positive a row, a third of the pairs masked, a teacher, and the blocks that same-tower losses take."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    where = torch.rand(queries, candidates, generator=draw) < 0.67
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


def test_losses_were_found() -> None:
    found = {case.id for case in losses()}
    assert {"listwise.cross_entropy", "listwise.distillation", "adversarial.expected_reward"} <= found


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
    pulls = student.grad.abs().sum(-1) > 0
    assert (pulls | (values == 0)).all()  # every query pulls at something, but where a hinge has all its margins
    assert pulls.any()


@ALL
def test_each_value_depends_on_its_own_row_alone(loss: Callable[..., Tensor]) -> None:
    """The reduction is per row: what one query scores cannot move the loss of another."""
    scores = some_scores()
    student = scores.student.clone().requires_grad_()
    values = loss(changed(scores, student=student))
    for row in range(len(values)):
        (gradient,) = torch.autograd.grad(values[row], student, retain_graph=True)
        others = torch.cat([gradient[:row], gradient[row + 1 :]])
        assert (others == 0).all()


@ALL
def test_a_masked_pair_is_as_a_removed_one(loss: Callable[..., Tensor]) -> None:
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
def test_what_stands_at_a_masked_pair_does_not_matter(loss: Callable[..., Tensor], value: float) -> None:
    scores = some_scores()
    student = scores.student.masked_fill(~scores.where, value).requires_grad_()
    other = changed(scores, student=student, teacher=scores.teacher.masked_fill(~scores.where, value))
    values = loss(other)
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
def test_a_row_of_which_nothing_counts_gives_nothing(loss: Callable[..., Tensor]) -> None:
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
def test_a_row_without_a_positive_or_without_a_negative_is_harmless(loss: Callable[..., Tensor]) -> None:
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
def test_gradients_are_those_of_finite_differences(loss: Callable[..., Tensor]) -> None:
    if loss.__name__ == "hardness_weighted":
        pytest.skip("no gradient flows through its weights: see its own test")
    scores = some_scores(queries=3, candidates=4)
    names = list(scores.others)

    def values(student: Tensor, *blocks: Tensor) -> Tensor:
        others = {name: Block(block, scores.others[name].where) for name, block in zip(names, blocks, strict=True)}
        return loss(changed(scores, student=student, others=others))

    parts = (scores.student, *(scores.others[name].scores for name in names))
    assert torch.autograd.gradcheck(values, tuple(part.clone().requires_grad_() for part in parts))


@ALL
@pytest.mark.parametrize("value", [1e9, -1e9, float("nan"), float("inf")])
def test_what_stands_at_a_masked_pair_of_a_block_does_not_matter(loss: Callable[..., Tensor], value: float) -> None:
    """Nor does it get a gradient: what is masked is as what is not there."""
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
def test_a_block_is_a_set_and_its_rows_are_the_scores_rows(loss: Callable[..., Tensor]) -> None:
    """The order of its columns does not matter, a masked column is as none, and a row sees its own row alone."""
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
    other = loss(with_blocks(scores, lambda block: Block(block.scores + row, block.where)))
    kept = torch.tensor([0, 1, 2, 4])
    torch.testing.assert_close(other[kept], loss(scores)[kept], rtol=0, atol=0)


@ALL
def test_the_order_of_queries_does_not_matter(loss: Callable[..., Tensor]) -> None:
    scores = some_scores()
    order = torch.tensor([3, 0, 4, 1, 2])
    parts = {name: getattr(scores, name)[order] for name in ("student", "target", "where", "teacher")}
    moved = with_blocks(changed(scores, **parts), lambda block: Block(block.scores[order], block.where[order]))
    torch.testing.assert_close(loss(moved), loss(scores)[order], rtol=0, atol=1e-12)


@ALL
def test_a_frozen_teacher_gets_no_gradient_through_the_students(loss: Callable[..., Tensor]) -> None:
    """What a loss makes of the scores it leaves as they were: nothing is changed in place."""
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
    assert Call(function=path).resolve() is loss


@ALL
def test_a_docstring_says_what_it_is(loss: Callable[..., Tensor]) -> None:
    assert loss.__doc__
    assert importlib.import_module(loss.__module__).__doc__


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_reading_a_loss_imports_nothing_heavy(path: Path) -> None:
    """Plans and checks of configs read these modules; at import they may name torch for type checkers alone."""

    def imports(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""
            elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
                yield from imports(node.body + node.orelse)

    found = set(imports(ast.parse(path.read_text()).body))
    assert not {name.partition(".")[0] for name in found} & HEAVY
    ours = {name for name in found if name.startswith(("components", "workflows"))}
    assert all(name.startswith(("components.losses", "components.scores")) for name in ours)
