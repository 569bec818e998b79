"""The training loop: its schedule, its batches, resuming anywhere, validation, and what it writes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from components import training
from components.objectives.ranker import Ranker
from components.objectives.retriever import Retriever
from components.training import best_rank, learning_rate, objective_named, rows_of_step, share, train
from tests import toy

CPU = torch.device("cpu")


def groups(count: int, *, negatives: int = 2, teacher: bool = False) -> list[dict[str, Any]]:
    """Groups of the toy queries in turn, with documents that are not relevant as negatives."""
    return [
        {
            "query_id": f"q{i % 24}", "visit": i // 24,
            "doc_ids": [f"d{i % 24}", *(f"d{(i % 24 + 11 + 2 * k + i // 24) % 40}" for k in range(negatives))],
            **({"teacher": [float((i + k) % 5) for k in range(negatives + 1)]} if teacher else {}),
        }
        for i in range(count)
    ]  # fmt: skip


class Interrupted(Exception):
    """Stands for whatever kills a training."""


@pytest.fixture
def run(tmp_path: Path, data: Path, tokens: Path, retriever: Path, ranker: Path) -> Callable[..., dict[str, Any]]:
    """Trains at `tmp_path / place` on toy groups."""
    rows = toy.write_groups(tmp_path / "groups", groups(24, teacher=True)) / "groups.parquet"
    held = toy.write_groups(tmp_path / "dev", groups(6, negatives=5)) / "groups.parquet"

    def trained(
        place: str, *, kind: str = "retriever", stop: int | None = None, start: Path | None = None, dev: bool = False,
        save_seconds: float = -1.0, seed: int = 1, model: Path | None = None, recompute: bool = False,
        **config: Any,
    ) -> dict[str, Any]:  # fmt: skip
        options = toy.train_config(**config)
        begins = {"retriever": retriever, "ranker": ranker}[kind] if start is None else start

        def build(table: Path) -> Any:
            return objective_named(kind)(
                (model or begins) / "model", rows=table, data=data, tokens=tokens, losses=options.losses, piece=200,
                recompute=recompute,
            )  # fmt: skip

        def on_step(step: int, note: str) -> None:
            if step == stop:
                raise Interrupted

        return train(
            build(rows), options, out=tmp_path / place, seed=seed, start=begins, device=CPU,
            dev=build(held) if dev else None, save_seconds=save_seconds, on_step=on_step,
        )  # fmt: skip

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    return trained


def weights(place: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}/{name}": value
        for path in sorted((place / "model").rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }


def lines(place: Path, *, drop: tuple[str, ...] = ("seconds",)) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in drop} for line in found]


def assert_close(one: Path, other: Path) -> None:
    """The same losses, gradient norms, and means of gradients.

    Weights are not compared: where a gradient is 0 but for rounding (the bias of a softmax), Adam takes steps of full
    length in directions that mean nothing.
    """
    for a, b in zip(lines(one), lines(other), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    moments = [load_file(place / "state" / "optimizer.safetensors") for place in (one, other)]
    assert moments[0].keys() == moments[1].keys()
    for name, value in moments[0].items():
        if name.endswith("exp_avg"):
            torch.testing.assert_close(moments[1][name], value, rtol=2e-3, atol=2e-5, msg=name)


def assert_same(one: Path, other: Path) -> None:
    """Bitwise the same model, optimizer, and lines of metrics."""
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    a, b = (load_file(place / "state" / "optimizer.safetensors") for place in (one, other))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert lines(one) == lines(other)


class TestSchedule:
    def config(self, **options: Any) -> Any:
        return toy.train_config(**{"steps": 10, "learning_rate": 1.0, **options})

    def rates(self, config: Any, count: int) -> list[float]:
        return [round(learning_rate(config, step), 6) for step in range(count)]

    def test_the_warm_up_takes_its_share_and_the_rest_falls_evenly(self) -> None:
        assert self.rates(self.config(warmup=0.4), 10) == [
            0.25, 0.5, 0.75, 1.0, 1.0, round(5 / 6, 6), round(4 / 6, 6), 0.5, round(2 / 6, 6), round(1 / 6, 6),
        ]  # fmt: skip

    def test_without_a_warm_up_it_begins_at_the_top(self) -> None:
        assert self.rates(self.config(warmup=0.0), 10) == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]

    def test_constant_stays_after_the_warm_up(self) -> None:
        assert self.rates(self.config(warmup=0.2, schedule="constant"), 5) == [0.5, 1.0, 1.0, 1.0, 1.0]

    @pytest.mark.parametrize("warmup", [0.0, 0.05, 0.13, 0.25, 1.0])
    @pytest.mark.parametrize("steps", [1, 7, 30])
    def test_it_is_never_above_the_learning_rate_and_never_below_nothing(self, warmup: float, steps: int) -> None:
        config = self.config(steps=steps, warmup=warmup)
        rates = self.rates(config, steps)
        assert all(0 < rate <= 1 for rate in rates)
        peak = rates.index(max(rates))
        assert rates[: peak + 1] == sorted(rates[: peak + 1])
        assert rates[peak:] == sorted(rates[peak:], reverse=True)

    def test_several_trainings_share_one_schedule(self) -> None:
        config = self.config(steps=5, schedule_steps=20, warmup=0.5)
        assert self.rates(config, 5) == [0.1, 0.2, 0.3, 0.4, 0.5]
        assert learning_rate(config, 19) == pytest.approx(0.1)
        assert learning_rate(config, 20) == 0
        assert learning_rate(config, 35) == 0


class TestRowsOfAStep:
    def test_each_pass_has_every_row_once_in_an_order_of_its_own(self) -> None:
        config = toy.train_config(batch=4)
        found = [row for step in range(15) for row in rows_of_step(config, 12, seed=3, step=step)]
        passes = [found[i : i + 12] for i in range(0, 60, 12)]
        assert all(sorted(one) == list(range(12)) for one in passes)
        assert len({tuple(one) for one in passes}) == 5

    def test_a_batch_may_span_two_passes(self) -> None:
        config = toy.train_config(batch=5)
        found = [row for step in range(7) for row in rows_of_step(config, 7, seed=3, step=step)]
        assert len(found) == 35
        assert set(Counter(found).values()) == {5}

    def test_a_batch_may_be_larger_than_the_table(self) -> None:
        found = rows_of_step(toy.train_config(batch=10), 4, seed=3, step=0)
        assert sorted(found[:4]) == sorted(found[4:8]) == [0, 1, 2, 3]

    def test_a_step_is_known_without_those_before_it_and_depends_on_the_seed(self) -> None:
        config = toy.train_config(batch=4)
        late = rows_of_step(config, 10, seed=3, step=9)
        [rows_of_step(config, 10, seed=3, step=step) for step in range(9)]
        assert rows_of_step(config, 10, seed=3, step=9) == late
        assert rows_of_step(config, 10, seed=4, step=9) != late

    def test_workers_take_consecutive_shares_of_the_same_rows(self) -> None:
        rows = list(range(12))
        assert [share(rows, 3, part) for part in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert share(rows, 1, 0) == rows
        with pytest.raises(ValueError, match="12 groups cannot be shared among 5"):
            share(rows, 5, 0)


def test_training_lowers_the_loss_and_writes_what_later_steps_read(run: Any, tmp_path: Path) -> None:
    summary = run("a", steps=30, batch=8, log_every=10, warmup=0.0)
    found = lines(tmp_path / "a")
    assert [line["step"] for line in found] == [10, 20, 30]
    assert found[2]["cross_entropy (group)"] < 0.7 * found[0]["cross_entropy (group)"]
    assert found[0].keys() == {"step", "cross_entropy (group)", "learning_rate", "gradient_norm"}
    assert summary["steps"] == 30
    assert summary["workers"] == 1
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["metrics.jsonl", "model", "state"]
    assert json.loads((tmp_path / "a/state/state.json").read_text())["schedule_step"] == 30


def test_logged_losses_are_means_over_the_interval(run: Any, tmp_path: Path) -> None:
    """The last interval ends with the training."""
    run("a", log_every=1, steps=5)
    run("b", log_every=2, steps=5)
    name = "cross_entropy (group)"
    every = [line[name] for line in lines(tmp_path / "a")]
    second = lines(tmp_path / "b")
    assert [line["step"] for line in second] == [2, 4, 5]
    assert [line[name] for line in second] == pytest.approx(
        [(every[0] + every[1]) / 2, (every[2] + every[3]) / 2, every[4]], abs=2e-6
    )


@pytest.mark.parametrize("stop", [0, 1, 4, 5])
def test_interrupted_anywhere_it_ends_as_if_never_interrupted(
    run: Any, tmp_path: Path, stop: int, encoder: Path
) -> None:
    """With dropout, a table that is passed more than once, and an interval of logging that is cut in two."""
    from tests.conftest import started

    model = started(tmp_path / "dropping", toy.retriever_config(encoder, dropout=0.3, towers="separate"))
    losses = [
        {"function": toy.CROSS_ENTROPY, "over": "batch", "weight": 0.5},
        {"function": "components.losses.listwise.distillation"},
    ]
    options = {"steps": 6, "batch": 8, "log_every": 2, "losses": losses, "start": model, "weight_decay": 0.1}
    run("a", **options)
    with pytest.raises(Interrupted):
        run("b", stop=stop, **options)
    assert not (tmp_path / "b" / "state").exists()
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_interrupted_again_and_again(run: Any, tmp_path: Path) -> None:
    """Also between a checkpoint and the next: what was done since is done again, and logged once."""
    options = {"steps": 7, "kind": "ranker", "log_every": 1, "dev": True, "validate_on_dev": {"every": 2}}
    run("a", **options)
    for stop in (2, 3, 6):
        with pytest.raises(Interrupted):
            run("b", stop=stop, **options)
    with pytest.raises(Interrupted):
        run("b", stop=6, save_seconds=1e9, **options)  # from 5 to 6 without a checkpoint
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_a_line_cut_in_half_by_a_kill_is_dropped(run: Any, tmp_path: Path) -> None:
    run("a", steps=5, log_every=1)
    with pytest.raises(Interrupted):
        run("b", steps=5, log_every=1, stop=3)
    with (tmp_path / "b/metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "cross_ent')
    run("b", steps=5, log_every=1)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_a_checkpoint_that_was_not_finished_is_not_taken_up(run: Any, tmp_path: Path) -> None:
    """The kill came while checkpoint 3 was written: it lies beside the others under its temporary name."""
    run("a", steps=5)
    with pytest.raises(Interrupted):
        run("b", steps=5, stop=2)
    checkpoints = tmp_path / "b/checkpoints"
    newest = sorted(checkpoints.iterdir())[-1]
    assert newest.name == "step-000002"
    half = checkpoints / ".step-000003.0a1b2c3d"
    half.mkdir()
    (half / "state.json").write_text('{"step"')
    run("b", steps=5)
    assert_same(tmp_path / "a", tmp_path / "b")
    assert not checkpoints.exists()


def test_only_the_newest_checkpoints_are_kept(run: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run("a", steps=9, stop=6)
    assert [path.name for path in sorted((tmp_path / "a/checkpoints").iterdir())] == ["step-000005", "step-000006"]


def test_what_is_finished_is_not_done_again(run: Any, tmp_path: Path) -> None:
    """Killed after the model was written and before the step's record was: nothing is trained anew."""
    summary = run("a", steps=3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it trained")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_update", never)
        assert run("a", steps=3) == summary
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()} == before


