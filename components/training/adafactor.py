"""Adafactor (Shazeer and Stern, 2018) where each worker updates its own rows of a sharded parameter.

Adafactor looks at whole matrices: at means over all rows, and at the norms of a weight and of its update. Here these
are over the rows of all workers, so that a part changes as it would in the whole parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparring.components.compute.gather import sum_over_workers
from sparring.components.training.sharding import Part


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor, and the same for parts of parameters. All workers must step at once."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parts, and leave what is whole to torch."""
        for group in self.param_groups:
            for part in group["params"]:
                if isinstance(part, Part) and part.grad is not None:
                    _update(part, part.grad, self.state[part], group)
                    part.grad = None  # so that torch does not update it again
        return super().step(closure)


def _update(part: Part, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Update a part, as torch updates a whole parameter."""
    if not state:
        state |= _beginning(gradient)
    state["step"] += 1
    step, rate = float(state["step"]), group["lr"]
    tiny, least = group["eps"]
    tiny = torch.finfo(part.dtype).eps if tiny is None else tiny
    fresh = step ** group["beta2_decay"]
    length = max(least, _root_mean_square(part, part)) * min(rate, step**-0.5)
    part.mul_(1 - rate * group["weight_decay"])
    squares = gradient.square()
    if part.ndim < 2:
        estimate = state["variance"].lerp_(squares, fresh).clone()
    else:
        rows = state["row_var"].lerp_(squares.mean(-1, keepdim=True), fresh)
        columns = state["col_var"].lerp_(_mean_over_rows(squares, part), fresh)
        estimate = (rows @ columns).div_(_mean_over_rows(rows, part).clamp_(min=tiny))
    update = estimate.clamp_(min=tiny**2).rsqrt_().mul_(gradient)
    part.add_(update, alpha=-length / max(1.0, _root_mean_square(update, part) / group["d"]))


def _beginning(gradient: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter before its first update: of a matrix a number for each row and column."""
    step = torch.tensor(0.0)
    if gradient.ndim < 2:
        return {"step": step, "variance": torch.zeros_like(gradient)}
    return {
        "step": step,
        "row_var": torch.zeros_like(gradient[..., :1]),
        "col_var": gradient.new_zeros((*gradient.shape[:-2], 1, gradient.shape[-1])),
    }


def _mean_over_rows(values: Tensor, part: Part) -> Tensor:
    """Average over the last dimension but one, which workers divide in a matrix."""
    if part.ndim > 2:
        return values.mean(-2, keepdim=True)
    return sum_over_workers(values.sum(-2, keepdim=True)) / part.whole.shape[0]


def _root_mean_square(values: Tensor, part: Part) -> float:
    """Over the whole parameter, of values at this worker's part."""
    return float(sum_over_workers(values.square().sum()) / part.whole.numel()) ** 0.5
