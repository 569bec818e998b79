"""The declaration of what a loss reads beside the scores of a query's candidates."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

Loss = TypeVar("Loss", bound=Callable[..., object])

CANDIDATES = "candidates"


class Needs(NamedTuple):
    """What a loss reads."""

    teacher: bool = False
    """Whether the loss fails without a teacher's scores (`Scores.teacher`). False: it reads them if there are any."""
    blocks: bool | tuple[str, ...] = False
    """Whether the loss fails without scores among queries or documents (`Scores.others`). Names of options: it does if
    one of these options is on."""
    of: str = CANDIDATES
    """What the scores are of, as objectives call it in `scores_of`: candidates, tokens or query ranks."""


def needs(
    *, teacher: bool = False, blocks: bool | tuple[str, ...] = False, of: str = CANDIDATES
) -> Callable[[Loss], Loss]:
    """Declare what a loss reads, in literals: they are read from the source when a config is loaded.

    >>> @needs(teacher=True)
    ... def distance(scores):
    ...     return (scores.student - scores.taught("distance")).abs().sum(-1)
    """
    return lambda loss: loss
