"""Attention, dropout and embeddings for training on a CPU: the same mathematics and resuming, other random numbers."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.compute.fast_cpu import (
    LEAST_ROWS,
    NAME,
    Dropout,
    Embedding,
    _Attention,
    keep_mask,
    use_fast_cpu_ops,
)
from sparring.components.data.batches import Batch
from sparring.components.models.dual_encoder import DualEncoder
from tests.support import toy


def inputs(dtype: torch.dtype = torch.float64, length: int = 5) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, length, 4, generator=rng, dtype=dtype, requires_grad=True) for _ in range(3)]


def mask(length: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """The first text has two tokens fewer."""
    hidden = torch.zeros(2, 1, length, length, dtype=dtype)
    hidden[0, :, :, -2:] = torch.finfo(dtype).min
    return hidden


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_torchs(masked: bool) -> None:
    query, key, value = inputs()
    where = mask() if masked else None
    wanted = functional.scaled_dot_product_attention(query, key, value, attn_mask=where, scale=0.3)
    torch.testing.assert_close(_Attention.apply(query, key, value, where, 0.3, 0.0), wanted)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_gradient_is_that_of_the_forward_pass(dropout: float) -> None:
    def attended(*parts: Tensor) -> Tensor:
        torch.manual_seed(1)
        return _Attention.apply(*parts, mask(), 0.3, dropout)

    assert torch.autograd.gradcheck(attended, inputs())


def test_with_dropout_attention_is_that_of_the_weights_that_stay() -> None:
    query, key, value = inputs()
    torch.manual_seed(1)
    output = _Attention.apply(query, key, value, None, 0.3, 0.4)
    torch.manual_seed(1)
    weights = torch.softmax(query @ key.mT * 0.3, -1)
    torch.testing.assert_close(output, (weights * keep_mask(weights.shape, 0.4, weights.dtype) / 0.6) @ value)


def test_what_is_dropped_is_the_share_asked_for_and_hangs_on_the_seed() -> None:
    def drawn(seed: int, p: float = 0.1) -> Tensor:
        torch.manual_seed(seed)
        return keep_mask(torch.Size((401, 997)), p, torch.float32)

    first = drawn(3)
    assert torch.equal(first, drawn(3))
    assert not torch.equal(first, drawn(4))
    for p in (0.0, 0.1, 0.5, 0.9):
        spread = math.sqrt(p * (1 - p) / first.numel())
        assert abs(float(1 - drawn(3, p).mean()) - p) <= 4 * spread + 2**-16
    rows = first.double()
    assert abs(float(torch.corrcoef(torch.stack([rows[:, :-1].reshape(-1), rows[:, 1:].reshape(-1)]))[0, 1])) < 0.01


def test_dropout_keeps_the_mean_and_is_off_when_judging() -> None:
    torch.manual_seed(0)
    states = torch.ones(300, 300)
    dropout = Dropout(0.25)
    dropped = dropout(states)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    assert dropout.eval()(states) is states
    assert Dropout(0.0)(states) is states


class WithHead(nn.Module):
    """Token embeddings whose weights a language model's head shares, and small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.segments = nn.Embedding(LEAST_ROWS, 3, padding_idx=1), nn.Embedding(2, 3)
        self.head = nn.Linear(3, LEAST_ROWS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, *, head: bool) -> Tensor:
        states = (self.tokens(ids) + self.segments(ids % 2)).tanh()
        return self.head(states) if head else states


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_embeddings_have_torchs_gradient_update_after_update(head: bool, dtype: torch.dtype) -> None:
    """Over two passes, with tokens that repeat, padding, and a head that adds to the same matrix; in bf16 the memory is
    torch's."""
    torch.manual_seed(0)
    plain = WithHead().to(dtype)
    quick = copy.deepcopy(plain)
    use_fast_cpu_ops(quick)
    assert (type(quick.tokens), type(quick.segments)) == (Embedding, nn.Embedding)
    assert quick.head.weight is quick.tokens.weight
    places = set()
    for _ in range(2):
        passes = [torch.randint(50, (2, 9)) for _ in range(2)]
        for model in (plain, quick):
            model.zero_grad(set_to_none=True)
            for ids in passes:
                (model(ids, head=head).square().sum() + model(ids.flip(1) + 3, head=head).sum()).backward()
        plain_gradient, quick_gradient = plain.tokens.weight.grad, quick.tokens.weight.grad
        assert plain_gradient is not None
        assert quick_gradient is not None
        assert not quick_gradient.is_sparse
        torch.testing.assert_close(quick_gradient, plain_gradient)
        places.add(quick_gradient.data_ptr())
    assert dtype == torch.bfloat16 or len(places) == 1


