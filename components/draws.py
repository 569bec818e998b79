"""Random choices keyed by what they are for, so that order, workers and restarts cannot change them."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np


def generator(*key: Any) -> np.random.Generator:
    """A random generator that depends on the key alone, for example `(seed, "negatives", query_id, visit)`."""
    return np.random.Generator(np.random.Philox(key=number(*key)))


def number(*key: Any) -> int:
    """A 64-bit number that depends on the key alone."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def sample(ids: Sequence[str], count: int | None, *key: Any) -> list[str]:
    """So many of some ids, whatever their order: those whose numbers under the key are smallest. None for all."""
    if count is None or count >= len(ids):
        return list(ids)
    kept = set(sorted(ids, key=lambda one: (number(*key, one), one))[:count])
    return [one for one in ids if one in kept]
