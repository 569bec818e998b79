"""Recognise errors about memory, and tell the user which keys of the profile make a step need less."""

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from sparring.components.config import UserError, listing
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.machine import Machine

SIGNS = re.compile(
    r"OutOfMemory|MemoryError|out of memory|low on memory|bad_alloc|ALLOC_FAILED"
    r"|(can't|cannot|unable to) allocate|not enough memory",
    re.I,
)
"""Words that Python, NumPy, torch (on CPU and GPU), Java, Arrow, Linux and Ray write when memory runs out."""

LENGTH = 200
"""Number of characters of an error that are shown."""


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether an error, or the text of a worker's error in it, is about memory."""
    return bool(SIGNS.search(f"{type(error).__name__}: {error}"))


@contextmanager
def advise(advice: str) -> Iterator[None]:
    """Add advice to an error about memory. Other errors pass unchanged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        match = SIGNS.search(lines[-1])
        begin = max(0, match.start() - LENGTH // 2) if match else 0  # the name of a loss that failed stands before that
        summary = ("... " if begin else "") + textwrap.shorten(lines[-1][begin:], LENGTH, placeholder=" ...")
        raise RuntimeError(f"{summary}; to need less memory: {advice}") from error


def map_advice(machine: Machine, pool: Pool, *, model: bool, gpu: bool) -> str:
    """Describe what makes a map over shards need less memory. `model` says whether its workers run a model, `gpu`
    whether they use GPUs."""
    profile = machine.cluster
    pools = {"java": profile.java, "score": profile.score, "map": profile.map}
    key = next((key for key, candidate in pools.items() if candidate is pool), "")
    lower = [f"max_tokens_per_pass (now {machine.batch_tokens:,})"] if model else []
    if key and not gpu and pool.workers != 1:
        lower.append(f"{key}.workers (now {pool.workers or 'one a core'})")
    return _profile_advice(lower) if lower else "a machine with more memory; this step has only one worker already"


def training_advice(machine: Machine) -> str:
    """Describe what makes a training need less memory: first the keys that do not change its result."""
    profile = machine.cluster
    lower = [f"max_tokens_per_pass (now {machine.batch_tokens:,})"] if profile.recompute else []
    if not machine.cuda and (profile.train.workers or 1) > 1:
        lower.append(f"train.workers (now {profile.train.workers})")
    advice = _profile_advice(lower, *([] if profile.recompute else ["set recompute: true"]))
    return f"{advice}; or, for another result, a smaller batch in the experiment's train section"


def _profile_advice(lower: list[str], *further: str) -> str:
    advice = [*([f"lower {listing(lower)}"] if lower else []), *further]
    return f"{' and '.join(advice)} in the profile (--cluster)"
