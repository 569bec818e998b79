"""What work takes beside its units, and what other programs take from it."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.components.models.shape import BASE
from sparring.components.training import loop
from sparring.workflows.command_line import main
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.site import Site, site
from sparring.workflows.estimating import load, rates, trial
from sparring.workflows.estimating.estimate import TRIED, UNTRIED, Estimate, Starts, _row, costs
from sparring.workflows.estimating.rates import Rates
from sparring.workflows.estimating.trial import Trial
from sparring.workflows.experiments import loading
from sparring.workflows.store.cost import Cost, Made, ModelTask, Sizes, Work
from sparring.workflows.store.dag import graph, step
from sparring.workflows.store.store import Store
from tests.support import steps, tiny, toy
from tests.support.profiles import profile

SIZES = Sizes(1000, {"train": 100}, np.array([10.0]), np.array([5.0]), 50.0)
MADE = Made(toy.retriever_config("x/y"), BASE)


def rates_of(mode: str, **known: Any) -> Rates:
    """Those of two cores."""
    cluster = Cluster.model_validate({"mode": mode, "device": "cpu", "map": {"workers": 1, "threads": 2}})
    return Rates(Site(cluster, 1, 2, 1e10, 1e12), imported=3.0, products=2e11, **known)


def test_one_process_imports_and_measures_its_products_once() -> None:
    """12 layers of 7,077,888 weights, 4,096 tokens at once, twice, at 2e11 operations a second: 7 s."""
    encoding = ModelTask("encoding", MADE, SIZES, 1e9, 10.0, {"side": "document", "precision": "fp32"})
    cost = Cost(work=(Work("encoding", 100, "map", encoding),))
    known = rates_of("inline", trials={encoding.key: Trial(0.1, 0.5)})
    weights = 12 * 7_077_888
    roofline = 2 * 2 * 4096 * weights / 2e11 + 8e-9 * weights
    assert known.roofline(encoding) == pytest.approx(roofline)
    starts = Starts(known)
    assert starts.seconds(cost) == pytest.approx(rates.STEP + rates.MODELS * 3.0 + roofline + 0.5)
    assert starts.seconds(cost) == pytest.approx(rates.STEP + 0.5)


def test_a_group_of_processes_for_training_measures_its_products_too() -> None:
    trained = toy.train_config(batch=8)
    training = ModelTask("training", MADE, SIZES, 1e9, 10.0, {"objective": "retriever", "config": trained})
    encoding = ModelTask("encoding", MADE, SIZES, 1e9, 10.0, {"side": "document", "precision": "fp32"})
    known = rates_of("ray", trials={training.key: Trial(1.0), encoding.key: Trial(1.0)})
    starts = Starts(known)
    starts.seconds(Cost(work=(Work("encoding", 1, "map", encoding),)))
    cost = Cost(work=(Work("training", 1, "train", training),))
    first, again = starts.seconds(cost), starts.seconds(cost)
    assert first - again == pytest.approx(known.roofline(training) + rates.GROUP * 3.0 - rates.LATER)


def test_a_training_that_was_not_tried_has_its_self_check() -> None:
    """4 of 8 rows twice, each as long as two: an update of two cores that reach 45 % of 1.4e11 operations a second."""
    trained = toy.train_config(batch=8)
    training = ModelTask("training", MADE, SIZES, 1e12, 10.0, {"objective": "retriever", "config": trained})
    assert rates_of("inline").fixed(training) == pytest.approx(2.0 + 2e12 / (2 * 1.4e11 * 0.45))


def test_a_rough_guess_knows_what_the_processor_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Site(Cluster(mode="inline", device="cpu"), 1, 2, 1e10, 1e12)
    monkeypatch.setattr(rates, "slowness", lambda: (1.0, 1.0))
    reached = []
    for flags in ("avx512_bf16 amx_bf16", "avx512_bf16", "avx512f", ""):
        monkeypatch.setattr(rates, "cpu_info", lambda flags=flags: f"flags : {flags}")
        reached.append(rates.quick(here).products)
    assert reached == [4.6e11, 4.0e11, 1.4e11, 1.4e11]


def test_the_first_loop_in_a_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = [1.0], [*[rates.LOOP] * rates.LOOPS, 0.5]  # seconds of each loop, the last first
    clock = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(rates, "time", clock)
    monkeypatch.setattr(rates, "_loop", lambda: now.append(now.pop() + took.pop()))
    assert rates.slowness() == pytest.approx((1.0, 1.0))


def test_a_trial_of_a_training_counts_all_that_is_no_update(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first update that takes a second longer than the others, and half a second after the last."""
    nodes = graph(loading.read(config, [], tmp_path).wanted)
    here, store = site(Cluster(mode="inline", device="cpu", train={"threads": 1}), tmp_path), Store(tmp_path / "store")
    found, _ = costs(nodes, here, store, {})
    task = next(work.task for cost in found.values() if cost for work in cost.work if work.kind == "training")
    update, finish, waits = loop._update, loop._finish, [1.0]

    def slow_update(*words: Any, **keys: Any) -> Any:
        time.sleep(waits.pop() if waits else 0.0)
        return update(*words, **keys)

    def slow_finish(*words: Any, **more: Any) -> Any:
        time.sleep(0.5)
        return finish(*words, **more)

    monkeypatch.setattr(loop, "_update", slow_update)
    monkeypatch.setattr(loop, "_finish", slow_finish)
    _, tried = trial.measure([rates._spec(here, task)], tmp_path, threads=1, batch_tokens=512, cuda=False)
    assert isinstance(tried, Trial), tried
    assert tried.fixed > 1.5
    assert tried.unit < 1.0
    assert tried.products > 0


