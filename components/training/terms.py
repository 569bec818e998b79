"""Named, weighted losses: their config, and their sums over a batch."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from sparring.components import modules
from sparring.components.config import Invalid, UserError, listing
from sparring.components.functions import FunctionRef, built_in, decorated, names
from sparring.components.needs import Needs, needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


Duplicates = Literal["mask", "count"]
PASSES = "passes"
"""View of two passes over the same candidates, in which the second pass is the teacher."""
READ_AS = {"teacher": ("teacher", "taught"), "blocks": ("others", "joined")}
"""Attributes of `Scores` that a loss reads, by the name of the declaration that they need."""


class LossTerm(FunctionRef):
    """A loss, its weight, and the scores that it is computed from."""

    takes: ClassVar[tuple[str, ...] | None] = ("scores",)
    built_in: ClassVar[str | None] = "components.losses"

    weight: float = 1.0
    """Factor of the loss."""
    over: str = "group"
    """View of the objective whose scores the loss gets. `group`: a query's own candidates. `batch`: the candidates of
    all queries in the batches of all workers."""
    reduce: Literal["mean", "sum"] = "mean"
    """Reduction of the rows of all workers to one number."""
    duplicates: Duplicates = "mask"
    """Treatment of equal texts in the batch, with `over: batch`. Their ids may differ. `mask`: a text counts once, and
    copies of the row's own text do not count. `count`: every copy counts, and copies of the row's own text are
    negatives (as in Moiseev et al., 2023, and in SimLM's public code). Documents that are known to be relevant, but are
    not the row's target, never count."""
    dimensions: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, exclude_if=lambda dimensions: dimensions is None
    )
    """Matryoshka representation learning (Kusupati et al., 2022, Eq. 1): the loss is summed over vectors truncated to
    each of these numbers of dimensions. For example, `[384, 192, 96]` trains vectors that can be cut to 192 or 96
    dimensions. Cosines are those of the truncated vectors. `null`: whole vectors only."""
    dimension_weights: list[float] | None = Field(None, exclude_if=lambda weights: weights is None)
    """Factor of the loss for each of `dimensions`. `null`: 1 each, as in the paper."""

    @property
    def needs(self) -> Needs:
        """Inputs that the loss declares."""
        return Needs(**decorated(self.function, needs.__name__))

    @property
    def reads_teacher(self) -> bool:
        """True if the loss fails unless a teacher has scored the groups."""
        return self.needs.teacher and self.over != PASSES

    @property
    def needs_blocks(self) -> bool:
        """True if the loss, with its options, fails without scores among queries or documents."""
        blocks = self.needs.blocks
        return blocks if isinstance(blocks, bool) else any(self.options[name] for name in blocks)

    @model_validator(mode="after")
    def _declares_what_it_reads(self) -> Self:
        declared = decorated(self.function, needs.__name__)
        if unknown := declared.keys() - set(Needs._fields):
            raise ValueError(
                f"{self.function}: `@needs({listing(unknown)}=...)` is not an argument of `needs`. Use "
                f"{listing(Needs._fields)}."
            )
        if isinstance(blocks := declared.get("blocks", False), tuple) and not set(blocks) <= self.options.keys():
            raise ValueError(
                f"{self.function}: `@needs(blocks={blocks!r})` names options that the loss does not have. Use True, or "
                "names of its options."
            )
        for part, attributes in READ_AS.items():
            if part not in declared and names(self.function, *attributes):
                raise Invalid(
                    f"{self.function} reads `scores.{attributes[0]}` but does not declare it. Write "
                    f"`@needs({part}=True)` above the function, or `@needs({part}=False)` if it also works without "
                    "(`from sparring.components.needs import needs`).",
                    "undeclared-need",
                )
        return self

    @model_validator(mode="after")
    def _weighs_its_dimensions(self) -> Self:
        if self.dimension_weights is not None and len(self.dimension_weights) != len(self.dimensions or []):
            raise ValueError(
                f"dimension_weights: got {len(self.dimension_weights)} weights for {len(self.dimensions or [])} "
                "`dimensions`. Write a weight for each, or null."
            )
        return self

    @model_validator(mode="after")
    def _has_duplicates(self) -> Self:
        if self.over == "group" and self.duplicates == "count":
            raise ValueError("duplicates: `count` applies to `over: batch` only. With `over: group` use `mask`.")
        return self

    @property
    def name(self) -> str:
        """The term's name in `metrics.jsonl`."""
        where = self.over if self.prefix is None else f"{self.over}, {self.prefix} dimensions"
        return f"{self.function.rpartition('.')[2]} ({where})"

    @property
    def prefix(self) -> int | None:
        """Number of leading dimensions that the scores use, in a term of `by_prefix`. If None, all dimensions."""
        return None if self.dimensions is None else self.dimensions[0]

    def by_prefix(self) -> list[Self]:
        """Split the term into one per entry of `dimensions`. Without `dimensions`, return the term itself."""
        if self.dimensions is None:
            return [self]
        weights = self.dimension_weights or [1.0] * len(self.dimensions)
        return [
            self.model_copy(update={"dimensions": [width], "dimension_weights": None, "weight": self.weight * weight})
            for width, weight in zip(self.dimensions, weights, strict=True)
        ]


