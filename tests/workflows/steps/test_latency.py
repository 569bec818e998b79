"""Asking a system one query after another."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparring.components.files import read_json
from sparring.workflows.steps.latency import (
    LEAST,
    SECONDS,
    WARM_SECONDS,
    asked,
    busy,
    measure_latency,
    peak_memory,
    seconds_of_others,
)
from tests.support import toy


class Clock:
    """A clock on which each query takes its seconds."""

    def __init__(self, seconds: float) -> None:
        self.time, self.seconds, self.texts = 0.0, seconds, list[str]()

    def __call__(self) -> float:
        return self.time

    def ask(self, text: str) -> float:
        self.time += self.seconds
        self.texts.append(text)
        return self.seconds


@pytest.mark.parametrize(("seconds", "count"), [(2**-10, 200), (0.25, int(4 * SECONDS) + 1), (8.0, LEAST)])
def test_each_query_counts_once_until_the_time_is_over(seconds: float, count: int) -> None:
    clock, texts = Clock(seconds), [str(number) for number in range(200)]
    assert asked(clock.ask, texts, now=clock) == [seconds] * count
    assert clock.texts[-count:] == texts[:count]
    assert clock.texts[0] == texts[-1]
    assert len(clock.texts) - count == max(1, int(WARM_SECONDS / seconds) + 1)


def test_few_queries_are_not_repeated() -> None:
    clock = Clock(8.0)
    assert len(asked(clock.ask, ["a", "b"], now=clock)) == 2


def test_memory_that_was_freed_counts() -> None:
    before = peak_memory()
    np.ones(2**24).sum()
    assert peak_memory() >= before + 2**26


def test_a_busy_machine_is_said() -> None:
    assert busy(0.1) == ""
    assert busy(0.34).startswith("Other programs used 34 % of the processors")


def test_the_time_of_others_excludes_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(user=50.0, nice=3.0, system=7.0, irq=1.0, softirq=1.0, steal=2.0, idle=900.0, iowait=9.0)
    process = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=20.0, system=4.0))
    monkeypatch.setattr("psutil.cpu_times", lambda: machine)
    monkeypatch.setattr("psutil.Process", lambda: process)
    assert seconds_of_others() == 40.0


def test_a_system_that_cannot_be_opened_has_a_reason(tmp_path: Path, data: Path) -> None:
    unopened = SimpleNamespace(reason="it reads what only the run has")
    summary = measure_latency(tmp_path, toy.INLINE, data=data, split="dev", system=unopened)
    assert summary == read_json(tmp_path / "latency.json") == {"reason": unopened.reason}