def test_no_trial_begins_once_the_time_is_over(tmp_path: Path) -> None:
    spec = trial.Spec("encoding", toy.retriever_config("nowhere"), 100, [5], [5], {"side": "query"}, 1e9)
    _, *found = trial.measure([spec, spec], tmp_path, threads=1, batch_tokens=512, cuda=False, seconds=0.0)
    assert found == [trial.NO_TIME, trial.NO_TIME]


def test_what_was_measured_in_time_counts_and_what_still_runs_is_left() -> None:
    """One process sends its import and a trial, and then nothing; the other ends after its import."""
    ends = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    (slow, to_slow), (dead, to_dead) = ends
    for value in (1.5, Trial(0.1)):
        to_slow.send(value)
    to_dead.send(2.5)
    to_dead.close()
    began = time.monotonic()
    assert rates._received([slow, dead], 2, 0.2) == [
        (1.5, [Trial(0.1), trial.NO_TIME]),
        (2.5, [trial.NO_TIME, trial.NO_TIME]),
    ]
    assert time.monotonic() - began >= 0.2
    to_slow.close()


def test_processes_that_try_models_end_with_the_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    here = Site(Cluster(mode="inline", device="cpu"), 1, 2, 1e10, 1e12)
    spec = trial.Spec("encoding", toy.retriever_config("nowhere"), 100, [5], [5], {"side": "query"}, 1e9)
    [(imported, found)] = rates._tried(here, [spec], workers=1, threads=1, seconds=0.0)
    assert imported > 0
    assert found == [trial.NO_TIME]
    assert not multiprocessing.active_children()
    assert not list(tmp_path.glob("sparring-*"))


def test_a_process_that_is_killed_is_no_lack_of_time() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.send(1.5)
    theirs.close()
    assert rates._received([ours], 1, 60.0) == [(1.5, ["its process was killed"])]
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.close()
    with pytest.raises(RuntimeError, match="ended before it began"):
        rates._received([ours], 1, 60.0)