def test_killed_while_it_writes_its_end_it_ends_once_more(run: Any, tmp_path: Path) -> None:
    """A model is there but not the state: the last checkpoint is taken up and the end is written again."""
    run("a", steps=4)
    run("b", steps=4, save_seconds=1e9)
    with pytest.MonkeyPatch.context() as patch:
        real = training.write_json

        def dying(path: Path, value: Any) -> None:
            if path.parent.name == "state":
                raise Interrupted
            real(path, value)

        patch.setattr(training, "write_json", dying)
        (tmp_path / "c").mkdir()
        with pytest.raises(Interrupted):
            run("c", steps=4)
    assert (tmp_path / "c" / "model").exists()
    run("c", steps=4)
    assert_same(tmp_path / "a", tmp_path / "c")
    assert_same(tmp_path / "a", tmp_path / "b")


def test_carrying_all_goes_on_with_moments_and_schedule(run: Any, tmp_path: Path) -> None:
    """Three trainings of two steps on one schedule are one of six, as far as the same rows come."""
    options = {"batch": 24, "schedule_steps": 6, "log_every": 1}  # every step sees every row, in another order
    run("a", steps=6, **options)
    start = None
    for i in range(3):
        (tmp_path / f"part{i}").mkdir()
        run(f"part{i}", steps=2, start=start, carry="all" if i else "weights", **options)
        start = tmp_path / f"part{i}"
    assert json.loads((start / "state/state.json").read_text())["schedule_step"] == 6
    rates = [line["learning_rate"] for i in range(3) for line in lines(tmp_path / f"part{i}")]
    assert rates == [line["learning_rate"] for line in lines(tmp_path / "a")]
    whole, parts = (load_file(place / "state/optimizer.safetensors") for place in (tmp_path / "a", start))
    assert {float(value) for name, value in parts.items() if name.endswith("/step")} == {6.0}
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=1e-6, msg=name)
    a, b = weights(tmp_path / "a"), weights(start)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5, msg=name)


