"""What every objective is made of: named, weighted losses, and the shape of an objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from components.config import Call

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from components.scores import Scores


class Term(Call):
    """A loss, its weight, and what it looks over."""

    weight: float = 1.0
    """What its mean is multiplied by."""
    over: Literal["group", "batch"] = "group"
    """`group`: a query's own candidates. `batch`: the candidates of every query of the batch, of every worker."""

    @property
    def name(self) -> str:
        """What it is called in `metrics.jsonl`."""
        return f"{self.function.rpartition('.')[2]} ({self.over})"


class Objective(Protocol):
    """Rows to a batch, a batch to representations, representations to named loss terms.

    The cut between the last two lets representations be computed in pieces and gathered from workers.
    """

    def rows(self) -> int: ...

    def collate(self, rows: list[int]) -> Any:
        """The batch of some rows of the table, on the CPU."""

    def encode(self, batch: Any) -> Any:
        """What the model says of each text or pair."""

    def terms(self, representations: Any, batch: Any) -> dict[str, tuple[Tensor, int]]:
        """Each term's sum over this worker's rows and their count; terms come weighted."""

    def judge(self, representations: Any, batch: Any) -> list[tuple[Tensor, Tensor]]:
        """(scores, targets) of each row's own candidates, for validation."""

    def save(self, folder: Path) -> None:
        """Write the model as the next step loads it."""


def evaluate(losses: list[Term], scores: dict[str, Scores]) -> dict[str, tuple[Tensor, int]]:
    """Weighted sums of each loss over the rows, with the number of rows."""
    found: dict[str, tuple[Tensor, int]] = {}
    for term in losses:
        values = term.resolve()(scores[term.over], **term.options)
        found[term.name] = (term.weight * values.sum(), len(values))
    return found
