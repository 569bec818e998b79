"""Adafactor (Shazeer and Stern, 2018) for sharded parameters, of which each worker updates its own rows.

Adafactor needs statistics of the whole matrix: means over all rows, and the norms of a weight and of its update. These
are computed over the rows of all workers, so a part is updated as it would be within the whole parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparring.components.compute.gather import sum_over_workers
from sparring.components.training.sharding import Part


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor, extended to parts of sharded parameters. All workers must step together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parts of sharded parameters. torch updates the rest."""
        for group in self.param_groups:
            for part in group["params"]:
                if isinstance(part, Part) and part.grad is not None:
                    _update(part, part.grad, self.state[part], group)
                    part.grad = None  # so that torch does not update it again
        return super().step(closure)


def _update(part: Part, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    """Update a part by torch's formula for a whole parameter."""
    if not state:
        state |= _beginning(gradient)
    state["step"] += 1
    step, rate = float(state["step"]), group["lr"]
    tiny, least = group["eps"]
    tiny = torch.finfo(part.dtype).eps if tiny is None else tiny
    fresh = step ** group["beta2_decay"]
    length = _root_mean_square(part, part).clamp_min(least) * min(rate, step**-0.5)
    part.mul_(1 - rate * group["weight_decay"])
    squares = gradient.square()
    if part.ndim < 2:
        estimate = state["variance"].lerp_(squares, fresh).clone()
    else:
        rows = state["row_var"].lerp_(squares.mean(-1, keepdim=True), fresh)
        columns = state["col_var"].lerp_(_mean_over_rows(squares, part), fresh)
        estimate = (rows @ columns).div_(_mean_over_rows(rows, part).clamp_(min=tiny))
    update = estimate.clamp_(min=tiny**2).rsqrt_().mul_(gradient)
    part.sub_(update * (length / (_root_mean_square(update, part) / group["d"]).clamp_min(1.0)))


def _beginning(gradient: Tensor) -> dict[str, Tensor]:
    """Return the state of a parameter before its first update. A matrix has a number per row and per column."""
    step = torch.tensor(0.0)
    if gradient.ndim < 2:
        return {"step": step, "variance": torch.zeros_like(gradient)}
    return {
        "step": step,
        "row_var": torch.zeros_like(gradient[..., :1]),
        "col_var": gradient.new_zeros((*gradient.shape[:-2], 1, gradient.shape[-1])),
    }


def _mean_over_rows(values: Tensor, part: Part) -> Tensor:
    """Average over the second-to-last dimension. In a sharded matrix these are the rows of all workers."""
    if part.ndim > 2:
        return values.mean(-2, keepdim=True)
    return sum_over_workers(values.sum(-2, keepdim=True)) / part.whole.shape[0]


def _root_mean_square(values: Tensor, part: Part) -> Tensor:
    """Compute the root mean square over the whole parameter, from the values at this worker's part."""
    return (sum_over_workers(values.square().sum()) / part.whole.numel()).sqrt()
