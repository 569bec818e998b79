"""What tests of damaged input share: how many cases, and what a refusal is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy, tuples

from components.config import UserError

MANY = 10_000
"""Cases of a reader in `make test-all`."""
CHARACTERS = 1_500
"""Most of a message."""


class Cases(NamedTuple):
    """How many cases are made."""

    count: int


def cases(*, fast: int) -> list[Any]:
    """The two sizes of a test: what CI runs, and what `make test-all` runs."""
    many = pytest.param(Cases(int(os.environ.get("HOSTILE_CASES", MANY))), id="many", marks=pytest.mark.slow)
    return [pytest.param(Cases(fast), id="few"), many]


def counted(size: Cases, case: Callable[..., str], *strategies: SearchStrategy[Any]) -> Counter[str]:
    """How many cases ended how. They are the same whenever and wherever this runs."""
    counts: Counter[str] = Counter()

    @settings(
        max_examples=size.count, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(tuples(*strategies))
    def check(drawn: tuple[Any, ...]) -> None:
        counts[case(*drawn)] += 1

    check()
    print(f"{counts.total()} cases: {dict(counts)}")
    return counts


def one_line(error: UserError, *places: str) -> str:
    """That a refusal is one line that can be read, and names one of some places; the word for it."""
    message = str(error)
    assert any(ascii(place)[1:-1][:400] in ascii(message) for place in places), message
    assert len(message) <= CHARACTERS, message[:CHARACTERS]
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for one in message), repr(message)
    return "refused"
