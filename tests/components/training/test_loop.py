"""The training loop: what it learns from, how batches and gradients are cut, and what it writes."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.bert.modeling_bert import BertIntermediate

from sparring.components.config import UserError
from sparring.components.objectives.ranker import Ranker
from sparring.components.objectives.retriever import Retriever
from sparring.components.training.loop import Execution
from sparring.components.training.objective import objective_named
from sparring.components.training.terms import TermSum
from tests.support import toy
from tests.support.trainings import assert_close, assert_same, lines, weights


def test_training_lowers_the_loss_and_writes_what_later_steps_read(run: Any, tmp_path: Path) -> None:
    summary = run("a", updates=30, batch=8, log_every=10, warmup=0.0)
    rows = lines(tmp_path / "a")
    assert [line["update"] for line in rows] == [10, 20, 30]
    assert rows[2]["cross_entropy (group)"] < 0.7 * rows[0]["cross_entropy (group)"]
    assert rows[0].keys() == {"update", "cross_entropy (group)", "learning_rate", "gradient_norm"}
    assert summary["updates"] == 30
    assert summary["workers"] == 1
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["metrics.jsonl", "model", "state"]
    assert json.loads((tmp_path / "a/state/state.json").read_text())["schedule_update"] == 30


def test_logged_losses_are_means_over_the_interval(run: Any, tmp_path: Path) -> None:
    """The last interval ends with the training."""
    run("a", log_every=1, updates=5)
    run("b", log_every=2, updates=5)
    name = "cross_entropy (group)"
    every = [line[name] for line in lines(tmp_path / "a")]
    second = lines(tmp_path / "b")
    assert [line["update"] for line in second] == [2, 4, 5]
    assert [line[name] for line in second] == pytest.approx(
        [(every[0] + every[1]) / 2, (every[2] + every[3]) / 2, every[4]], abs=2e-6
    )


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
def test_an_accumulated_batch_is_the_large_batch_for_losses_over_the_group(run: Any, tmp_path: Path, kind: str) -> None:
    run("a", kind=kind, batch=8, updates=3, log_every=1)
    run("b", kind=kind, batch=8, updates=3, log_every=1, accumulate=4)
    assert_close(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_sum_over_the_batch_is_so_many_times_the_mean(run: Any, tmp_path: Path, accumulate: int) -> None:
    """AR2's code sums its adversarial term and takes the mean of its distillation."""
    for place, term in (("a", {"reduce": "sum"}), ("b", {"weight": 8.0})):
        losses = [{"function": toy.CROSS_ENTROPY, **term}]
        run(place, batch=8, updates=3, log_every=1, accumulate=accumulate, losses=losses, clip=None)
    assert_close(tmp_path / "a", tmp_path / "b")


def test_a_loss_may_stand_twice(run: Any, tmp_path: Path) -> None:
    """With other options, and each under a name of its own in the log."""
    losses = [{"function": toy.CROSS_ENTROPY, "options": {"temperature": t}} for t in (1.0, 0.1)]
    run("a", updates=1, log_every=1, losses=losses)
    line = lines(tmp_path / "a")[0]
    assert line["cross_entropy (group)"] != line["cross_entropy (group) 2"]


def test_over_the_batch_an_accumulated_part_shares_its_own_negatives_alone(run: Any, tmp_path: Path) -> None:
    """Fewer negatives, a lower loss: parts of two queries see at most two queries' candidates."""
    losses = [{"function": toy.CROSS_ENTROPY, "over": "batch"}]
    for place, accumulate in (("a", 1), ("b", 4)):
        run(place, batch=8, updates=1, log_every=1, accumulate=accumulate, losses=losses)
    whole, parts = (lines(tmp_path / place)[0]["cross_entropy (batch)"] for place in ("a", "b"))
    assert parts < whole - 0.5


