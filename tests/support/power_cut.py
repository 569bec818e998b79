"""A power cut in the middle of a step, in the test's own process: what is called counts, and then an error ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class PowerCut(RuntimeError):
    """What ends a step; nothing of ours catches it."""


def cut_power(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int | None, note: Callable[..., Any] | None = None
) -> list[Any]:
    """What `note` says of the arguments of every call of `owner.name` from now on, one entry a call.

    Instead of the call that follows `after` calls there is a power cut; None for never. The patch goes with the
    monkeypatch's context, and the next one counts anew.
    """
    calls: list[Any] = []
    real = getattr(owner, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        if len(calls) == after:
            raise PowerCut
        calls.append(note(*arguments, **named) if note else None)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls
