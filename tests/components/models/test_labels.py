"""Rankers made from classifiers with several labels, of which one is the score."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers

from sparring.components.config import UserError
from sparring.components.models import pretrained
from sparring.components.models.cross_encoder import CrossEncoder
from tests.support import toy

PAIRS = [("bara nami", "bara"), ("nami", "nami nami bara"), ("bara", "nami")]


def classifier(folder: Path, kind: str, labels: int = 3) -> Path:
    """A classifier of transformers'."""
    source = toy.write_encoder(folder / "base", kind, seed=4)
    config = transformers.AutoConfig.from_pretrained(source, num_labels=labels)
    config.id2label = dict(enumerate(["no", "maybe", "yes"][:labels]))
    torch.manual_seed(5)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(str(source), config=config)
    shutil.copytree(source, folder / "classifier")
    model.save_pretrained(str(folder / "classifier"))
    return folder / "classifier"


@pytest.mark.parametrize("kind", ["bert", "roberta", "mistral"])
@pytest.mark.parametrize("options", [{"label": 2}, {"label": "yes", "other_label": 0}])
def test_the_score_is_the_logit_of_a_label(tmp_path: Path, kind: str, options: dict[str, int | str]) -> None:
    """Also in sentence-transformers, which loads the saved ranker as one with a single label."""
    from sentence_transformers import CrossEncoder as Theirs

    source = classifier(tmp_path, kind)
    expected = transformers.AutoModelForSequenceClassification.from_pretrained(str(source)).eval()
    if kind == "mistral":
        options = {**options, "template": "{query}</s>{document}</s>"}
    config = toy.ranker_config(source, dropout=None, pooling=None, pair_tokens=60, **options)
    model, tokenizer = CrossEncoder.start(config)
    tokenizer.save_pretrained(str(tmp_path / "tokenizer"))
    model.save(tmp_path / "saved", tmp_path / "tokenizer")
    scores = Theirs(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    again, _ = CrossEncoder.start(toy.ranker_config(tmp_path / "saved", dropout=None, pooling=None, pair_tokens=None))
    assert again.config.label is None
    for (query, document), score in zip(PAIRS, scores, strict=True):
        inputs = tokenizer(query, document, truncation=True, max_length=60, return_tensors="pt")
        with torch.no_grad():
            logits = expected(**inputs).logits[0]
        wanted = logits[2] - logits[0] if "other_label" in options else logits[2]
        assert float(score) == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("making", [nullcontext, pretrained.shapes_alone])
@pytest.mark.parametrize(("key", "label"), [("label", 3), ("label", "perhaps"), ("other_label", "perhaps")])
def test_an_unknown_label_is_refused(tmp_path: Path, making: type, key: str, label: int | str) -> None:
    source = classifier(tmp_path, "bert")
    options = {"label": 0, key: label}
    with making(), pytest.raises(UserError, match=rf"{key}: got .*: 0 \(no\), 1 \(maybe\), 2 \(yes\)"):
        CrossEncoder.start(toy.ranker_config(source, dropout=None, pooling=None, **options))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"label": 1, "pooling": "mean"}, "label: only a classifier has labels"),
        ({"label": 1, "adapter": {"rank": 2}}, "label: only a classifier has labels"),
        ({"other_label": 1}, "other_label: it is subtracted"),
        ({"label": 1, "other_label": 1}, "other_label: it is subtracted"),
    ],
)
def test_labels_that_contradict_other_keys_are_refused(tmp_path: Path, options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        toy.ranker_config(tmp_path, **{"pooling": None, **options})
