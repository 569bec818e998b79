"""Random choices keyed by what they are for, so that they do not depend on order, workers or restarts.

A key is any list of values, for example `(seed, "negatives", query_id, visit)`.
"""

import hashlib
from collections.abc import Iterable
from heapq import nsmallest
from typing import Any

import numpy as np


def keyed_rng(*key: Any) -> np.random.Generator:
    """A random generator whose numbers depend on the key alone."""
    return np.random.Generator(np.random.Philox(key=keyed_int(*key)))


def keyed_int(*key: Any) -> int:
    """An integer from 0 to 2^64 - 1 that depends on the key alone: a hash of its parts as text."""
    text = "\x1f".join(str(part) for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def keyed_sample(ids: Iterable[str], count: int, *key: Any) -> set[str]:
    """Sample at most `count` ids, independent of their order: those whose integers under the key are smallest."""
    return {name for _, name in nsmallest(count, ((keyed_int(*key, name), name) for name in ids))}
