"""What an objective is: rows of a table -> a batch -> representations -> named loss terms."""

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
    """A row of the table, drawn for the `visit`-th time (from 0) by a training with this seed."""

    row: int
    visit: int
    seed: int

    def rng(self, purpose: str) -> np.random.Generator:
        """Random numbers for one purpose (a mask, a crop): others at each visit, the same on every worker."""
        return keyed_rng(self.seed, purpose, self.row, self.visit)


@dataclass(frozen=True)
class ObjectiveInputs:
    """What every objective is made of."""

    model: Path
    """Folder of the model that training starts from."""
    rows: Path
    """Artifact with the table that is trained on."""
    data: Path
    """Artifact of the collection."""
    tokens: Path
    """Artifact of the token store."""
    losses: list[LossTerm]
    max_tokens: int
    """Tokens in one pass through a model, padding counted."""
    recompute: bool
    """Gradient caching: keep representations alone, and run each pass again for its gradient."""


class Objective(nn.Module, ABC):
    """Rows to a batch, a batch to representations, representations to named loss terms.

    A subclass sets `model`, and defines `open`, `rows`, `collate`, `encode` and `terms`; the rest has defaults. Its
    module assigns it to `Objective`. The cut between `encode` and `terms` lets representations be computed in pieces
    and gathered from all workers. Modules beside `model` (heads, decoders, discriminators) are trained and kept in
    checkpoints, and `save` leaves them out.
    """

    table: ClassVar[str] = "groups.parquet"
    """File of the rows' artifact that is trained on."""
    texts: ClassVar[tuple[str, ...]] = ("queries", "documents")
    """What is read of the token store."""
    views: ClassVar[tuple[str, ...]] = ("group",)
    """What loss terms may look over. Assign a literal: it is read from the source when a config is loaded."""
    prefixes: ClassVar[tuple[str, ...]] = ()
    """Which of `views` are of vectors, of which a loss may take the first dimensions alone. A literal, likewise."""
    blocks: ClassVar[tuple[str, ...]] = ()
    """Which of `views` have further blocks of scores (`Scores.others`). A literal, likewise."""
    scores_of: ClassVar[dict[str, str]] = {}
    """What the scores of some views are of, if not of candidates. Losses declare the same word (`components.needs`). A
    literal, likewise."""
    measures: ClassVar[tuple[str, ...]] = ()
    """What `judge` and `summarise` measure, beside `loss`, which every objective has. A literal, likewise."""
    lowest: ClassVar[tuple[str, ...]] = ()
    """Which of `measures` are the better the lower they are, as `loss` is."""
    reads: ClassVar[float] = 1.0
    """How often each text is read by the whole model, roughly; other models count by their size. A literal, likewise:
    what a training takes is estimated by it where models are not tried."""
    predicts: ClassVar[float] = 0.0
    """Tokens predicted among the whole vocabulary, of each token that is read, roughly. A literal, likewise."""
    self_check: bool = True
    """Whether the gradient is checked before the first update (`components.training.self_check`). False for an
    objective whose `encode` or `terms` draw random numbers other than dropout's."""

    shards: bool = True
    """Whether its layers may lie in parts on several workers (`components.training.sharding`). All workers must then
    pass through them equally often, which `in_chunks` sees to. False for an objective that divides a batch itself."""

    update: int = 0
    """Updates of the weights before this one; the training loop counts them."""

    model: Any
    version: ClassVar[int] = 1
    """Another number says: same rows, another model than before. It moves this objective's trainings to new places."""
    products: Sequence[MatrixProducts] = ()
    """The matrix products of the models in training, the main one's first; none where they are not known."""

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__()
        self.inputs = inputs
        self._frozen: dict[str, nn.Module] = {}
        for term in inputs.losses:
            if term.over not in self.views:
                raise UserError(
                    f"losses: over: {term.over!r}: {_name(self)} accepts {listing(self.views)}", code="unknown-view"
                )
            if term.dimensions is not None and term.over not in self.prefixes:
                raise UserError(f"losses: dimensions: {_name(self)} has no vectors to cut; accepted: null")
        for name in self.texts:
            if not (inputs.tokens / f"{name}.ids.npy").exists():
                raise UserError(f"{inputs.tokens}: {_name(self)} reads {name}, of which there are no tokens")
        self.open(inputs.rows / self.table)

    @abstractmethod
    def open(self, table: Path) -> None:
        """Open the table that batches are drawn from."""

    def reading(self, rows: Path) -> Objective:
        """Return this objective, with the same modules, over the table of another artifact."""
        objective = copy.copy(self)
        objective.open(rows / self.table)
        return objective

    @abstractmethod
    def rows(self) -> int:
        """Return the number of rows of the table."""

    @abstractmethod
    def collate(self, visits: list[Visit]) -> Any:
        """Return the batch of some rows, on the CPU: a named tuple of tensors and of such tuples."""

    @abstractmethod
    def encode(self, batch: Any) -> Any:
        """Return the model's representation of each text or pair of a batch."""

    @abstractmethod
    def terms(self, representations: Any, batch: Any) -> dict[str, TermSum]:
        """Return each loss term's weighted sum over this worker's rows."""

    def evaluate(self, scores: Callable[[LossTerm], Scores]) -> dict[str, TermSum]:
        """Compute each loss term over the scores that it looks over, at this update."""
        return evaluate(self.inputs.losses, lambda term: replace(scores(term), update=self.update))

    def in_chunks(self, forward: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """`forward` over a batch in pieces of `inputs.max_tokens`, with gradient caching where that is asked for."""
        return in_chunks(forward, batch, tokens=self.inputs.max_tokens, recompute=self.inputs.recompute)

    def operations(self, batch: Any) -> float | None:
        """Floating-point operations of both passes over a batch, padding left out; None where not known."""
        return None

    def rate(self, *, device: str, precision: str) -> float | None:
        """Operations a second that this processor does at best, of the first of `products`; None where not known."""
        if not self.products:
            return None
        return self.products[0].rate(tokens=self.inputs.max_tokens, device=device, precision=precision)

    def judge(self, representations: Any, batch: Any) -> dict[str, Tensor]:
        """Return the values (N,) of each validation measure for the rows of a batch, or values for `summarise`.

        Without a measure `loss` of its own, an objective's held-out loss is the sum of its terms.
        """
        return {}

    def summarise(self, values: dict[str, list[float]]) -> dict[str, float]:
        """Turn the values of all rows into validation measures, by default their means."""
        return {name: float(np.float32(sum(rows))) / max(1, len(rows)) for name, rows in values.items()}

    def save(self, folder: Path) -> None:
        """Write the model as the next step loads it."""
        self.model.save(folder, self.inputs.model)

    def add_frozen(self, name: str, module: nn.Module) -> None:
        """Keep a model that is not trained (a generator, a teacher) as `frozen(name)`.

        It moves with the objective to its device, has no dropout, and is in no checkpoint.
        """
        self._frozen[name] = module.requires_grad_(False).eval()

    def frozen(self, name: str) -> Any:
        """Return the module that `add_frozen` was given."""
        return self._frozen[name]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for module in self._frozen.values():
            module._apply(fn)
        return super()._apply(fn, recurse)


def objective_named(name: str) -> type[Objective]:
    """Load the objective of `components/objectives/<name>.py`, or of a module by its dotted path."""
    try:
        module = modules.load(objective_module(name))
    except ModuleNotFoundError as error:
        raise UserError(
            f"objective: {name!r}: {error}; accepted: a file of components/objectives, or a module's path"
        ) from None
    if not hasattr(module, "Objective"):
        raise UserError(f"objective: {name!r}: {module.__name__} defines no `Objective`")
    objective: type[Objective] = module.Objective
    return objective


def make_objective(name: str, inputs: ObjectiveInputs, *, seed: int, **arguments: Any) -> Objective:
    """Make an objective by its name, with the arguments that this objective takes.

    New modules (heads, projectors) begin with the same weights on every worker and after a restart.
    """
    with torch.random.fork_rng(devices=[]):  # modules are made on the CPU
        torch.manual_seed(keyed_int(seed, "objective"))
        return objective_named(name)(inputs, **arguments)


def ranking_measures(lists: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """`RR` and `accuracy` of (scores, targets) of each row's candidates: of the best-scored candidate with a target."""
    ranks = torch.tensor([best_rank(scores, targets) for scores, targets in lists], dtype=torch.float64)
    return {"RR": 1.0 / ranks, "accuracy": (ranks == 1).double()}


def best_rank(scores: Tensor, targets: Tensor) -> int:
    """Return the rank, from 1, of the best-scored candidate with a target. Ties count against it."""
    best = scores[targets > 0].max()
    return int((scores[targets <= 0] >= best).sum()) + 1


def _name(objective: Objective) -> str:
    return type(objective).__module__.rpartition(".")[2]
