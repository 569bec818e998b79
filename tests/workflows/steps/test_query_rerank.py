"""A reranker of expansions: what it reads, what it predicts, what it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.data.batches import Batch
from sparring.components.data.tables import ANSWER_RANKS, write
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.expansion import expansions
from sparring.components.expansion.query_reading import RerankerInputs
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.workflows.steps import choose, query_rerank
from sparring.workflows.steps.choose import rank_groups
from sparring.workflows.steps.query_rerank import PredictConfig, candidates, predict
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from tests.support import toy
from tests.support.expanded import place
from tests.support.trainings import lines

RANKING = "components.losses.query_ranks.ranking"


@pytest.fixture(scope="module")
def rerankers(chain: dict[str, Path], data: Path, ranker: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The candidates of a reranker that reads passages (`rd`) or not (`ri`), and their tokens."""
    folders = {}
    for kind, ranking in (("ri", None), ("rd", chain["ranking"])):
        out, tokens = tmp_path_factory.mktemp(kind), tmp_path_factory.mktemp(f"{kind}-tokens")
        candidates(out, toy.INLINE, data=data, expanded=chain["expanded"], ranking=ranking)
        tokenize(tokens, toy.INLINE, data=out, model=ranker, config=TokenizeConfig())
        folders[kind] = (out, tokens)
    return folders


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_predictions_are_what_the_model_says_of_the_papers_template(
    chain: dict[str, Path], data: Path, rerankers: Any, ranker: Path, tmp_path: Path, kind: str
) -> None:
    """`question ? expansion`, and for RD the first passage as the second text, through Hugging Face's own tokenizer."""
    view, tokens = rerankers[kind]
    out = place(tmp_path / "out")
    config = PredictConfig(precision="fp32", shard=30)
    predict(out, toy.INLINE, expanded=chain["expanded"], candidates=view, tokens=tokens, reranker=ranker, config=config)
    predicted = {row["doc_id"]: row["score"] for row in pq.read_table(out / query_rerank.PREDICTED).to_pylist()}
    model, tokenizer = CrossEncoder.load(ranker / "model").eval(), load_tokenizer(ranker / "model")
    questions = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    top = {
        row["query_id"]: row["doc_id"]
        for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist()
        if row["rank"] == 1
    }
    documents = {
        row["doc_id"]: f"{row['title']} {row['text']}".strip()
        for row in pq.read_table(data / "documents.parquet").to_pylist()
    }
    rows = pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()
    assert len(predicted) == len(rows)
    for row in [row for row in rows if row["query_id"] != "q4"][::7]:
        texts = [f"{questions[row['query_id']]} ? {row['text']}"]
        if kind == "rd":
            texts.append(documents[top[row["doc_id"]]])
        wrapped = tokenizer(*texts, truncation="longest_first" if kind == "rd" else True, max_length=24)
        batch = Batch(*(torch.tensor([wrapped[name]]) for name in ("input_ids", "attention_mask", "token_type_ids")))
        if kind == "ri":
            batch = batch._replace(segments=None)
        with torch.inference_mode():
            assert predicted[row["doc_id"]] == pytest.approx(model(batch).item(), abs=1e-5)


