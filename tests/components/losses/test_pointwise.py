"""Binary cross entropy against torch's own."""

from __future__ import annotations

import pytest
import torch

from sparring.components.losses.pointwise import binary_cross_entropy
from sparring.components.scores import Scores


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_each_candidate_is_asked_alone(temperature: float) -> None:
    rng = torch.Generator().manual_seed(2)
    student = 3 * torch.randn(4, 6, generator=rng, dtype=torch.float64)
    target = (torch.rand(4, 6, generator=rng) < 0.4).double() * 0.5  # soft, and relevant none the less
    where = torch.rand(4, 6, generator=rng) < 0.7
    values = binary_cross_entropy(Scores(student, target, where), temperature=temperature)
    for row in range(4):
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(
            student[row][where[row]] / temperature, (target[row][where[row]] > 0).double()
        )
        assert values[row].item() == pytest.approx(wanted.item())
