"""What holds for every objective of pre-training, and every variant of SimLM's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.pretrainings import VARIANTS, Artifacts, Variant, run
from tests.support.trainings import Interrupted, assert_close, assert_same, checked, lines, visits

ALL = pytest.mark.parametrize("name", list(VARIANTS))
PREDICTING = pytest.mark.parametrize("name", [name for name in VARIANTS if name != "ICT"])


def losses(objective: Any, rows: list[int]) -> dict[str, float]:
    """The mean of each term over some documents, without dropout."""
    objective.eval()
    batch = objective.collate(visits(rows))
    with torch.no_grad():
        terms = objective.terms(objective.encode(batch), batch)
    return {name: float(term.value) / term.rows for name, term in terms.items()}


@ALL
def test_the_gradient_in_pieces_is_that_of_one_pass(pretraining: Artifacts, name: str) -> None:
    assert checked(pretraining.objective(VARIANTS[name], max_tokens=60, recompute=True)) < 1e-4


@pytest.mark.parametrize("name", ["joint", "coCondenser"])
def test_training_lowers_every_loss(pretraining: Artifacts, tmp_path: Path, name: str) -> None:
    variant = VARIANTS[name]
    run(pretraining.objective(variant), tmp_path / "a", variant, updates=20, learning_rate=5e-3)
    result = lines(tmp_path / "a")
    for term in (key for key in result[0] if key.endswith(")")):
        first, last = (sum(line[term] for line in part) for part in (result[:4], result[-4:]))
        assert last < 0.9 * first, term


@pytest.mark.parametrize("name", ["SimLM", "coCondenser"])
def test_killed_and_resumed_is_as_never_killed(pretraining: Artifacts, tmp_path: Path, name: str) -> None:
    """With bf16, parts of a batch, and dropout of the generator too."""
    variant = VARIANTS[name]
    actual = {"bottleneck": {"generator_dropout": True}} if name == "SimLM" else {"bottleneck": variant.bottleneck}
    options = {"updates": 4, "accumulate": 2, "precision": "bf16"}

    def made() -> Any:
        return pretraining.objective(Variant(variant.objective, variant.views, actual["bottleneck"], variant.generator))

    run(made(), tmp_path / "a", variant, **options)
    for stop in (1, 3):
        with pytest.raises(Interrupted):
            run(made(), tmp_path / "b", variant, stop=stop, **options)
    run(made(), tmp_path / "b", variant, **options)
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", ["SimLM", "mlm"])
def test_an_accumulated_batch_is_the_large_batch(pretraining: Artifacts, tmp_path: Path, name: str) -> None:
    for place, accumulate in (("a", 1), ("b", 4)):
        objective = pretraining.objective(VARIANTS[name])
        run(objective, tmp_path / place, VARIANTS[name], updates=2, accumulate=accumulate)
    assert_close(tmp_path / "a", tmp_path / "b")


@PREDICTING
def test_padding_changes_nothing(pretraining: Artifacts, name: str) -> None:
    """Documents predicted one by one, each with no more padding than it needs, have the losses of a batch of them."""
    variant = VARIANTS[name]
    alone = Variant(
        variant.objective, tuple(v for v in variant.views if v != "batch"), variant.bottleneck, variant.generator
    )
    objective, rows = pretraining.objective(alone, max_tokens=10_000), [1, 2, 3, 4]
    together = losses(objective, rows)
    item = [losses(objective, [row]) for row in rows]
    for term, value in together.items():
        assert value == pytest.approx(np.mean([entry[term] for entry in item]), rel=1e-5)


@ALL
def test_random_choices_differ_between_visits_and_not_between_workers(pretraining: Artifacts, name: str) -> None:
    """What is masked, drawn and cut for a document is a matter of (seed, row, visit), whatever stands beside it."""
    objective = pretraining.objective(VARIANTS[name])

    def parts(batch: Any, row: int, count: int) -> list[Tensor]:
        """The tensors of the document at a place; spans stand behind the first spans of all documents."""
        rows = [row, row + count] if name == "coCondenser" else [row]
        flat = [*batch.queries[:2], *batch.documents[:2]] if name == "ICT" else [p for p in batch if p is not None]
        return [part[rows] for part in flat if part.ndim > 1]

    first, again = (parts(objective.collate(visits([row, 4])), 1, 2) for row in (3, 9))
    for item, same in zip(first, again, strict=True):
        width = min(item.shape[1], same.shape[1])
        assert torch.equal(item[:, :width], same[:, :width])
    later = [parts(objective.collate([visits([4])[0]._replace(visit=v)]), 0, 1) for v in range(1, 6)]
    if name not in ("ICT", "AutoEncoder"):  # toy documents are a sentence each; AutoEncoder draws nothing
        shorter = [min(item.shape[1] for item in same) for same in zip(first, *later, strict=True)]
        cut = [
            [part[:, :width].tolist() for part, width in zip(item, shorter, strict=True)] for item in (first, *later)
        ]
        assert all(item != cut[0] for item in cut[1:])


@PREDICTING
def test_nothing_is_masked_or_predicted_but_text(pretraining: Artifacts, name: str) -> None:
    """No special token, and no padding."""
    objective = pretraining.objective(VARIANTS[name])
    batch = objective.collate(visits(range(40)))
    tokenizer_special = torch.tensor([0, 2, 3, 4])  # [PAD], [CLS], [SEP], [MASK] of the toy vocabulary
    wanted = batch.wanted if name == "mlm" else batch.ids
    special = torch.isin(wanted, tokenizer_special)
    for where in objective.predicted(batch).values():
        assert not (where & special).any()
    if name != "mlm":
        assert not (batch.encoder_masked & ~batch.decoder_masked).any()
        assert not (batch.decoder_masked & special).any()
