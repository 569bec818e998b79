"""What objectives of models that write texts have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from components.floor import Products
from components.groups import Groups
from components.objectives.terms import Sum, Term, evaluate
from components.scores import Scores
from components.text import Batch


class Writing(nn.Module):
    """Log-probabilities of the tokens of a text, one text for each group, under the losses asked for."""

    model: Any
    """With `save`, and a language model of Hugging Face's as `model`."""

    def __init__(self, sides: list[Any], model: Path, losses: list[Term], piece: int, recompute: bool) -> None:
        """`sides` are the parts of the model that read and write."""
        super().__init__()
        if any(term.over != "group" for term in losses):
            raise ValueError(f"{self.who}'s losses look over the tokens of one text: `over: group`")
        self._products = [Products(part) for part in sides]
        lists = [module for side in sides for module in side.modules() if isinstance(module, nn.ModuleList)]
        self._known = any(isinstance(part, nn.Linear) for layers in lists for part in layers.modules())
        self._from, self._losses, self._piece, self._recompute = model, losses, piece, recompute
        self._groups: Groups

    who = "a model that writes"
    """What it is called where something is wrong."""

    def rows(self) -> int:
        """How many texts there are to learn from."""
        return len(self._groups)

    def rate(self, *, device: str, precision: str) -> float:
        """Of the products of the side that reads; 1 where they are not known."""
        return self._products[0].rate(tokens=self._piece, device=device, precision=precision) if self._known else 1.0

    def terms(self, representations: Tensor, batch: Any) -> dict[str, Sum]:
        """The losses over each target's tokens."""
        targets: Batch = batch.targets
        where = targets.mask.bool()
        scores = Scores(student=representations, target=where.to(representations.dtype), where=where)
        return evaluate(self._losses, lambda _: scores)

    def judge(self, representations: Tensor, batch: Any) -> list[tuple[Tensor, Tensor]]:
        """What writes orders no candidates."""
        raise ValueError(f"validate_on_dev: {self.who} has no candidates to be judged on; leave it out")

    def save(self, folder: Path) -> None:
        """Write the model."""
        self.model.save(folder, self._from)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Each tensor once: input and output embeddings are often one."""
        found: dict[int, str] = {}
        whole: dict[str, torch.Tensor] = super().state_dict(*args, **options)
        return {name: value for name, value in whole.items() if found.setdefault(value.data_ptr(), name) == name}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        """What `state_dict` gave."""
        return super().load_state_dict(state, strict=False, assign=assign)
