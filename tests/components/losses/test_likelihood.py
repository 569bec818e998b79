"""What a language model loses on a text, by hand."""

from __future__ import annotations

import pytest
import torch

from sparring.components.losses.likelihood import negative_log_likelihood
from sparring.components.scores import Scores


def test_a_texts_tokens_by_hand() -> None:
    """Three tokens and one, the rest padding."""
    student = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -9.0, -9.0]], dtype=torch.float64)
    where = torch.tensor([[True, True, True], [True, False, False]])
    scores = Scores(student, where.double(), where)
    assert negative_log_likelihood(scores).tolist() == pytest.approx([2.0, 4.0])
    assert negative_log_likelihood(scores, over="sum").tolist() == pytest.approx([6.0, 4.0])