def test_passages_are_looked_up_once_each(chain: dict[str, Path], rerankers: Any) -> None:
    view, _ = rerankers["rd"]
    names = pq.read_table(view / "documents.parquet")["doc_id"].to_pylist()
    first = [
        row["doc_id"] for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist() if row["rank"] == 1
    ]
    passages = [name for name in names if "#" not in name]
    assert sorted(passages) == sorted(set(first))
    top = np.load(view / "top.npy")
    assert (top >= len(names) - len(passages) - 1).all()
    assert {names[place] for place in top} == set(first) | {"#"}  # q4's read an empty one


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_a_trained_reranker_chooses_better_than_the_generator(
    chain: dict[str, Path], data: Path, rerankers: Any, ranker: Path, tmp_path: Path, kind: str
) -> None:
    """It learns its training queries' ranks: its choices come nearer to the oracle's than the first expansions, here
    the worst, are."""
    view, tokens = rerankers[kind]
    worst = _turned_round(chain, tmp_path)
    groups = place(tmp_path / "groups")
    rank_groups(
        groups, toy.INLINE, data=data, ranks=worst, split="train", max_rank=101, queries=None, candidates=None, seed=[1]
    )
    config = toy.train_config(
        updates=60,
        batch=8,
        learning_rate=5e-3,
        schedule="noam",
        clip=None,
        log_every=20,
        losses=[{"function": RANKING, "options": {"alpha": 0.1}}],
        validate_on_dev={"every": 10, "measure": "rank"},
    )
    out = place(tmp_path / "out")
    summary = train(
        out,
        toy.INLINE,
        objective="query_reranker",
        rows=groups,
        dev=groups,
        data=view,
        tokens=tokens,
        start=ranker,
        seed=[1],
        config=config,
    )
    assert summary["peak_learning_rate"] == pytest.approx(5e-3)
    assert summary["noam_multiplier"] == pytest.approx(5e-3 * 6**0.5)
    looks = {line["update"]: line["dev rank"] for line in lines(out) if "dev rank" in line}
    assert summary["best"]["value"] == min(looks.values()) == looks[summary["best"]["update"]]
    losses = [line["ranking (group)"] for line in lines(out) if "ranking (group)" in line]
    assert losses[-1] < 0.7 * losses[0]
    predicted = place(tmp_path / "predicted")
    predict(
        predicted,
        toy.INLINE,
        expanded=chain["expanded"],
        candidates=view,
        tokens=tokens,
        reranker=out,
        config=PredictConfig(precision="fp32"),
    )
    ranks = {row["doc_id"]: row["rank"] or 101 for row in pq.read_table(worst / "ranks.parquet").to_pylist()}
    means = {}
    for name, scores in (("first", None), ("reranker", predicted), ("oracle", worst)):
        chosen = place(tmp_path / name)
        choose.choose(
            chosen,
            toy.INLINE,
            data=data,
            expanded=chain["expanded"],
            ranking=chain["ranking"],
            scores=scores,
            otherwise=chain["found"],
            split="train",
            number=None,
        )
        choices = pq.read_table(chosen / choose.CHOICES)["doc_id"].to_pylist()
        means[name] = np.mean([ranks[choice] for choice in choices])
    assert means["oracle"] <= means["reranker"] < means["first"]


def _turned_round(chain: dict[str, Path], tmp_path: Path) -> Path:
    """Ranks that say that the last expansion is the best."""
    table = pq.read_table(chain["ranks"] / "ranks.parquet")
    numbers = [int(name.partition("#")[2]) for name in table["doc_id"].to_pylist()]
    out = place(tmp_path / "turned")
    write(
        out / "ranks.parquet",
        table.set_column(2, "rank", pa.array([70 - 10 * n for n in numbers], pa.int32())),
        ANSWER_RANKS,
    )
    return out


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_the_public_codes_templates(
    chain: dict[str, Path], data: Path, ranker: Path, tmp_path: Path, kind: str
) -> None:
    """`[CLS] question [SEP] expansion [SEP] (title [SEP] passage [SEP])`, put together by hand, of one segment."""
    view, tokens = place(tmp_path / "view"), place(tmp_path / "tokens")
    query_rerank.candidates_released(
        view, toy.INLINE, data=data, expanded=chain["expanded"], ranking=chain["ranking"] if kind == "rd" else None
    )
    tokenize(tokens, toy.INLINE, data=view, model=ranker, config=TokenizeConfig())
    reading = RerankerInputs.stored(view, TokenStore(tokens, ranker / "model"), 24)
    tokenizer = load_tokenizer(ranker / "model")
    questions = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    top = {
        row["query_id"]: row["doc_id"]
        for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist()
        if row["rank"] == 1
    }
    documents = {row["doc_id"]: row for row in pq.read_table(data / "documents.parquet").to_pylist()}
    rows = pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()
    batch = reading.batch(np.arange(len(rows)))
    assert batch.segments is None
    assert reading.lengths(np.arange(len(rows))).tolist() == batch.mask.sum(1).tolist()
    for number, row in enumerate(rows):
        texts = [questions[row["query_id"]], row["text"]]
        if kind == "rd":
            first = documents.get(top.get(row["doc_id"], ""), {"title": "", "text": ""})
            texts += [first["title"], first["text"]]
        parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        room, wanted = 24 - 1 - len(parts), [tokenizer.cls_token_id]
        for ids in parts:
            wanted += [*ids[:room], tokenizer.sep_token_id]
            room -= len(ids[:room])
        assert batch.ids[number][batch.mask[number] > 0].tolist() == wanted
