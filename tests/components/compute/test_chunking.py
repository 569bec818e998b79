"""Encoding in pieces gives the vectors and gradients of encoding at once, in the memory of one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from sparring.components.compute.chunking import in_chunks, take_rows, unchunked
from sparring.components.data.batches import Batch


class Tiny(nn.Module):
    """An encoder without transformers: embeddings, a layer, dropout, the mean over real tokens."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding, self.layer, self.dropout = nn.Embedding(20, 6), nn.Linear(6, 6), nn.Dropout(dropout)
        self.passes: list[tuple[int, ...]] = []

    def forward(self, batch: Batch) -> Tensor:
        self.passes.append(tuple(batch.ids.shape))
        states = self.dropout(torch.tanh(self.layer(self.embedding(batch.ids))))
        weights = batch.mask.unsqueeze(-1).float()
        return (states * weights).sum(1) / weights.sum(1).clamp_min(1)


def model(dropout: float = 0.0) -> Tiny:
    torch.manual_seed(0)
    return Tiny(dropout)


LENGTHS = [3, 17, 1, 9, 0, 17, 5, 8]
MASK = torch.arange(24) < torch.tensor(LENGTHS)[:, None]
BATCH = Batch(torch.where(MASK, (7 * torch.arange(len(LENGTHS))[:, None] + torch.arange(24)) % 19 + 1, 0), MASK.long())


def gradients(
    encode: Callable[[nn.Module], Tensor], dropout: float = 0.0, seed: int = 5
) -> tuple[Tensor, dict[str, Tensor]]:
    """Vectors and gradients of a loss that couples all rows."""
    tiny = model(dropout)
    torch.manual_seed(seed)
    vectors = encode(tiny)
    torch.log_softmax(vectors @ vectors.T, -1).diagonal().sum().backward()
    return vectors.detach(), {name: p.grad.clone() for name, p in tiny.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("tokens", [1, 24, 40, 10_000])
def test_vectors_come_in_the_batchs_order_with_the_same_gradients(tokens: int, recompute: bool) -> None:
    wanted, at_once = gradients(lambda tiny: tiny(BATCH))
    actual, parts = gradients(lambda tiny: in_chunks(tiny, BATCH, tokens=tokens, recompute=recompute))
    torch.testing.assert_close(actual, wanted)
    assert parts.keys() == at_once.keys()
    for name in at_once:
        torch.testing.assert_close(parts[name], at_once[name], msg=name)


def test_pieces_are_of_similar_length_and_cut_to_it() -> None:
    tiny = model()
    in_chunks(tiny, BATCH, tokens=48, recompute=False)
    assert tiny.passes == [(2, 24), (3, 16), (3, 8)]  # 17 17 | 9 8 5 | 3 1 0


def test_with_dropout_recomputing_gives_the_gradient_of_one_draw() -> None:
    """The second pass drops what the first dropped: the same as pieces that are kept, from the same seed."""
    kept, wanted = gradients(lambda tiny: in_chunks(tiny, BATCH, tokens=24, recompute=False), dropout=0.5)
    again, actual = gradients(lambda tiny: in_chunks(tiny, BATCH, tokens=24, recompute=True), dropout=0.5)
    torch.testing.assert_close(again, kept)
    for name in wanted:
        torch.testing.assert_close(actual[name], wanted[name], msg=name)
    _, reseeded = gradients(lambda tiny: in_chunks(tiny, BATCH, tokens=24, recompute=True), dropout=0.5, seed=6)
    assert any(not torch.allclose(reseeded[name], wanted[name]) for name in wanted)


def test_each_piece_is_run_again_once() -> None:
    tiny = model()
    in_chunks(tiny, BATCH, tokens=48, recompute=True).sum().backward()
    assert tiny.passes[:3] == [(2, 24), (3, 16), (3, 8)]
    assert sorted(tiny.passes[3:]) == sorted(tiny.passes[:3])


def test_whole_is_the_batch_as_it_is() -> None:
    tiny = model()
    with unchunked():
        in_chunks(tiny, BATCH, tokens=1, recompute=True).sum().backward()
    assert tiny.passes == [(8, 24)]
    in_chunks(tiny, BATCH, tokens=48, recompute=False)
    assert len(tiny.passes) == 4


def test_without_gradient_nothing_is_run_again() -> None:
    tiny = model()
    with torch.no_grad():
        vectors = in_chunks(tiny, BATCH, tokens=48, recompute=True)
    assert len(tiny.passes) == 3
    assert not vectors.requires_grad


@contextmanager
def counting() -> Iterator[list[int]]:
    """Numbers of elements of the tensors that are kept for a backward pass."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
            kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def test_recomputing_keeps_no_states_between_the_passes() -> None:
    """What is kept of the forward pass is as large as the vectors; without recomputing it grows with the tokens."""
    tokens = sum(LENGTHS)
    with counting() as kept:
        in_chunks(model(), BATCH, tokens=24, recompute=True)
    assert sum(kept) <= 4 * len(LENGTHS) * 6
    with counting() as kept:
        in_chunks(model(), BATCH, tokens=24, recompute=False)
    assert sum(kept) > 2 * tokens * 6


def test_taking_rows_cuts_ids_mask_and_segments() -> None:
    batch = Batch(torch.arange(48).reshape(2, 24), torch.ones(2, 24), torch.zeros(2, 24))
    taken = take_rows(batch, torch.tensor([1]), 9)
    assert taken.segments is not None
    assert taken.ids.shape == taken.mask.shape == taken.segments.shape == (1, 16)
    assert taken.ids[0, 0] == 24
    assert take_rows(batch, torch.tensor([0]), 24).ids.shape == (1, 24)
