"""Random choices that depend only on a key, not on order, workers or restarts.

A key is any list of values that says what a choice is for, for example `(seed, "negatives", query_id, visit)`.
"""

import hashlib
from collections.abc import Iterable
from heapq import nsmallest
from typing import Any

import numpy as np


def keyed_rng(*key: Any) -> np.random.Generator:
    """Return a random generator whose numbers depend only on the key."""
    return np.random.Generator(np.random.Philox(key=keyed_int(*key)))


def keyed_int(*key: Any) -> int:
    """Return an integer from 0 to 2^64 - 1 that depends only on the key: a hash of its parts as text."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def keyed_sample(ids: Iterable[str], count: int, *key: Any) -> set[str]:
    """Sample at most `count` ids independently of their order: those with the smallest integers under the key."""
    return {name for _, name in nsmallest(count, ((keyed_int(*key, name), name) for name in ids))}
