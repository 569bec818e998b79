"""The base class of objectives. Rows of a table become a batch, representations, and named loss terms."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from sparring.components import modules
from sparring.components.compute.chunking import in_chunks
from sparring.components.compute.roofline import MatrixProducts
from sparring.components.config import UserError, listing
from sparring.components.rng import keyed_int, keyed_rng
from sparring.components.scores import Scores
from sparring.components.training.terms import LossTerm, TermSum, evaluate, objective_module


class Visit(NamedTuple):
    """A row of the table, visited for the `visit`-th time (from 0) in a training with this seed."""

    row: int
    visit: int
    seed: int

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a random generator for a purpose, for example a mask or a crop.

        It differs between visits, and is the same on every worker.
        """
        return keyed_rng(self.seed, purpose, self.row, self.visit)


@dataclass(frozen=True)
class ObjectiveInputs:
    """Inputs that every objective gets."""

    model: Path
    """Folder of the model that training starts from."""
    rows: Path
    """Artifact with the training table."""
    data: Path
    """Artifact of the collection."""
    tokens: Path
    """Artifact of the token store."""
    losses: list[LossTerm]
    max_tokens: int
    """Maximum number of tokens in a pass through a model, including padding."""
    recompute: bool
    """Gradient caching: keep only representations, and run each pass again for its gradient."""


