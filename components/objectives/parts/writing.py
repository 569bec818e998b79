"""Base of objectives for models that write texts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sparring.components.compute.roofline import MatrixProducts
from sparring.components.data.batches import Batch
from sparring.components.scores import Scores
from sparring.components.training.group_objective import GroupObjective
from sparring.components.training.terms import TermSum


class Writing(GroupObjective):
    """Log-probabilities of the tokens of one text per group."""

    def measure_products(self, sides: list[Any]) -> None:
        """Record the matrix products of the model's encoder and decoder, for counting operations."""
        lists = [module for side in sides for module in side.modules() if isinstance(module, nn.ModuleList)]
        has_linear = any(isinstance(part, nn.Linear) for layers in lists for part in layers.modules())
        # Architectures without nn.Linear layers, such as GPT-2, are not counted.
        self.products = [MatrixProducts(part) for part in sides] if has_linear else []

    def terms(self, representations: Tensor, batch: Any) -> dict[str, TermSum]:
        """Compute the losses over each target's tokens."""
        targets: Batch = batch.targets
        where = targets.mask.bool()
        scores = Scores(student=representations, target=where.to(representations.dtype), where=where)
        return self.evaluate(lambda _: scores)
