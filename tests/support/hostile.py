"""What tests of damaged input share: how many cases, and what a refusal is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random
from traceback import extract_tb
from typing import Any, NamedTuple

import pytest

from sparring.components.config import UserError

MANY = 10_000
"""Cases of a reader in `make test-all`."""
CHARACTERS = 1_500
"""Most of a message."""


class Cases(NamedTuple):
    """How many cases are made."""

    count: int


def cases(*, fast: int, many: int = MANY) -> list[Any]:
    """The two sizes of a test: what CI runs, and what `make test-all` runs."""
    count = int(os.environ.get("HOSTILE_CASES", many))
    return [pytest.param(Cases(fast), id="few"), pytest.param(Cases(count), id="many", marks=pytest.mark.slow)]


def counted(size: Cases, case: Callable[..., str], *draws: Callable[[Random], Any]) -> Counter[str]:
    """How many cases ended how. They are the same whenever and wherever this runs: a case's number is its seed.

    All are tried. Of those that failed in one place, the shortest to write down is raised.
    """
    # Not Hypothesis: a case is at most a few damages, which is short enough, and its bookkeeping cost more than most
    # readers do.
    counts: Counter[str] = Counter()
    failed: dict[Any, Exception] = {}
    for number in range(size.count):
        random = Random(number)
        drawn = [draw(random) for draw in draws]
        try:
            counts[case(*drawn)] += 1
        except Exception as error:
            counts["failed"] += 1
            error.add_note(f"case {number}: {drawn}")
            file, line, *_ = extract_tb(error.__traceback__)[-1]
            example = failed.setdefault((type(error), file, line), error)
            if len(error.__notes__[-1]) < len(example.__notes__[-1]):
                failed[type(error), file, line] = error
    print(f"{counts.total()} cases: {dict(counts)}")
    if failed:
        raise ExceptionGroup(f"{counts['failed']} of {size.count} cases", list(failed.values()))
    return counts


def one_line(error: UserError, *places: str) -> str:
    """That a refusal is one line that can be read, and names one of some places; the word for it."""
    message = str(error)
    assert any(str(UserError(place))[:200] in message for place in places), message
    assert len(message) <= CHARACTERS, message[:CHARACTERS]
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in message), repr(message)
    return "refused"
