"""Padding and dividing into batches lose nothing."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.components.data.batches import Batch, to_device, token_batches


def test_moving_a_batch_moves_what_it_holds() -> None:
    inner = Batch(torch.ones(1, 2), torch.ones(1, 2))
    moved = to_device(inner, "meta")
    assert type(moved) is Batch
    assert moved.ids.device.type == moved.mask.device.type == "meta"
    assert moved.segments is None


@given(lengths=st.lists(st.integers(0, 70), max_size=40), limit=st.integers(1, 300))
def test_token_batches_hold_each_position_once_and_stay_under_the_limit(lengths: list[int], limit: int) -> None:
    batches = token_batches(np.asarray(lengths, dtype=np.int64), limit)
    assert sorted(int(i) for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        width = -(-max(1, max(lengths[i] for i in batch)) // 8) * 8
        assert len(batch) == 1 or width * len(batch) <= limit
    order = [lengths[i] for batch in batches for i in batch]
    assert order == sorted(lengths, reverse=True)


def test_token_batches_keep_the_order_of_equals() -> None:
    assert [batch.tolist() for batch in token_batches(np.array([5, 9, 5, 5]), 16)] == [[1], [0, 2], [3]]