def test_work_that_was_not_tried_in_time_is_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest work is tried first; of the rest it is said that it is a guess, and its range is wider."""
    asked: list[float] = []

    def tried(site: Site, specs: Any, **keys: Any) -> Any:
        asked.extend(spec.operations for spec in specs)
        return [(1.0, [Trial(0.1), *[trial.NO_TIME] * (len(specs) - 1)])]

    monkeypatch.setattr(rates, "_tried", tried)
    large, small = (
        ModelTask("encoding", MADE, SIZES, operations, 10.0, {"side": side, "precision": "fp32"})
        for side, operations in (("document", 1e9), ("query", 1e10))
    )
    here = Site(Cluster(mode="inline", device="cpu"), 1, 2, 1e10, 1e12)
    works = [Work("encoding", amount, "map", task) for amount, task in ((1, small), (100, large))]
    known = rates.measured(here, [(work, work.task) for work in works])
    assert asked == [1e9, 1e10]
    assert known.trials.keys() == {large.key}
    assert known.notes == ["1 of 2 kinds of work were not tried within 30 s, so their time is a guess"]
    starts = Starts(known)
    rows = [_row(step("a", steps.write, text="a"), Cost(work=(work,)), True, starts) for work in works]
    assert [row.spread for row in rows] == [UNTRIED, TRIED]
    found = Estimate(rows, here, known, exact=True, documents=0, queries={})
    low, high = found.between
    assert low == pytest.approx(sum(row.seconds * row.spread[0] for row in found.alone().rows))
    assert high == pytest.approx(sum(row.seconds * row.spread[1] for row in rows))
    assert found.spread == pytest.approx((low / found.seconds, high / found.seconds))


def test_what_other_programs_take_is_what_this_one_and_its_children_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 10 s of 2 cores they computed for 16 s, of which 5 s were this process's own."""
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda process: {0, 1})
    seconds = iter([(100.0, 1000.0, 50.0), (110.0, 1016.0, 55.0)])
    monkeypatch.setattr(load, "_seconds", lambda: next(seconds))
    with load.Others() as found:
        pass
    assert found.share == pytest.approx(11 / 20)


def test_seconds_of_this_process_are_among_those_of_the_machine() -> None:
    _, busy, own = load._seconds()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    _, busy_then, own_then = load._seconds()
    assert own_then - own >= 0.25
    assert busy_then - busy >= own_then - own - 0.1


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_busy_machine_is_told(
    config: Path, tmp_path: Path, said: tiny.Said, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """The loop on one core may have it for itself while other programs take all others."""

    class Busy(load.Others):
        def __exit__(self, *words: Any) -> None:
            self.share = share

    def tried(site: Site, specs: Any, **keys: Any) -> Any:
        return [(1.0, [Trial(0.1, 1.0, own=0.3) for _ in specs])]

    monkeypatch.setattr(rates, "Others", Busy)
    monkeypatch.setattr(rates, "_tried", tried)
    monkeypatch.setattr(rates, "slowness", lambda: (1.0, 1.0))
    words = ["--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs"), "plan", str(config), "--estimate"]
    assert main([*words, "--cluster", str(profile(tmp_path))]) == 0, said()
    told = "other programs took 50% of all cores meanwhile; without them it would be about " in said()[0]
    assert told == (share == 0.5)


def test_cores_that_nobody_used_were_not_taken(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that computed for 30 % of its cores' time, beside programs that took 40 % of it."""

    class Busy(load.Others):
        def __exit__(self, *words: Any) -> None:
            self.share = 0.4

    monkeypatch.setattr(rates, "Others", Busy)
    monkeypatch.setattr(rates, "_tried", lambda *words, **keys: [(1.0, [Trial(0.1, own=0.3)])])
    task = ModelTask("encoding", MADE, SIZES, 1e9, 10.0, {"side": "document", "precision": "fp32"})
    here = Site(Cluster(mode="inline", device="cpu"), 1, 2, 1e10, 1e12)
    known = rates.measured(here, [(Work("encoding", 1, "map", task), task)])
    assert known.trials[task.key].own == pytest.approx(0.6)
    assert known.alone().trials[task.key].unit == pytest.approx(0.06)