class Objective(nn.Module, ABC):
    """The base class of objectives: it turns rows into a batch, representations and named loss terms.

    A subclass sets `model` and defines `open`, `rows`, `collate`, `encode` and `terms`. The rest has defaults. The
    subclass's module assigns the class to `Objective`. Because `encode` and `terms` are separate, representations can
    be computed in chunks and gathered from all workers. Additional modules (heads, decoders, discriminators) are
    trained and kept in checkpoints, but `save` writes only `model`.

    Assign literals to `views`, `prefixes`, `blocks`, `scores_of`, `measures`, `reads` and `predicts`: they are read
    from the source when a config is loaded.
    """

    table: ClassVar[str] = "groups.parquet"
    """Name of the training table in the artifact of the rows."""
    texts: ClassVar[tuple[str, ...]] = ("queries", "documents")
    """Parts of the token store that the objective reads."""
    views: ClassVar[tuple[str, ...]] = ("group",)
    """Names of the scores that loss terms can use (`over`). Must be a literal."""
    prefixes: ClassVar[tuple[str, ...]] = ()
    """Those of `views` whose scores come from vectors that a loss may truncate (`dimensions`). Must be a literal."""
    blocks: ClassVar[tuple[str, ...]] = ()
    """Those of `views` that have additional blocks of scores (`Scores.others`). Must be a literal."""
    scores_of: ClassVar[dict[str, str]] = {}
    """Kind of the scored items, by view, if they are not candidates. Losses declare the same word
    (`components.needs`). Must be a literal."""
    measures: ClassVar[tuple[str, ...]] = ()
    """Validation measures of `judge` and `summarise`. Every objective also has `loss`. Must be a literal."""
    lowest: ClassVar[tuple[str, ...]] = ()
    """Those of `measures` whose lowest value is best, as for `loss`."""
    reads: ClassVar[float] = 1.0
    """Approximate number of passes of each text through the main model. Additional models count by their size.
    The value serves to estimate training time if the model is not measured. It must be a literal."""
    predicts: ClassVar[float] = 0.0
    """Approximate number of predictions over the whole vocabulary per token read. Must be a literal."""
    self_check: bool = True
    """True if the gradient is checked before the first update (`components.training.self_check`). Set False for an
    objective whose `encode` or `terms` draw random numbers other than dropout's."""

    shards: bool = True
    """True if layers can be sharded over workers (`components.training.sharding`). All workers must then run the layers
    equally often, as `in_chunks` does. Set False for an objective that divides batches itself."""

    update: int = 0
    """Number of updates before this one. The training loop sets it."""

    model: Any
    version: ClassVar[int] = 1
    """Version of the objective. Raise it if the same rows give a different model. Trainings then run again."""
    products: Sequence[MatrixProducts] = ()
    """Matrix products of the trained models, the main model's first. Empty if they are unknown."""

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__()
        self.inputs = inputs
        self._frozen: dict[str, nn.Module] = {}
        for term in inputs.losses:
            if term.over not in self.views:
                raise UserError(
                    f"losses: over: got {term.over!r}, but the objective {_name(self)} accepts {listing(self.views)}.",
                    code="unknown-view",
                )
            if term.dimensions is not None and term.over not in self.prefixes:
                raise UserError(
                    f"losses: dimensions: the objective {_name(self)} has no vectors to cut for `over: {term.over}`. "
                    "Remove `dimensions`."
                )
        for name in self.texts:
            if not (inputs.tokens / f"{name}.ids.npy").exists():
                raise UserError(
                    f"{inputs.tokens}: the objective {_name(self)} reads {name}, but this token store has none."
                )
        self.open(inputs.rows / self.table)

    @abstractmethod
    def open(self, table: Path) -> None:
        """Open the table whose rows are trained on."""

    def reading(self, rows: Path) -> Objective:
        """Return this objective, with the same modules, over the table of the artifact `rows`."""
        objective = copy.copy(self)
        objective.open(rows / self.table)
        return objective

    @abstractmethod
    def rows(self) -> int:
        """Return the number of rows of the table."""

    @abstractmethod
    def collate(self, visits: list[Visit]) -> Any:
        """Return the batch of some rows, on the CPU: a named tuple of tensors and of named tuples of tensors.

        A thread calls this ahead of the update. Random numbers must come from `Visit.rng`.
        """

    @abstractmethod
    def encode(self, batch: Any) -> Any:
        """Compute the model's representation of each text or pair of a batch."""

    @abstractmethod
    def terms(self, representations: Any, batch: Any) -> dict[str, TermSum]:
        """Compute each loss term's weighted sum over this worker's rows."""

    def evaluate(self, scores: Callable[[LossTerm], Scores]) -> dict[str, TermSum]:
        """Compute each loss term from the scores that `scores` returns for it, at this update."""
        return evaluate(self.inputs.losses, lambda term: replace(scores(term), update=self.update))

    def in_chunks(self, forward: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """Apply `forward` to a batch in chunks of `inputs.max_tokens` tokens, with gradient caching if it is on."""
        return in_chunks(forward, batch, tokens=self.inputs.max_tokens, recompute=self.inputs.recompute)

    def operations(self, batch: Any) -> float | None:
        """Count the floating-point operations of the forward and backward pass, without padding. None if unknown."""
        return None

    def rate(self, *, device: str, precision: str) -> float | None:
        """Return the processor's best rate for the first of `products`, in operations per second. None if unknown."""
        if not self.products:
            return None
        return self.products[0].rate(tokens=self.inputs.max_tokens, device=device, precision=precision)

    def judge(self, representations: Any, batch: Any) -> dict[str, Tensor]:
        """Compute the values (N,) of each validation measure for the rows of a batch, or values for `summarise`.

        If they do not include `loss`, the held-out loss is the sum of the loss terms.
        """
        return {}

    def summarise(self, values: dict[str, list[float]]) -> dict[str, float]:
        """Turn the values of all rows into validation measures, by default their means."""
        return {name: float(np.float32(sum(rows))) / max(1, len(rows)) for name, rows in values.items()}

    def save(self, folder: Path) -> None:
        """Write the model in the form in which the next step loads it."""
        self.model.save(folder, self.inputs.model)

    def add_frozen(self, name: str, module: nn.Module) -> None:
        """Add a model that is not trained, such as a generator or a teacher. `frozen(name)` returns it.

        It moves to the objective's device, has no dropout, and is not saved in checkpoints.
        """
        self._frozen[name] = module.requires_grad_(False).eval()

    def frozen(self, name: str) -> Any:
        """Return the module that was added with `add_frozen` under this name."""
        return self._frozen[name]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for module in self._frozen.values():
            module._apply(fn)
        return super()._apply(fn, recurse)


def objective_named(name: str) -> type[Objective]:
    """Return the objective class of `components/objectives/<name>.py`, or of a module by its dotted path."""
    try:
        module = modules.load(objective_module(name))
    except ModuleNotFoundError as error:
        raise UserError(
            f"objective: {name!r} cannot be loaded ({error}). Use the name of a file in components/objectives, or the "
            "dotted path of a module."
        ) from None
    if not hasattr(module, "Objective"):
        raise UserError(
            f"objective: the module {module.__name__} defines no `Objective`. Assign its class to that name."
        )
    objective: type[Objective] = module.Objective
    return objective


def make_objective(name: str, inputs: ObjectiveInputs, *, seed: int, **arguments: Any) -> Objective:
    """Make an objective by its name. `arguments` are keyword arguments of its class.

    New modules (heads, projectors) get the same initial weights on every worker and after a restart.
    """
    with torch.random.fork_rng(devices=[]):  # modules are made on the CPU
        torch.manual_seed(keyed_int(seed, "objective"))
        return objective_named(name)(inputs, **arguments)


def ranking_measures(lists: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Compute `RR` and `accuracy` of each row from the (scores, targets) of its candidates.

    Both judge the rank of the highest-scored candidate with a target above 0.
    """
    ranks = torch.tensor([best_rank(scores, targets) for scores, targets in lists], dtype=torch.float64)
    return {"RR": 1.0 / ranks, "accuracy": (ranks == 1).double()}


def best_rank(scores: Tensor, targets: Tensor) -> int:
    """Return the rank, from 1, of the highest-scored candidate with a target above 0. Ties count against it."""
    best = scores[targets > 0].max()
    return int((scores[targets <= 0] >= best).sum()) + 1


def _name(objective: Objective) -> str:
    return type(objective).__module__.rpartition(".")[2]