def test_carrying_weights_begins_schedule_and_moments_anew(run: Any, tmp_path: Path) -> None:
    run("a", steps=2)
    run("b", steps=2, start=tmp_path / "a", log_every=1)
    assert {float(v) for k, v in load_file(tmp_path / "b/state/optimizer.safetensors").items() if "step" in k} == {2.0}
    assert json.loads((tmp_path / "b/state/state.json").read_text())["schedule_step"] == 2
    assert lines(tmp_path / "b")[0]["learning_rate"] == learning_rate(toy.train_config(steps=2), 0)


def test_interrupted_while_carrying_all(run: Any, tmp_path: Path) -> None:
    run("a", steps=3, schedule_steps=9)
    options = {"steps": 4, "schedule_steps": 9, "carry": "all", "start": tmp_path / "a", "log_every": 1}
    run("b", **options)
    (tmp_path / "c").mkdir()
    with pytest.raises(Interrupted):
        run("c", stop=2, **options)
    run("c", **options)
    assert_same(tmp_path / "b", tmp_path / "c")


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
def test_an_accumulated_batch_is_the_large_batch_for_losses_over_the_group(run: Any, tmp_path: Path, kind: str) -> None:
    run("a", kind=kind, batch=8, steps=3, log_every=1)
    run("b", kind=kind, batch=8, steps=3, log_every=1, accumulate=4)
    assert_close(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_sum_over_the_batch_is_so_many_times_the_mean(run: Any, tmp_path: Path, accumulate: int) -> None:
    """AR2's code sums its adversarial term and takes the mean of its distillation."""
    for place, term in (("a", {"reduce": "sum"}), ("b", {"weight": 8.0})):
        losses = [{"function": toy.CROSS_ENTROPY, **term}]
        run(place, batch=8, steps=3, log_every=1, accumulate=accumulate, losses=losses, clip=None)
    assert_close(tmp_path / "a", tmp_path / "b")


def test_a_loss_may_stand_twice(run: Any, tmp_path: Path) -> None:
    """With other options, and each under a name of its own in the log."""
    losses = [{"function": toy.CROSS_ENTROPY, "options": {"temperature": t}} for t in (1.0, 0.1)]
    run("a", steps=1, log_every=1, losses=losses)
    line = lines(tmp_path / "a")[0]
    assert line["cross_entropy (group)"] != line["cross_entropy (group) 2"]


def test_over_the_batch_an_accumulated_part_shares_its_own_negatives_alone(run: Any, tmp_path: Path) -> None:
    """Fewer negatives, a lower loss: parts of two queries see at most two queries' candidates."""
    losses = [{"function": toy.CROSS_ENTROPY, "over": "batch"}]
    for place, accumulate in (("a", 1), ("b", 4)):
        run(place, batch=8, steps=1, log_every=1, accumulate=accumulate, losses=losses)
    whole, parts = (lines(tmp_path / place)[0]["cross_entropy (batch)"] for place in ("a", "b"))
    assert parts < whole - 0.5


def test_pieces_with_and_without_recomputing_train_alike(run: Any, tmp_path: Path) -> None:
    run("a", steps=3, recompute=False)
    run("b", steps=3, recompute=True)
    assert_close(tmp_path / "a", tmp_path / "b")


def test_bf16_is_near_fp32_and_keeps_weights_in_fp32(run: Any, tmp_path: Path) -> None:
    for place, precision in (("a", "fp32"), ("b", "bf16")):
        run(place, steps=2, precision=precision, log_every=1)
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert {value.dtype for value in b.values()} == {torch.float32}
    one, other = (lines(tmp_path / place)[0]["cross_entropy (group)"] for place in ("a", "b"))
    assert one == pytest.approx(other, rel=0.03)
    assert one != other
    assert a.keys() == b.keys()


def test_the_gradient_is_cut_to_the_norm_that_is_asked_for(run: Any, tmp_path: Path) -> None:
    """Seen by the optimizer; the norm in the metrics is that before the cut."""
    run("a", steps=1, log_every=1, clip=None)
    norm = lines(tmp_path / "a")[0]["gradient_norm"]
    run("b", steps=1, log_every=1, clip=norm / 10)
    assert lines(tmp_path / "b")[0]["gradient_norm"] == norm
    a, b = (load_file(tmp_path / place / "state/optimizer.safetensors") for place in ("a", "b"))
    moments = [(a[name], b[name]) for name in a if name.endswith("exp_avg")]
    assert math.sqrt(sum(float(m.square().sum()) for m, _ in moments)) == pytest.approx(0.1 * norm, rel=1e-3)
    for whole, cut in moments:  # the first moment is a tenth of the first gradient
        torch.testing.assert_close(cut, whole / 10, rtol=1e-3, atol=1e-8)


def test_weights_decay_but_biases_and_norms_do_not(run: Any, tmp_path: Path, retriever: Path) -> None:
    """With learning rate 1 and a gradient that is cut to almost nothing, decay is all that is left."""
    run("a", steps=1, warmup=0.0, learning_rate=1e-3, weight_decay=100.0, clip=1e-12)
    before, after = weights(retriever), weights(tmp_path / "a")
    for name, value in before.items():
        factor = 1 - 1e-3 * 100.0 if value.ndim >= 2 else 1.0
        torch.testing.assert_close(after[name], factor * value, rtol=1e-3, atol=2e-3, msg=name)


def test_validation_keeps_the_best_and_stops_when_it_waited_long_enough(run: Any, tmp_path: Path) -> None:
    """The measure is made to rise until step 4 and to fall then."""
    values = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    real = training._validate

    def scripted(objective: Any, dev: Any, config: Any, state: dict[str, Any], out: Path, device: Any) -> None:
        value = next(values)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(training, "total", lambda tensor: torch.tensor([value, 1.0]))
            real(objective, dev, config, state, out, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_validate", scripted)
        summary = run("a", steps=20, schedule_steps=20, dev=True, validate_on_dev={"every": 2, "patience": 2})
    assert summary["steps"] == 8
    assert summary["best"] == {"value": pytest.approx(0.5), "step": 4}
    run("b", steps=4, schedule_steps=20)
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [line["dev RR"] for line in lines(tmp_path / "a") if "dev RR" in line] == pytest.approx([0.1, 0.5, 0.4, 0.3])


def test_validation_measures_each_querys_own_candidates(run: Any, tmp_path: Path) -> None:
    run("a", steps=2, dev=True, validate_on_dev={"every": 1, "measure": "accuracy"}, learning_rate=1e-12)
    run("b", steps=2, dev=True, validate_on_dev={"every": 2}, learning_rate=1e-12)
    accuracy = [line["dev accuracy"] for line in lines(tmp_path / "a") if "dev accuracy" in line]
    assert len(accuracy) == 2
    assert accuracy[0] == accuracy[1]
    assert accuracy[0] * 6 == pytest.approx(round(accuracy[0] * 6))  # six queries, each right or wrong
    (ranks,) = (line["dev RR"] for line in lines(tmp_path / "b") if "dev RR" in line)
    assert accuracy[0] <= ranks <= 1


def test_validating_does_not_change_the_training(run: Any, tmp_path: Path) -> None:
    run("a", steps=4)
    run("b", steps=4, dev=True, validate_on_dev={"every": 1, "measure": "accuracy"})
    a, b = (load_file(tmp_path / place / "state/optimizer.safetensors") for place in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("scores", "targets", "rank"),
    [
        ([3.0, 2.0, 1.0], [1.0, 0.0, 0.0], 1),
        ([1.0, 2.0, 3.0], [1.0, 0.0, 0.0], 3),
        ([2.0, 2.0, 1.0], [1.0, 0.0, 0.0], 2),  # a tie counts against it
        ([1.0, 5.0, 3.0, 4.0], [1.0, 0.0, 0.5, 0.0], 3),  # of two targets the better
    ],
)
def test_rank_of_the_best_target(scores: list[float], targets: list[float], rank: int) -> None:
    assert best_rank(torch.tensor(scores), torch.tensor(targets)) == rank


def test_a_gradient_that_is_no_number_stops_with_the_step_and_keeps_the_checkpoint(run: Any, tmp_path: Path) -> None:
    real = Retriever.terms

    def poisoned(self: Retriever, representations: Any, batch: Any) -> Any:
        terms = real(self, representations, batch)
        poisoned.calls += 1  # type: ignore[attr-defined]
        factor = math.nan if poisoned.calls == 3 else 1.0  # type: ignore[attr-defined]
        return {name: term._replace(value=term.value * factor) for name, term in terms.items()}

    poisoned.calls = 0  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Retriever, "terms", poisoned)
        with pytest.raises(
            FloatingPointError, match=r"step 3: the gradient is nan; lower the learning rate or use fp32"
        ):
            run("a", steps=5)
    newest = sorted((tmp_path / "a/checkpoints").iterdir())[-1]
    assert all(value.isfinite().all() for value in load_file(newest / "weights.safetensors").values())


def test_objectives_are_found_by_name() -> None:
    assert objective_named("retriever") is Retriever
    assert objective_named("ranker") is Ranker


@pytest.mark.kill
def test_killed_outright_it_ends_as_if_never_killed(
    run: Any, tmp_path: Path, data: Path, tokens: Path, retriever: Path
) -> None:
    """A process of its own is killed by SIGKILL at several steps, and the last one goes to the end."""
    script = tmp_path / "one.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            from pathlib import Path
            import torch
            from components.training import objective_named, train
            from tests import toy
            config = toy.train_config(steps=8, log_every=1)
            def build():
                return objective_named("retriever")(
                    Path({str(retriever)!r}) / "model", rows=Path({str(tmp_path)!r}) / "groups/groups.parquet",
                    data=Path({str(data)!r}), tokens=Path({str(tokens)!r}), losses=config.losses, piece=200,
                    recompute=False,
                )
            def on_step(step, note):
                if step == int(sys.argv[1]):
                    os.kill(os.getpid(), signal.SIGKILL)
            train(build(), config, out=Path({str(tmp_path)!r}) / "b", seed=1, start=Path({str(retriever)!r}),
                  device=torch.device("cpu"), dev=None, save_seconds=-1.0, on_step=on_step)
            """
        )
    )
    root = Path(__file__).parents[2]
    for stop in (1, 4, 7, -1):
        done = subprocess.run(
            [sys.executable, script, str(stop)], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
        )
        assert done.returncode == (-signal.SIGKILL if stop > 0 else 0)
    run("a", steps=8, log_every=1)
    assert_same(tmp_path / "a", tmp_path / "b")
