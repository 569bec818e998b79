"""What to lower where memory runs out: a step that asked for too much fails once, and says what would make it less."""

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from components.config import UserError, listing
from workflows.cluster import Cluster, Pool

SIGNS = re.compile(
    r"OutOfMemory|MemoryError|out of memory|low on memory|bad_alloc|ALLOC_FAILED"
    r"|(can't|cannot|unable to) allocate|not enough memory",
    re.I,
)
"""What Python, NumPy, torch on either device, Java, Arrow, Linux and Ray say."""


def ran_out(error: BaseException) -> bool:
    """Whether an error, or what a worker said of one, is about memory."""
    return bool(SIGNS.search(f"{type(error).__name__}: {error}"))


@contextmanager
def told(advice: str) -> Iterator[None]:
    """Add to an error about memory what to do."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not ran_out(error):
            raise
        said = str(error).strip().splitlines() or [type(error).__name__]
        line = textwrap.shorten(said[-1], 200, placeholder=" ...")
        raise RuntimeError(f"{line}; to need less memory: {advice}") from error


def of_map(cluster: Cluster, pool: Pool, *, model: bool, cuda: bool) -> str:
    """What makes a map over shards need less; `model` where its workers put tokens through one."""
    pools = {"java": cluster.java, "score": cluster.score, "map": cluster.map}
    name = next((name for name, one in pools.items() if one is pool), "")
    lower = [f"pass_tokens (now {cluster.tokens_at_once(cuda=cuda):,})"] if model else []
    if name and not cuda and pool.workers != 1:
        lower.append(f"{name}.workers (now {pool.workers or 'one a core'})")
    return _lowered(lower, [], otherwise="a machine with more of it; this step's worker is one already")


def of_training(cluster: Cluster, *, cuda: bool) -> str:
    """What makes a training need less: first what leaves its result as it is."""
    lower = [f"pass_tokens (now {cluster.tokens_at_once(cuda=cuda):,})"] if cluster.recompute else []
    if not cuda and (cluster.train.workers or 1) > 1:
        lower.append(f"train.workers (now {cluster.train.workers})")
    profile = _lowered(lower, [] if cluster.recompute else ["recompute: true"], otherwise="")
    return f"{profile}; or, for another result, a smaller batch in the experiment's train section"


def _lowered(lower: list[str], sets: list[str], *, otherwise: str) -> str:
    said = [*([f"lower {listing(lower)}"] if lower else []), *(f"set {one}" for one in sets)]
    return f"{' and '.join(said)} in the profile (--cluster)" if said else otherwise
