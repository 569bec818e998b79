"""The declaration of what a loss reads in addition to the scores of a query's candidates."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

Loss = TypeVar("Loss", bound=Callable[..., object])

CANDIDATES = "candidates"


class Needs(NamedTuple):
    """Inputs that a loss declares."""

    teacher: bool = False
    """True if the loss fails without a teacher's scores (`Scores.teacher`). If False, the loss may still read them."""
    blocks: bool | tuple[str, ...] = False
    """True if the loss fails without the scores among queries or documents (`Scores.others`). If it needs them only
    when certain options are on, the names of these options."""
    of: str = CANDIDATES
    """Kind of the scored items: candidates, tokens or query ranks. Objectives declare it in `scores_of`."""


def needs(
    *, teacher: bool = False, blocks: bool | tuple[str, ...] = False, of: str = CANDIDATES
) -> Callable[[Loss], Loss]:
    """Declare what a loss reads. Write literals: they are read from the source when a config is loaded.

    >>> @needs(teacher=True)
    ... def distance(scores):
    ...     return (scores.student - scores.taught("distance")).abs().sum(-1)
    """
    return lambda loss: loss
