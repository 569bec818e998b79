"""Losses over the first dimensions of vectors: those of sentence-transformers, and of a loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.losses.listwise import cross_entropy
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives.parts.compatibility import check_training
from sparring.components.objectives.ranker import Ranker
from sparring.components.objectives.retriever import Retriever
from sparring.components.training.config import TrainConfig
from sparring.components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.errors import refused
from tests.support.trainings import visits

ROWS = [{"query_id": f"q{i}", "doc_ids": [f"d{i}", f"d{i + 12}"]} for i in (1, 2, 4, 5)]
PREFIXES = [32, 16, 8, 3]


@pytest.fixture
def objective(tmp_path: Path, data: Path, tokens: Path, encoder: Path) -> Any:
    """Builds a retriever's objective, with the given similarity, over four groups."""

    def build(
        losses: list[Any], similarity: str = "cosine", rows: Any = ROWS, piece: int = 10_000, recompute: bool = False
    ) -> Retriever:
        start = tmp_path / similarity
        if not start.exists():
            toy.started(start, toy.retriever_config(encoder, similarity=similarity, pooling="mean"))
        inputs = ObjectiveInputs(
            model=start / "model",
            rows=toy.write_groups(tmp_path / f"groups-{len(rows[0]['doc_ids'])}", rows),
            data=data,
            tokens=tokens,
            losses=toy.train_config(losses=losses).losses,
            max_tokens=piece,
            recompute=recompute,
        )
        return Retriever(inputs)

    return build


def loss(**options: Any) -> dict[str, Any]:
    return {"function": toy.CROSS_ENTROPY, "options": {"temperature": 0.05}, **options}


def test_values_and_gradients_are_those_of_sentence_transformers(objective: Any, tmp_path: Path) -> None:
    """Its MatryoshkaLoss over MultipleNegativesRankingLoss, with weights, over the same texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

    weights = [1.0, 0.5, 2.0, 1.0]
    pairs = [{**row, "doc_ids": row["doc_ids"][:1]} for row in ROWS]
    actual = objective([loss(over="batch", dimensions=PREFIXES, dimension_weights=weights)], rows=pairs)
    batch = actual.collate(visits(range(4)))
    terms = actual.terms(actual.encode(batch), batch)
    assert list(terms) == [f"cross_entropy (batch, {prefixe} dimensions)" for prefixe in PREFIXES]
    value = sum(term.value / term.rows for term in terms.values())
    value.backward()

    reference = SentenceTransformer(str(tmp_path / "cosine/model"), device="cpu")
    inner = MultipleNegativesRankingLoss(reference, scale=20.0)
    documents = batch.documents._replace(
        ids=batch.documents.ids[batch.columns[:, 0]], mask=batch.documents.mask[batch.columns[:, 0]]
    )
    texts = [{"input_ids": item.ids, "attention_mask": item.mask} for item in (batch.queries, documents)]
    expected = MatryoshkaLoss(reference, inner, PREFIXES, weights)(texts, torch.zeros(4))
    expected = expected if isinstance(expected, torch.Tensor) else sum(expected.values())
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    itself = dict(actual.model.tower("document").named_parameters())
    compared = 0
    for name, parameter in reference[0].auto_model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(itself[name].grad, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_loss_is_a_loop_over_prefixes(objective: Any, similarity: str) -> None:
    """Cosines are of the shorter vectors; inner products of them as they are."""
    actual = objective([loss(over="group", dimensions=PREFIXES[1:], weight=0.5)], similarity)
    batch = actual.collate(visits(range(4)))
    queries, documents = actual.encode(batch)
    whole = objective([loss(over="group")], similarity)
    for size, term in zip(PREFIXES[1:], actual.terms((queries, documents), batch).values(), strict=True):
        cut = [item[:, :size] for item in (queries, documents)]
        cut = [functional.normalize(item, dim=-1) for item in cut] if similarity == "cosine" else cut
        values = cross_entropy(whole.scores(tuple(cut), batch)(whole.inputs.losses[0]), temperature=0.05)
        torch.testing.assert_close(term.value, 0.5 * values.sum())


@pytest.mark.parametrize("dimensions", [[16, 8], None])
def test_the_saved_model_names_the_sizes_that_it_was_trained_for(
    objective: Any, tmp_path: Path, encoder: Path, dimensions: list[int] | None
) -> None:
    """For this project and for vLLM. A training without them takes the names of an earlier one away."""
    actual, folder = objective([loss(over="batch", dimensions=dimensions)]), tmp_path / "saved"
    actual.model.tower("document").config.matryoshka_dimensions = [4]
    actual.model.save(folder, encoder)
    expected = None if dimensions is None else sorted(dimensions)
    assert DualEncoder.load(folder).config.matryoshka == expected
    assert json.loads((folder / "config.json").read_text())["matryoshka_dimensions"] == expected
    again = toy.started(tmp_path / "again", toy.retriever_config(folder, query_tokens=8, document_tokens=24))
    assert DualEncoder.load(again / "model").config.matryoshka == expected


def test_gradient_caching_changes_no_gradient(objective: Any) -> None:
    losses = [loss(over="batch", dimensions=PREFIXES)]
    gradients = []
    for options in ({}, {"piece": 40, "recompute": True}):
        actual = objective(losses, **options)
        batch = actual.collate(visits(range(4)))
        torch.stack([term.value for term in actual.terms(actual.encode(batch), batch).values()]).sum().backward()
        gradients.append({name: item.grad for name, item in actual.named_parameters() if item.grad is not None})
    whole, in_pieces = (torch.cat([gradient[name].flatten() for name in gradients[0]]) for gradient in gradients)
    assert float((in_pieces - whole).norm() / whole.norm()) < 1e-4


def test_mistakes_are_named(objective: Any, tmp_path: Path, data: Path, tokens: Path, ranker: Path) -> None:
    with pytest.raises(UserError, match="dimensions: got 64, but the retriever's vectors have 32 dimensions"):
        objective([loss(over="batch", dimensions=[64, 8])])
    with pytest.raises(UserError, match=r"dimension_weights: got 1 weights for 2 `dimensions`"):
        toy.train_config(losses=[loss(dimensions=[8, 4], dimension_weights=[1.0])])
    with refused("losses.0.dimensions.1", "too-small"):
        toy.train_config(losses=[loss(dimensions=[8, 0])])
    config: TrainConfig = toy.train_config(losses=[loss(dimensions=[8])])
    with pytest.raises(ValueError, match="warm: losses: dimensions: `over: group` of the objective ranker has no"):
        check_training("ranker", config, "warm")
    check_training("retriever", config, "warm")
    check_training("diffcse_retriever", config, "warm")
    inputs = ObjectiveInputs(
        model=ranker / "model",
        rows=toy.write_groups(tmp_path / "rows", ROWS),
        data=data,
        tokens=tokens,
        losses=config.losses,
        max_tokens=100,
        recompute=False,
    )
    with pytest.raises(UserError, match="losses: dimensions: the objective ranker has no vectors to cut"):
        Ranker(inputs)


def test_a_config_without_dimensions_is_what_it_was() -> None:
    """So no experiment moves to another place."""
    dumped = toy.train_config(losses=[loss()]).model_dump()["losses"][0]
    assert not {"dimensions", "dimension_weights"} & dumped.keys()
