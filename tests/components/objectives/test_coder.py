"""CODER's batch: queries against given vectors, each distinct one once, under a temperature that learns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives.coder import Coder
from sparring.components.training.config import TemperatureConfig
from sparring.components.training.objective import ObjectiveInputs
from tests.support import toy
from tests.support.errors import refused
from tests.support.trainings import visits

DIVERGENCE = "components.losses.listwise.divergence"
ROWS = [
    {"query_id": "q0", "doc_ids": ["d0", "d5", "d6", "d39"], "targets": [0.5, 0.3, 0.0, 0.2]},
    {"query_id": "q1", "doc_ids": ["d6", "d1"], "targets": [0.0, 1.0]},
    {"query_id": "q3", "doc_ids": ["d5", "d3", "d5"], "targets": [0.2, 0.8, 0.0]},  # one twice
]


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """In two files, half precision, not of length 1."""
    (folder := tmp_path / "vectors").mkdir()
    numbers = np.random.default_rng(3).standard_normal((40, 32)).astype(np.float16)
    return toy.write_document_vectors(folder, [numbers[:17], numbers[17:]])


@pytest.fixture
def objective(tmp_path: Path, data: Path, tokens: Path, retriever: Path, vectors: Path) -> Any:
    def build(
        rows: list[dict[str, Any]] = ROWS,
        *,
        max_tokens: int = 10_000,
        recompute: bool = False,
        start: Path | None = None,
        losses: list[dict[str, Any]] | None = None,
        temperature: float = 1.0,
        **schedule: Any,
    ) -> Coder:
        groups = toy.write_groups(tmp_path / "groups", rows)
        return Coder(
            ObjectiveInputs(
                model=start or retriever / "model",
                rows=groups,
                data=data,
                tokens=tokens,
                losses=toy.train_config(losses=losses or [{"function": DIVERGENCE}]).losses,
                max_tokens=max_tokens,
                recompute=recompute,
            ),
            vectors=vectors,
            temperature=TemperatureConfig(start=temperature, **schedule),
        )

    return build


def numbers(vectors: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(vectors.glob("*.npy"))]).astype(np.float32)


def test_scores_are_inner_products_with_the_vectors_over_the_temperature(objective: Any, vectors: Path) -> None:
    coder = objective(temperature=0.25)
    coder.eval()
    batch = coder.collate(visits([0, 1, 2]))
    assert (batch.vectors.dtype, batch.vectors.shape) == (torch.float16, (6, 32))  # d0, d1, d3, d5, d6, d39, each once
    queries = coder.encode(batch)
    scores = coder._scores(queries, batch)
    assert scores.where.tolist() == [[True] * 4, [True, True, False, False], [True, True, False, False]]
    for row, group in enumerate(ROWS):
        for column, name in enumerate(group["doc_ids"]):
            wanted = queries[row].detach().numpy() @ numbers(vectors)[int(name[1:])] / 0.25
            assert scores.student[row, column].item() == pytest.approx(wanted, rel=1e-4, abs=1e-5)
            assert scores.target[row, column].item() == pytest.approx(group["targets"][column])


def test_each_row_is_the_divergence_from_its_own_targets(objective: Any, vectors: Path) -> None:
    coder = objective()
    coder.eval()
    batch = coder.collate(visits([0, 1]))
    queries = coder.encode(batch)
    ((total, count),) = coder.terms(queries, batch).values()
    wanted = 0.0
    for row, group in enumerate(ROWS[:2]):
        position = [int(name[1:]) for name in group["doc_ids"]]
        chances = torch.softmax(torch.from_numpy(numbers(vectors)[position]) @ queries[row].detach(), 0)
        wanted += sum(y * math.log(y / p) for y, p in zip(group["targets"], chances.tolist(), strict=True) if y)
    assert total.item() == pytest.approx(wanted, rel=1e-5)
    assert count == 2


def test_only_queries_and_the_temperature_learn(objective: Any) -> None:
    coder = objective()
    batch = coder.collate(visits([0, 1, 2]))
    ((total, _),) = coder.terms(coder.encode(batch), batch).values()
    total.backward()
    assert coder.model.moved.grad.abs() > 0
    learning = {name for name, item in coder.named_parameters() if item.grad is not None and item.grad.abs().max() > 0}
    assert {name.split(".")[1] for name in learning} == {"encoder", "moved"}
    assert not [name for name in learning if ".document." in name]
    assert all(not parameter.requires_grad for parameter in coder.model.encoder.tower("document").parameters())


def test_the_temperature_moves_as_many_times_as_fast_as_it_is_told(objective: Any) -> None:
    kept = objective(learned=False)
    assert not kept.model.moved.requires_grad
    for pace in (1.0, 20.0):
        coder = objective(pace=pace)
        coder.model.moved.data += 0.01
        assert coder.model.temperature().item() == pytest.approx(math.exp(0.01 * pace))


def test_what_is_saved_has_two_towers_and_the_temperature(objective: Any, retriever: Path, tmp_path: Path) -> None:
    """A training that goes on from it begins with its temperature, whatever the config says."""
    coder = objective()
    coder.model.moved.data += 0.5
    with torch.no_grad():
        for parameter in coder.model.encoder.tower("query").parameters():
            parameter.add_(0.01)
    coder.eval()
    coder.save(tmp_path / "model")
    assert json.loads((tmp_path / "model/temperature.json").read_text()) == {
        "temperature": pytest.approx(math.exp(0.5))
    }
    saved, begun = DualEncoder.load(tmp_path / "model").eval(), DualEncoder.load(retriever / "model").eval()
    texts = coder.collate(visits([0, 1, 2])).queries
    assert torch.equal(saved(texts, "document"), begun(texts, "document"))
    assert torch.equal(saved(texts, "query"), coder.model.encoder(texts, "query"))
    assert not torch.allclose(saved(texts, "query"), begun(texts, "query"))
    again = objective(start=tmp_path / "model")
    assert again.model.temperature().item() == pytest.approx(math.exp(0.5))
    assert again.model.encoder.config.towers == "separate"


def test_pieces_and_recomputing_change_nothing(objective: Any) -> None:
    whole, pieces = objective(), objective(max_tokens=8, recompute=True)
    for coder in (whole, pieces):
        coder.eval()
        batch = coder.collate(visits([0, 1, 2]))
        ((total, _),) = coder.terms(coder.encode(batch), batch).values()
        total.backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), pieces.named_parameters(), strict=True):
        if a.requires_grad and a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_vectors_of_another_retriever_and_losses_over_the_batch_are_refused(objective: Any, vectors: Path) -> None:
    with refused("losses", "unknown-view"):
        objective(losses=[{"function": DIVERGENCE, "over": "batch"}])
    for path in vectors.glob("*.npy"):
        np.save(path, np.load(path)[:, :30])
    with pytest.raises(ValueError, match="vectors have 30 numbers, but the retriever's query vectors have 32"):
        objective()


def test_of_a_retriever_that_is_cut_queries_are_as_short_as_documents(
    objective: Any, encoder: Path, tmp_path: Path, vectors: Path
) -> None:
    cut = toy.started(tmp_path / "cut", toy.retriever_config(encoder, truncate=30)) / "model"
    for path in vectors.glob("*.npy"):
        np.save(path, np.load(path)[:, :30])
    output = objective(start=cut)
    assert output.encode(output.collate(visits([0, 1, 2]))).shape[1] == 30


@pytest.mark.parametrize(
    "config",
    [{"projection": 6}, {"towers": "separate", "projection": 6, "share": ["projection", "embedder"]}],
    ids=["one tower", "shared parts"],
)
def test_what_towers_share_comes_apart(encoder: Path, tmp_path: Path, tokens: Path, config: dict[str, Any]) -> None:
    """The same vectors at first; then what is done to the queries' side does nothing to the documents'."""
    from sparring.components.data.token_store import TokenStore

    begun = toy.started(tmp_path / "begun", toy.retriever_config(encoder, pooling="mean", **config)) / "model"
    first, two = DualEncoder.load(begun).eval(), DualEncoder.load(begun).with_separate_towers().eval()
    store = TokenStore(tokens, begun)
    texts = store.template.texts(store.queries, np.arange(3), 8)
    assert all(torch.equal(first(texts, side), two(texts, side)) for side in ("query", "document"))
    with torch.no_grad():
        for part in (two.towers["query"], two.projections["query"]):
            for weights in part.parameters():
                weights.add_(0.01)
    assert torch.equal(first(texts, "document"), two(texts, "document"))
    assert not torch.allclose(first(texts, "query"), two(texts, "query"))
