"""The ranker: its heads, and exports that give the same scores in the libraries people use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.config import UserError
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.models.cross_encoder import CrossEncoder
from tests.support import toy

DRAW = np.random.default_rng(1)
# Pairs within the limit, with either side too long, and with both.
LENGTHS = [(1, 1), (2, 5), (4, 30), (30, 4), (30, 30), (9, 12), (11, 10)]
PAIRS = [(toy.some_text(DRAW, a), toy.some_text(DRAW, b)) for a, b in LENGTHS]
KIND = pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
POOLING = pytest.mark.parametrize("pooling", ["cls", "first", "mean", "maxsim"])
TYPED = ("bert", "distilbert", "electra")
"""Those whose tokenizers give token types."""


@pytest.fixture(scope="module")
def encoders(toys: Path) -> dict[str, Path]:
    kinds = ("bert", "roberta", "distilbert", "electra")
    return {kind: toy.write_encoder(toys / "pair encoders" / kind, kind, seed=3) for kind in kinds}


def ours(model: CrossEncoder, folder: Path, written: list[tuple[str, str]]) -> np.ndarray:
    """Scores by way of token ids, as the steps make them."""
    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    encoded = [tokenizer(list(side), add_special_tokens=False)["input_ids"] for side in zip(*written, strict=True)]
    rows = np.arange(len(written))[:, None].repeat(2, 1)
    with torch.no_grad():
        return model.eval()(template.pairs(*map(Tokens.of, encoded), rows, model.config.pair_tokens)).numpy()


def exported(tmp_path: Path, model_folder: Path, **options: Any) -> tuple[CrossEncoder, Path]:
    model, _ = CrossEncoder.start(toy.ranker_config(model_folder, dropout=None, **options))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "bias" in name and value.numel() == 1:
                value.add_(0.3)  # a head that came without its bias would show
            elif name.startswith(("head", "backbone.classifier", "backbone.pre_classifier")):
                value.mul_(20)  # scores far from each other, beyond what a sigmoid would leave
    model.save(tmp_path / "model", model_folder)
    return model, tmp_path / "model"


@KIND
@POOLING
def test_scores_are_the_same_in_sentence_transformers(
    tmp_path: Path, encoders: dict[str, Path], kind: str, pooling: str
) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    if pooling == "maxsim" and kind not in TYPED:
        with pytest.raises(UserError, match=r"pooling: maxsim needs token types, .* has none"):
            exported(tmp_path, encoders[kind], pooling=pooling)
        return
    model, folder = exported(tmp_path, encoders[kind], pooling=pooling)
    wanted = ours(model, folder, PAIRS)
    result = Theirs(str(folder), device="cpu", trust_remote_code=pooling == "maxsim").predict(PAIRS)
    assert result.shape == (len(PAIRS),)
    assert wanted.std() > 0.1
    np.testing.assert_allclose(result, wanted, rtol=0, atol=2e-5)


@KIND
def test_the_first_token_through_one_linear_layer(tmp_path: Path, encoders: dict[str, Path], kind: str) -> None:
    """No dense layer, activation or dropout between the state and the score, which a classification head has."""
    model, folder = exported(tmp_path, encoders[kind], pooling="first")
    template = Template.of(load_tokenizer(folder))
    batch = template.pairs(Tokens.of([[80, 81]]), Tokens.of([[90, 91, 92]]), np.array([[0, 0]]), 24)
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    assert isinstance(model.head, torch.nn.Linear)
    with torch.no_grad():
        states = model.eval().backbone(input_ids=batch.ids, attention_mask=batch.mask, **segments).last_hidden_state
        wanted = states[0, 0] @ model.head.weight[0] + model.head.bias[0]
        np.testing.assert_allclose(model(batch).item(), wanted.item(), rtol=1e-5)
    actual = sum(parameter.numel() for parameter in model.parameters()) - sum(
        parameter.numel() for parameter in model.backbone.parameters()
    )
    assert actual == states.shape[-1] + 1


@KIND
def test_with_cls_pooling_it_loads_with_transformers_alone(
    tmp_path: Path, encoders: dict[str, Path], kind: str
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, folder = exported(tmp_path, encoders[kind])
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    loaded = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    first, second = zip(*PAIRS, strict=True)
    inputs = tokenizer(
        list(first), list(second), padding=True, truncation="longest_first", max_length=24, return_tensors="pt"
    )
    with torch.no_grad():
        result = loaded(**inputs).logits
    assert result.shape == (len(PAIRS), 1)
    np.testing.assert_allclose(result[:, 0].numpy(), ours(model, folder, PAIRS), rtol=0, atol=2e-5)


@POOLING
def test_what_is_saved_loads_as_it_was(tmp_path: Path, encoders: dict[str, Path], pooling: str) -> None:
    model, folder = exported(tmp_path, encoders["bert"], pooling=pooling, layers=1)
    again = CrossEncoder.load(folder)
    again.save(tmp_path / "two", folder)
    third = CrossEncoder.load(tmp_path / "two")
    wanted, weights = ours(model, folder, PAIRS), model.state_dict()
    for loaded, place in ((again, folder), (third, tmp_path / "two")):
        assert loaded.config == model.config
        assert loaded.state_dict().keys() == weights.keys()
        assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items())
        # Where a weight lies in memory moves the last bit of a product.
        np.testing.assert_allclose(ours(loaded, place, PAIRS), wanted, rtol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", "first", "mean"])
def test_the_new_head_depends_on_its_seed_alone(encoders: dict[str, Path], pooling: str) -> None:
    def head(seed: int) -> torch.Tensor:
        model, _ = CrossEncoder.start(toy.ranker_config(encoders["bert"], pooling=pooling, seed=seed))
        return model.head.weight if model.head is not None else model.backbone.classifier.weight

    torch.manual_seed(1)
    first = head(5)
    torch.manual_seed(2)
    assert torch.equal(head(5), first)
    assert not torch.equal(head(6), first)


def test_a_pair_is_told_apart_by_its_segments(tmp_path: Path, encoders: dict[str, Path]) -> None:
    """A BERT-like ranker reads which side a token is on: swapped segments score otherwise."""
    model, folder = exported(tmp_path, encoders["bert"], pooling="mean")
    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    batch = template.pairs(Tokens.of([[80, 81]]), Tokens.of([[90, 91, 92]]), np.array([[0, 0]]), 24)
    assert batch.segments is not None
    second = batch._replace(segments=1 - batch.segments)
    with torch.no_grad():
        straight, swapped = (float(model.eval()(item)) for item in (batch, second))
    assert abs(straight - swapped) > 1e-4


def test_scores_do_not_depend_on_what_is_padded_beside_them(tmp_path: Path, encoders: dict[str, Path]) -> None:
    for kind, place in encoders.items():
        for pooling in ("cls", "first", "mean", *(["maxsim"] if kind in TYPED else [])):
            model, folder = exported(tmp_path / kind / pooling, place, pooling=pooling)
            alone = np.concatenate([ours(model, folder, [pair]) for pair in PAIRS])
            np.testing.assert_allclose(
                ours(model, folder, PAIRS), alone, rtol=0, atol=2e-5, err_msg=f"{kind} {pooling}"
            )


def test_half_precision_scores_come_in_fp32(tmp_path: Path, encoders: dict[str, Path]) -> None:
    for pooling in ("cls", "first", "mean", "maxsim"):
        model, folder = exported(tmp_path / pooling, encoders["bert"], pooling=pooling)
        wanted = ours(model, folder, PAIRS)
        result = ours(model.to_dtype(torch.bfloat16), folder, PAIRS)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, wanted, atol=0.1 + 0.05 * np.abs(wanted).max())


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_scores_of_a_linear_head_are_fp32_in_training_too(
    tmp_path: Path, encoders: dict[str, Path], pooling: str
) -> None:
    """In bf16 most of them would be equal: it has no numbers between 10 and 10.06."""
    model, folder = exported(tmp_path, encoders["bert"], pooling=pooling)
    with torch.no_grad():
        model.head.bias += 10
    pairs = [(f"bara {a}", f"comi {b}") for a in ("gimi", "lora", "fera") for b in ("dutol", "cora", "bami")]
    with torch.autocast("cpu", torch.bfloat16):
        result = ours(model, folder, pairs)
    assert result.dtype == np.float32
    assert len(set(result.tolist())) == len(pairs)


def test_late_interaction_by_hand(tmp_path: Path, encoders: dict[str, Path]) -> None:
    """The mean over the query's tokens of the highest cosine with a token of the document, times 20."""
    model, folder = exported(tmp_path, encoders["bert"], pooling="maxsim")
    tokenizer = load_tokenizer(folder)
    for query, document in PAIRS:
        inputs = tokenizer(query, document, truncation="longest_first", max_length=24, return_tensors="pt")
        with torch.no_grad():
            states = model.backbone(**inputs).last_hidden_state[0].numpy()
        states /= np.linalg.norm(states, axis=1, keepdims=True)
        side = inputs["token_type_ids"][0].numpy()
        best = [max(float(state @ second) for second in states[side == 1]) for state in states[side == 0]]
        assert ours(model, folder, [(query, document)])[0] == pytest.approx(20 * np.mean(best), abs=1e-4)