class TermSum(NamedTuple):
    """A loss term on one worker."""

    value: Tensor
    """Weighted sum over this worker's rows, a scalar."""
    rows: int | None
    """Number of this worker's rows. The loop divides the sum by the rows of all workers. If None, it does not."""


def evaluate(losses: list[LossTerm], scores: Callable[[LossTerm], Scores]) -> dict[str, TermSum]:
    """Compute the weighted sum of each loss over the rows of its scores.

    Raise UserError if a loss does not return a tensor (Q,) with a gradient.
    """
    sums: dict[str, TermSum] = {}
    for term in (part for loss in losses for part in loss.by_prefix()):
        seen = scores(term)
        values = term.called(seen)
        shape = getattr(values, "shape", None)
        queries = len(seen.student)
        if shape is None or tuple(shape) != (queries,):
            result = type(values).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise UserError(
                f"{term.function} returned {result}. Return a value per query: a tensor of shape (Q,), here "
                f"({queries},)."
            )
        if seen.student.requires_grad and not values.requires_grad:
            raise UserError(
                f"{term.function} returned values without a gradient, from which nothing is learned. Compute them from "
                "the scores with torch operations, without `detach`, `item` or `no_grad`."
            )
        name = next(name for name in _names(term.name) if name not in sums)
        sums[name] = TermSum(term.weight * values.sum(), len(values) if term.reduce == "mean" else None)
    return sums


def _names(name: str) -> Iterator[str]:
    """Yield `name`, `name 2`, `name 3` and so on. A loss may occur more than once, with different options."""
    yield name
    yield from (f"{name} {number}" for number in itertools.count(2))


def losses_for(kind: str) -> list[str]:
    """List the dotted paths of built-in losses that read scores of a kind. `cross_entropy` comes first."""
    paths = built_in("components.losses", LossTerm.takes)
    fit = [path for path in paths if Needs(**decorated(path, needs.__name__)).of == kind]
    return sorted(fit, key=lambda path: path != "components.losses.listwise.cross_entropy")


def objective_module(name: str) -> str:
    """Return the dotted path of an objective's module. A name without a dot is a file in `components/objectives`."""
    return name if "." in name else f"components.objectives.{name}"


def declared(objective: str, name: str) -> Any:
    """Read a declaration such as `views` or `reads` from the source of an objective's module, without importing torch.

    Return None if the module assigns no literal to the name. The objective itself checks its terms later.
    """
    file = modules.file_of(objective_module(objective))
    if file is None:
        return None
    status = file.stat()
    return _assigned(file, name, status.st_mtime_ns, status.st_size)


@cache
def _assigned(file: Path, name: str, *_: int) -> Any:
    """Read the literal that a file, or a class in it, assigns to a name. Return None if there is none.

    The remaining arguments identify the version of the file for the cache.
    """
    module = modules.syntax(file)
    bodies = [module.body, *(node.body for node in module.body if isinstance(node, ast.ClassDef))]
    for node in [statement for body in bodies for statement in body]:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            with contextlib.suppress(ValueError):  # it is computed
                return ast.literal_eval(node.value)
    return None
