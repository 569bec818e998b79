"""Random choices keyed by what they are for, so that order, workers and restarts cannot change them."""

import hashlib
from collections.abc import Iterable
from heapq import nsmallest
from typing import Any

import numpy as np


def generator(*key: Any) -> np.random.Generator:
    """A random generator that depends on the key alone, for example `(seed, "negatives", query_id, visit)`."""
    return np.random.Generator(np.random.Philox(key=number(*key)))


def number(*key: Any) -> int:
    """A 64-bit number that depends on the key alone."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def sample(ids: Iterable[str], count: int, *key: Any) -> set[str]:
    """So many of some ids, whatever their order: those whose numbers under the key are smallest."""
    return {one for _, one in nsmallest(count, ((number(*key, one), one) for one in ids))}
