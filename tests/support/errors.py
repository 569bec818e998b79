"""Assertions about a user's mistakes by key and code. The wording is in `tests/test_messages.py` alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparring.components.config import UserError


@contextmanager
def refused(key: str, code: str, *facts: str) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a UserError about a key. The end of a path is enough for a file. `facts` are names and values that the
    message must state."""
    with pytest.raises(UserError) as caught:
        yield caught
    error = caught.value
    assert error.code == code, error
    assert error.key == key or error.key.endswith(f"/{key}") or (key[:1] == "." and error.key.endswith(key)), error
    assert all(fact in str(error) for fact in facts), error