def test_pieces_with_and_without_recomputing_train_alike(run: Any, tmp_path: Path) -> None:
    run("a", updates=3, recompute=False)
    run("b", updates=3, recompute=True)
    assert_close(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
@pytest.mark.parametrize("recompute", [False, True])
def test_layers_that_run_again_train_alike(
    run: Any, tmp_path: Path, encoder: Path, kind: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, with dropout, whether whole passes run again or not; the layers do keep less."""
    config = toy.retriever_config if kind == "retriever" else toy.ranker_config
    model = toy.started(tmp_path / "wild", config(encoder, dropout=0.3))
    passes = Counter[bool]()
    real = BertIntermediate.forward

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        passes[torch.is_grad_enabled()] += 1
        return real(self, *args, **options)

    monkeypatch.setattr(BertIntermediate, "forward", counted)
    counts = []
    for place, again in (("a", False), ("b", True)):
        passes.clear()
        run(
            place,
            kind=kind,
            model=model,
            updates=3,
            recompute=recompute,
            execution=Execution(gradient_checkpointing=again),
        )
        counts.append(passes.total())
    assert counts[1] > counts[0]
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_knows_temperature_dropout_parts_and_precision(
    run: Any, tmp_path: Path, encoder: Path, precision: str
) -> None:
    """What gradient caching of others forgot: a temperature, the second pass' dropout, the last and shorter piece."""
    model = toy.started(tmp_path / "wild", toy.retriever_config(encoder, dropout=0.3, similarity="cosine"))
    term = {"function": toy.CROSS_ENTROPY, "over": "batch"}
    options = {
        "updates": 2,
        "batch": 8,
        "accumulate": 2,
        "log_every": 1,
        "precision": precision,
        "model": model,
        "piece": 30,
    }
    losses = [{**term, "options": {"temperature": 0.05}}]
    run("a", recompute=False, losses=losses, **options)
    run("b", recompute=True, losses=losses, **options)
    assert_close(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").mkdir()
    run("c", recompute=True, losses=[term], **options)
    first, second = (lines(tmp_path / place)[0]["cross_entropy (batch)"] for place in ("b", "c"))
    assert abs(first - second) > 0.1


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
def test_losses_are_computed_in_fp32_whatever_the_models_precision(
    run: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = objective_named(kind)
    real, seen = objective.terms, []

    def spied(self: Any, representations: Any, batch: Any) -> Any:
        parts = representations if isinstance(representations, tuple) else (representations,)
        seen.extend((part.dtype, torch.is_autocast_enabled("cpu")) for part in parts if part.dtype != torch.bool)
        return real(self, representations, batch)

    monkeypatch.setattr(objective, "terms", spied)
    run("a", kind=kind, updates=1, precision="bf16")
    assert set(seen) == {(torch.float32, False)}


@pytest.mark.usefixtures("bf16")
def test_bf16_is_near_fp32_and_keeps_weights_in_fp32(run: Any, tmp_path: Path) -> None:
    for place, precision in (("a", "fp32"), ("b", "bf16")):
        run(place, updates=2, precision=precision, log_every=1)
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert {value.dtype for value in b.values()} == {torch.float32}
    first, second = (lines(tmp_path / place)[0]["cross_entropy (group)"] for place in ("a", "b"))
    assert first == pytest.approx(second, rel=0.03)
    assert first != second
    assert a.keys() == b.keys()


def test_the_gradient_is_cut_to_the_norm_that_is_asked_for(run: Any, tmp_path: Path) -> None:
    """Seen by the optimizer; the norm in the metrics is that before the cut."""
    run("a", updates=1, log_every=1, clip=None)
    norm = lines(tmp_path / "a")[0]["gradient_norm"]
    run("b", updates=1, log_every=1, clip=norm / 10)
    assert lines(tmp_path / "b")[0]["gradient_norm"] == norm
    a, b = (load_file(tmp_path / place / "state/optimizer.safetensors") for place in ("a", "b"))
    moments = [(a[name], b[name]) for name in a if name.endswith("exp_avg")]
    assert math.sqrt(sum(float(m.square().sum()) for m, _ in moments)) == pytest.approx(0.1 * norm, rel=1e-3)
    for whole, cut in moments:  # the first moment is a tenth of the first gradient
        torch.testing.assert_close(cut, whole / 10, rtol=1e-3, atol=1e-8)


def test_weights_decay_but_biases_and_norms_do_not(run: Any, tmp_path: Path, retriever: Path) -> None:
    """With learning rate 1 and a gradient that is cut to almost nothing, decay is all that is left."""
    run("a", updates=1, warmup=0.0, learning_rate=1e-3, weight_decay=100.0, clip=1e-12)
    before, after = weights(retriever), weights(tmp_path / "a")
    for name, value in before.items():
        factor = 1 - 1e-3 * 100.0 if value.ndim >= 2 else 1.0
        torch.testing.assert_close(after[name], factor * value, rtol=1e-3, atol=2e-3, msg=name)


def test_a_gradient_that_is_no_number_stops_with_the_step_and_keeps_the_checkpoint(run: Any, tmp_path: Path) -> None:
    real = Retriever.terms

    def poisoned(self: Retriever, representations: Any, batch: Any) -> Any:
        terms = real(self, representations, batch)
        poisoned.calls += 1  # type: ignore[attr-defined]
        first = 2  # calls are the check before the first update
        factor = math.nan if poisoned.calls == first + 3 else 1.0  # type: ignore[attr-defined]
        return {name: term._replace(value=term.value * factor) for name, term in terms.items()}

    poisoned.calls = 0  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retriever, "terms", poisoned)
        with pytest.raises(
            FloatingPointError, match=r"update 3: cross_entropy \(group\) is nan. Lower the learning rate or use fp32"
        ):
            run("a", updates=5)
    newest = sorted((tmp_path / "a/checkpoints").iterdir())[-1]
    assert all(value.isfinite().all() for value in load_file(newest / "weights.safetensors").values())


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (lambda value: value * math.nan, r"cross_entropy \(group\) is nan. Look for a division by 0 in a loss"),
        (lambda value: value + (value * 0).sqrt(), r"the gradient is nan\. Look for .* in a loss \(cross_entropy"),
    ],
)
def test_a_loss_that_is_no_number_from_the_start_is_named_before_the_first_update(
    run: Any, monkeypatch: pytest.MonkeyPatch, factor: Any, says: str
) -> None:
    real = Retriever.terms

    def poisoned(self: Retriever, representations: Any, batch: Any) -> Any:
        terms = real(self, representations, batch)
        return {name: term._replace(value=factor(term.value)) for name, term in terms.items()}

    monkeypatch.setattr(Retriever, "terms", poisoned)
    with pytest.raises(FloatingPointError, match=rf"Before the first update, on 4 rows in fp32, {says}"):
        run("a", updates=5)


def test_a_loss_from_which_no_gradient_reaches_the_model_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a tensor of its own: it has a gradient, and the model has none."""

    def apart(self: Retriever, representations: Any, batch: Any) -> Any:
        return {"own": TermSum(torch.zeros((), requires_grad=True), 4)}

    monkeypatch.setattr(Retriever, "terms", apart)
    with pytest.raises(UserError, match="no gradient reaches the model from own, so nothing would be learned"):
        run("a", updates=5)


def test_objectives_are_found_by_name() -> None:
    assert objective_named("retriever") is Retriever
    assert objective_named("ranker") is Ranker
