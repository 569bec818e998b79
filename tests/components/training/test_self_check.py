"""The check before the first update: it finds what is broken on purpose, and changes nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring.components.compute import chunking, fast_cpu
from sparring.components.objectives.parts import scoring
from sparring.components.objectives.retriever import Retriever
from sparring.components.training import gradients, self_check
from sparring.components.training.objective import Objective
from sparring.components.training.self_check import SelfCheckError
from tests.support import toy
from tests.support.trainings import Interrupted, assert_same, break_gradients, break_pieces

BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}
SAMTONE = {"function": "components.losses.same_tower.samtone", "over": "batch", "options": {"document_side": True}}
DISTILLED = {"function": "components.losses.listwise.distillation", "reduce": "sum"}


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"recompute": True}], ids=str)
def test_what_is_right_passes_and_is_not_disturbed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    """Bitwise the training it would have been: dropout, gradients, moments."""
    losses = [BATCH, SAMTONE, DISTILLED] if kind == "retriever" else [DISTILLED]
    compared = []
    real = self_check.compare

    def noting(*arguments: Any, **named: Any) -> float:
        before = torch.random.get_rng_state()
        compared.append(real(*arguments, **named))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert all(p.grad is None for p in arguments[0].parameters())
        return compared[-1]

    monkeypatch.setattr(self_check, "compare", noting)
    run("a", kind=kind, losses=losses, precision="bf16", **options)
    assert len(compared) == 1
    assert compared[0] < 1e-4
    monkeypatch.setattr(Objective, "self_check", False)
    run("b", kind=kind, losses=losses, precision="bf16", **options)
    assert len(compared) == 1
    assert_same(tmp_path / "a", tmp_path / "b")


def misplaced(forward: Callable[..., Tensor], batch: Any, *, tokens: int, recompute: bool) -> Tensor:
    """Pieces put together in the order they were encoded in."""
    vectors = chunking.in_chunks(forward, batch, tokens=tokens, recompute=recompute)
    if chunking._least == 1:
        return vectors
    return vectors[torch.from_numpy(np.argsort(-batch.mask.sum(-1).numpy(), kind="stable"))]


def detached(forward: Callable[..., Tensor], batch: Any, *, tokens: int, recompute: bool) -> Tensor:
    """The first row's vector without its gradient."""
    vectors = chunking.in_chunks(forward, batch, tokens=tokens, recompute=recompute)
    return vectors if chunking._least == 1 else torch.cat([vectors[:1].detach(), vectors[1:]])


def test_pieces_that_are_misplaced_or_lose_their_gradient_stop_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for broken, says in ((misplaced, r"cross_entropy \(batch\) is .* and should be"), (detached, "the gradient has")):
        monkeypatch.setattr("sparring.components.training.objective.in_chunks", broken)
        with pytest.raises(SelfCheckError, match=f"The check before the first update failed: .*{says}"):
            run("a", losses=[BATCH])


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
@pytest.mark.parametrize("broken", [break_gradients, break_pieces])
def test_what_cuts_a_batch_is_not_compared_with_itself(
    run: Any, monkeypatch: pytest.MonkeyPatch, kind: str, broken: Callable[..., None]
) -> None:
    """It is broken throughout: the plain way does not go through it."""
    broken(monkeypatch)
    with pytest.raises(SelfCheckError, match="the gradient has norm"):
        run("a", kind=kind, losses=[DISTILLED], recompute=True)


def test_a_part_of_a_batch_that_weighs_wrong_stops_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses come out right, and the gradient half as long."""
    real = gradients.sum_over_workers
    monkeypatch.setattr(gradients, "sum_over_workers", lambda values: real(values) * 2)
    with pytest.raises(SelfCheckError, match=r"the gradient has norm .*, and its distance from"):
        run("a", losses=[BATCH], accumulate=2)


def test_attention_that_is_only_almost_attention_stops_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fast_cpu._Attention.backward

    def wrong(ctx: Any, gradient: Tensor) -> Any:
        query, *gradients = real(ctx, gradient)
        return (query * 3, *gradients)

    monkeypatch.setattr(fast_cpu._Attention, "backward", staticmethod(wrong))
    with pytest.raises(SelfCheckError, match="the gradient has norm"):
        run("a", losses=[BATCH])


def test_it_is_made_once_and_not_where_a_run_goes_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = self_check.plain
    monkeypatch.setattr(self_check, "plain", lambda *a, **k: calls.append(1) or real(*a, **k))
    with pytest.raises(Interrupted):
        run("a", updates=4, stop=2)
    run("a", updates=4)
    assert calls == [1]


def test_an_objective_may_say_that_it_draws_numbers_of_its_own(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = scoring.group_scores

    def noisy(queries: Tensor, *arguments: Any) -> Any:
        return real(queries + 0.5 * torch.randn_like(queries), *arguments)

    monkeypatch.setattr("sparring.components.objectives.retriever.group_scores", noisy)
    with pytest.raises(SelfCheckError):
        run("a")
    monkeypatch.setattr(Retriever, "self_check", False)
    run("b")
