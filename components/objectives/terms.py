"""What every objective is made of: named, weighted losses, and the shape of an objective."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

from pydantic import model_validator

from components.config import Call

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from components.scores import Scores


Duplicates = Literal["mask", "count"]


class Term(Call):
    """A loss, its weight, and what it looks over."""

    weight: float = 1.0
    """What its mean is multiplied by."""
    over: Literal["group", "batch"] = "group"
    """`group`: a query's own candidates. `batch`: the candidates of every query of the batch, of every worker."""
    reduce: Literal["mean", "sum"] = "mean"
    """Over the queries of the batch, of every worker."""
    duplicates: Duplicates = "mask"
    """Over the batch: what becomes of a text that stands there more than once, under whatever ids. `mask`: it counts
    once, and where it is what the row's own text says not at all. `count`: as often as it stands there, a copy of the
    row's own as a negative, as in paper 000 and in SimLM's public code. Other documents that are known to be relevant
    never count."""

    @model_validator(mode="after")
    def _has_duplicates(self) -> Self:
        if self.over == "group" and self.duplicates == "count":
            raise ValueError("duplicates: only the batch has any; accepted with `over: group`: mask")
        return self

    @property
    def name(self) -> str:
        """What it is called in `metrics.jsonl`."""
        return f"{self.function.rpartition('.')[2]} ({self.over})"


class Sum(NamedTuple):
    """A loss term on one worker."""

    value: Tensor
    """() its sum over this worker's rows."""
    rows: int | None
    """How many there are on this worker; the loop divides by those of all. None where the sum itself is wanted."""


class Objective(Protocol):
    """Rows to a batch, a batch to representations, representations to named loss terms.

    The cut between the last two lets representations be computed in pieces and gathered from workers. Before a
    training's first step the gradient is checked (`components.self_check`), unless the objective has
    `self_check = False`.
    """

    def rows(self) -> int: ...

    def collate(self, rows: list[int]) -> Any:
        """The batch of some rows of the table, on the CPU."""

    def operations(self, batch: Any) -> float:
        """Floating-point operations of the forward pass over a batch that is not on its device yet, without padding."""

    def rate(self, *, device: str, precision: str) -> float:
        """Operations a second that this processor does at best (`components.floor`)."""

    def encode(self, batch: Any) -> Any:
        """What the model says of each text or pair."""

    def terms(self, representations: Any, batch: Any) -> dict[str, Sum]:
        """Each term's sum over this worker's rows, and what it is a mean over; terms come weighted."""

    def judge(self, representations: Any, batch: Any) -> list[tuple[Tensor, Tensor]]:
        """(scores, targets) of each row's own candidates, for validation.

        An objective whose scores have their temperature says so by `calibrated = True`.
        """

    def save(self, folder: Path) -> None:
        """Write the model as the next step loads it."""


def evaluate(losses: list[Term], scores: Callable[[Term], Scores]) -> dict[str, Sum]:
    """Weighted sums of each loss over the rows of the scores it looks over."""
    found: dict[str, Sum] = {}
    for term in losses:
        values = term.resolve()(scores(term), **term.options)
        name = next(name for name in _names(term.name) if name not in found)
        found[name] = Sum(term.weight * values.sum(), len(values) if term.reduce == "mean" else None)
    return found


def _names(name: str) -> Iterator[str]:
    """`name`, `name 2`, `name 3` ...: a loss may stand more than once, with other options."""
    yield name
    yield from (f"{name} {number}" for number in itertools.count(2))