def test_embeddings_that_nothing_reads_or_trains_have_no_gradient() -> None:
    model = WithHead()
    use_fast_cpu_ops(model)
    ids = torch.arange(4)
    with torch.no_grad():
        model(ids, head=False)
    assert model.tokens.weight.grad is None
    model.tokens.weight.requires_grad_(False)
    model(ids, head=False).sum().backward()
    assert model.tokens.weight.grad is None


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
def test_a_model_trains_as_it_did(toys: Path, kind: str) -> None:
    """Vectors and gradients without dropout are those of the plain model; with it each has a fast one."""
    folder = toy.write_encoder(toys / f"quick {kind}", kind)
    plain = DualEncoder.start(toy.retriever_config(folder, pooling="mean", dropout=None))[0].train()
    quick = copy.deepcopy(plain)
    use_fast_cpu_ops(quick)
    drops = [part for part in quick.modules() if isinstance(part, torch.nn.Dropout)]
    assert drops
    assert all(type(part) is Dropout for part in drops)
    lengths = torch.tensor([12, 7, 3])
    ids = torch.arange(36).view(3, 12) % 30 + 5
    batch = Batch(ids, (torch.arange(12) < lengths[:, None]).long())
    passes = []
    for model in (plain.eval(), quick.eval()):  # eval: no dropout
        vectors = model(batch, "query")
        vectors.pow(2).sum().backward()
        passes.append((vectors.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    torch.testing.assert_close(passes[1][0], passes[0][0])
    assert passes[0][1].keys() == passes[1][1].keys()
    for name, gradient in passes[0][1].items():
        torch.testing.assert_close(passes[1][1][name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_under_autocast_a_step_is_close_to_fp32(encoder: Path) -> None:
    model = DualEncoder.start(toy.retriever_config(encoder, pooling="mean", dropout=0.0))[0].train()
    use_fast_cpu_ops(model)
    ids = torch.arange(48).view(4, 12) % 30 + 5
    batch, gradients = Batch(ids, torch.ones_like(ids)), []
    for to_dtype in (False, True):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=to_dtype):
            vectors = model(batch, "query")
        vectors.pow(2).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert float(functional.cosine_similarity(gradients[0], gradients[1], dim=0)) > 0.999


@pytest.mark.parametrize("kind", ["qwen3", "mistral", "modernbert"])
@pytest.mark.parametrize("attention", ["usual", "bidirectional"])
def test_attention_of_other_families_is_theirs(toys: Path, kind: str, attention: str) -> None:
    """Heads that share keys and values, windows that are shorter than the text, and masks of every kind; so are the
    gradients."""
    folder = toy.write_encoder(toys / f"attention {kind} {attention}", kind)
    settings = {"attention": attention} if attention != "usual" and kind != "modernbert" else {}
    plain = DualEncoder.start(toy.retriever_config(folder, pooling="mean", **settings))[0]
    fast = copy.deepcopy(plain)
    use_fast_cpu_ops(fast)
    assert fast.tower("query").config._attn_implementation == NAME
    rng = torch.Generator().manual_seed(0)
    width = torch.arange(40)
    batch = Batch(torch.randint(5, 40, (3, 40), generator=rng), (width < torch.tensor([[40], [12], [30]])).long())
    vectors = [model(batch, "query") for model in (plain, fast)]
    torch.testing.assert_close(vectors[1], vectors[0], rtol=0, atol=1e-5)
    for rows in vectors:
        rows.square().sum().backward()
    for parameter, fast_parameter in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(fast_parameter.grad, parameter.grad, rtol=1e-3, atol=1e-4)


def test_attention_with_more_than_a_softmax_is_left_alone(toys: Path) -> None:
    """Gemma 2 caps its scores."""
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
    )
    model = transformers.AutoModel.from_config(config)
    use_fast_cpu_ops(model)
    assert model.config._attn_implementation == "eager"
