"""Named, weighted losses: what a config says of them, and their sums over a batch."""

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
READ_AS = {"teacher": ("teacher", "taught"), "blocks": ("others", "joined")}
"""The attributes of `Scores` by which a loss reads what it must declare."""


class LossTerm(FunctionRef):
    """A loss, its weight, and the scores that it looks over."""

    takes: ClassVar[tuple[str, ...] | None] = ("scores",)
    built_in: ClassVar[str | None] = "components.losses"

    weight: float = 1.0
    """Factor of the loss."""
    over: str = "group"
    """The view that the loss looks over, one of those that the objective has. `group`: a query's own candidates.
    `batch`: the candidates of all queries of the batch, on all workers."""
    reduce: Literal["mean", "sum"] = "mean"
    """How the rows of the batch, on all workers, are reduced to one number."""
    duplicates: Duplicates = "mask"
    """With `over: batch`, what happens to a text that occurs more than once in the batch, under whatever ids. `mask`:
    it counts once, and not at all where it is the row's own text. `count`: each copy counts, a copy of the row's own
    text as a negative (as in Moiseev et al., 2023, and SimLM's public code). Other documents that are known to be
    relevant never count."""
    dimensions: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, exclude_if=lambda dimensions: dimensions is None
    )
    """Matryoshka representation learning (Kusupati et al., 2022, Eq. 1): the loss is the sum of what it is for the
    first so many dimensions of the vectors, for each number here. Cosines are those of the shorter vectors.
    `[384, 192, 96]` trains vectors that may be cut to 192 or 96 dimensions. Null for whole vectors."""
    dimension_weights: list[float] | None = Field(None, exclude_if=lambda weights: weights is None)
    """Factor of the loss for each of `dimensions`; null for 1 each, as in the paper."""

    @property
    def needs(self) -> Needs:
        """What the loss declares that it reads."""
        return Needs(**decorated(self.function, needs.__name__))

    @property
    def needs_blocks(self) -> bool:
        """Whether the loss, with its options, fails without scores among queries or documents."""
        blocks = self.needs.blocks
        return blocks if isinstance(blocks, bool) else any(self.options[name] for name in blocks)

    @model_validator(mode="after")
    def _declares_what_it_reads(self) -> Self:
        declared = decorated(self.function, needs.__name__)
        if unknown := declared.keys() - set(Needs._fields):
            raise ValueError(f"{self.function}: @needs({listing(unknown)}=...); accepted: {listing(Needs._fields)}")
        if isinstance(blocks := declared.get("blocks", False), tuple) and not set(blocks) <= self.options.keys():
            raise ValueError(f"{self.function}: @needs(blocks={blocks!r}); accepted: True, or names of its options")
        for part, attributes in READ_AS.items():
            if part not in declared and names(self.function, *attributes):
                raise Invalid(
                    f"{self.function} reads `scores.{attributes[0]}` and does not declare it. Write "
                    f"`@needs({part}=True)` above it, or `{part}=False` if it can do without "
                    "(`from sparring.components.needs import needs`).",
                    "undeclared-need",
                )
        return self

    @model_validator(mode="after")
    def _weighs_its_dimensions(self) -> Self:
        if self.dimension_weights is not None and len(self.dimension_weights) != len(self.dimensions or []):
            raise ValueError(
                f"dimension_weights: got {len(self.dimension_weights)}; accepted: one for each of `dimensions`, or null"
            )
        return self

    @model_validator(mode="after")
    def _has_duplicates(self) -> Self:
        if self.over == "group" and self.duplicates == "count":
            raise ValueError("duplicates: only the batch has any; accepted with `over: group`: mask")
        return self

    @property
    def name(self) -> str:
        """The term's name in `metrics.jsonl`."""
        where = self.over if self.prefix is None else f"{self.over}, {self.prefix} dimensions"
        return f"{self.function.rpartition('.')[2]} ({where})"

    @property
    def prefix(self) -> int | None:
        """The first so many dimensions of the vectors make the scores; None for all. Of one of `by_prefix`."""
        return None if self.dimensions is None else self.dimensions[0]

    def by_prefix(self) -> list[Self]:
        """One term for each of `dimensions`, whose sum the term is; the term itself where it has none."""
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
    """() sum over this worker's rows."""
    rows: int | None
    """Number of this worker's rows; the loop divides by that of all workers. None where the sum itself is wanted."""


def evaluate(losses: list[LossTerm], scores: Callable[[LossTerm], Scores]) -> dict[str, TermSum]:
    """The weighted sum of each loss over the rows of the scores that it looks over."""
    sums: dict[str, TermSum] = {}
    for term in (part for loss in losses for part in loss.by_prefix()):
        seen = scores(term)
        values = term.called(seen)
        shape = getattr(values, "shape", None)
        queries = len(seen.student)
        if shape is None or tuple(shape) != (queries,):
            result = type(values).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise UserError(
                f"{term.function} returned {result}; accepted: one value a query, a tensor of shape (Q,), "
                f"here ({queries},)"
            )
        if seen.student.requires_grad and not values.requires_grad:
            raise UserError(
                f"{term.function} returned values without a gradient, from which nothing is learnt; accepted: values "
                "computed from the scores by torch, without `detach`, `item` or `no_grad`"
            )
        name = next(name for name in _names(term.name) if name not in sums)
        sums[name] = TermSum(term.weight * values.sum(), len(values) if term.reduce == "mean" else None)
    return sums


def _names(name: str) -> Iterator[str]:
    """`name`, `name 2`, `name 3` ...: a loss may occur more than once, with other options."""
    yield name
    yield from (f"{name} {number}" for number in itertools.count(2))


def losses_for(kind: str) -> list[str]:
    """Our losses that read scores of a kind, by their dotted paths, the usual one first."""
    paths = built_in("components.losses", LossTerm.takes)
    fit = [path for path in paths if Needs(**decorated(path, needs.__name__)).of == kind]
    return sorted(fit, key=lambda path: path != "components.losses.listwise.cross_entropy")


def objective_module(name: str) -> str:
    """The module of an objective: a file of `components/objectives`, or any module, by its dotted path."""
    return name if "." in name else f"components.objectives.{name}"


def declared(objective: str, name: str) -> Any:
    """What an objective's module declares as `views`, `reads` or the like, read from its source: planning imports no
    torch.

    None where the module assigns no literal to the name; the objective itself checks its terms too.
    """
    file = modules.file_of(objective_module(objective))
    if file is None:
        return None
    status = file.stat()
    return _assigned(file, name, status.st_mtime_ns, status.st_size)


@cache
def _assigned(file: Path, name: str, *_: int) -> Any:
    """The literal that a file, or a class in it, assigns to a name. What follows tells versions of the file apart: an
    experiment asks the same for each of its trainings."""
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
