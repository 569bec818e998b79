"""The mechanism of Zerveas et al. (2023) where everything is known: a collection whose relevant documents are mostly
unlabelled.

Each topic has words of its own for documents and others for queries, and six documents. Every document of a query's
topic is relevant to it: the judgements are complete. Of these the training sees one; the others are hidden, and stand
among the candidates as negatives. Test queries ask in other words, and are measured by all judgements.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import DOCUMENTS, QRELS, QUERIES
from sparring.components.evaluation.measures import means, per_query
from sparring.components.training.config import TemperatureConfig
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.search import SearchConfig, search
from sparring.workflows.steps.smooth import ContextConfig, SmoothConfig, contexts, smooth
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from tests.support import toy

TOPICS, EACH = 8, 6
OF_DOCUMENTS, OF_QUERIES = toy.WORDS[:16], toy.WORDS[16:]  # two of each are a topic's own
SPLITS = {"train": 4, "test": 2}  # queries of a topic
MIXED = {"similarity": {"k": 5, "k_exp": 3, "geometric": "max-min", "mix": 0.5}, "n_max": EACH, "boost": 1.2}
ALONE = resolve_machine(
    Cluster(mode="inline", device="cpu", max_tokens_per_pass=256, train={"threads": 1}, map={"threads": 1})
)
KINDS: dict[str, dict[str, Any] | None] = {
    "labels alone": None,
    "evidence": MIXED,
    "uniform": {**MIXED, "labels": "uniform"},
}


def write_collection(folder: Path) -> set[tuple[str, str]]:
    """The tables, whose qrels of the training split have one document a query; all that are relevant."""
    folder.mkdir()
    rng = np.random.default_rng(11)
    documents, queries, labelled, relevant = [], [], [], set()
    for topic in range(TOPICS):
        document_words, query_words = (words[2 * topic : 2 * topic + 2] for words in (OF_DOCUMENTS, OF_QUERIES))
        for number in range(EACH):
            words = [*rng.choice(document_words, 5).tolist(), *rng.choice(OF_DOCUMENTS, 3).tolist()]
            documents.append({"doc_id": f"d{topic}-{number}", "title": "", "text": " ".join(words)})
        for split, count in SPLITS.items():
            for number in range(count):
                query = f"{split}{topic}-{number}"
                words = rng.permutation([*query_words, *rng.choice(OF_QUERIES, 2).tolist()]).tolist()
                queries.append({"query_id": query, "text": " ".join(words), "answers": [], "split": split})
                relevant |= {(query, f"d{topic}-{i}") for i in range(EACH)}
                labelled.append((query, f"d{topic}-0", split))
    judged = [judgement for judgement in labelled if judgement[2] == "train"]
    judged += [(query, doc, "test") for query, doc in sorted(relevant) if query.startswith("test")]
    qrels = [{"query_id": q, "doc_id": d, "relevance": 1, "split": split} for q, d, split in judged]
    for name, rows, schema in (
        ("documents", documents, DOCUMENTS),
        ("queries", queries, QUERIES),
        ("qrels", qrels, QRELS),
    ):
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet")
    return relevant


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> dict[str, Any]:
    """The collection, what a model that knows nothing finds in it, and every query's context: all there is."""
    folder = tmp_path_factory.mktemp("hidden")

    def place(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    data = folder / "data"
    relevant = write_collection(data)
    retriever = toy.started(folder / "retriever", toy.retriever_config(encoder, pooling="mean", similarity="cosine"))
    tokens, vectors, groups = (place(name) for name in ("tokens", "vectors", "groups"))
    tokenize(tokens, ALONE, data=data, model=retriever, config=TokenizeConfig())
    config = EncodeConfig(precision="fp32")
    encode_documents(vectors, ALONE, data=data, tokens=tokens, retriever=retriever, config=config)
    inputs = {"relevant": relevant, "place": place, "common": {"data": data, "tokens": tokens}, "vectors": vectors}
    rankings = found_by(inputs, retriever, "start")
    contexts(
        groups,
        ALONE,
        data=data,
        tokens=tokens,
        ranking=rankings["train"],
        split="train",
        config=ContextConfig(size=TOPICS * EACH),
    )
    queries = folder / "start queries train"
    return {**inputs, "groups": groups, "rankings": rankings, "queries": queries, "retriever": retriever}


def found_by(world: dict[str, Any], retriever: Path, name: str) -> dict[str, Path]:
    """The ranking of each split's queries by a retriever; the documents' vectors stay as they are."""
    rankings = {}
    for split in SPLITS:
        queries, rankings[split] = (world["place"](f"{name} {kind} {split}") for kind in ("queries", "ranking"))
        encode_queries(
            queries, ALONE, retriever=retriever, split=split, config=EncodeConfig(precision="fp32"), **world["common"]
        )
        search(
            rankings[split],
            ALONE,
            data=world["common"]["data"],
            vectors=world["vectors"],
            queries=queries,
            k=TOPICS * EACH,
            config=SearchConfig(),
        )
    return rankings


@pytest.fixture(scope="module")
def labels(world: dict[str, Any]) -> Callable[[str], Path]:
    """The groups of a kind, made once."""
    groups: dict[str, Path] = {"labels alone": world["groups"]}

    def of(kind: str) -> Path:
        if kind not in groups:
            groups[kind] = world["place"](f"labels {kind}")
            smooth(
                groups[kind],
                ALONE,
                data=world["common"]["data"],
                vectors=world["vectors"],
                queries=world["queries"],
                groups=world["groups"],
                config=SmoothConfig(**KINDS[kind] or {}),
            )
        return groups[kind]

    return of


@pytest.fixture(scope="module")
def found(world: dict[str, Any], labels: Callable[[str], Path]) -> Callable[[str], dict[str, float]]:
    """How well queries that were not trained on find all that is relevant, after training on labels of a kind."""
    measures: dict[str, dict[str, float]] = {}

    def of(kind: str) -> dict[str, float]:
        if kind not in measures:
            model = world["place"](f"model {kind}")
            config = toy.train_config(
                updates=100,
                batch=16,
                learning_rate=5e-3,
                losses=[{"function": "components.losses.listwise.divergence"}],
            )
            train(
                model,
                ALONE,
                objective="coder",
                rows=labels(kind),
                dev=None,
                start=world["retriever"],
                seed=[1],
                config=config,
                vectors=world["vectors"],
                temperature=TemperatureConfig(start=0.05),
                **world["common"],
            )
            measures[kind] = measured(world, found_by(world, model, kind))
        return measures[kind]

    return of


def measured(world: dict[str, Any], rankings: dict[str, Path]) -> dict[str, float]:
    """On test queries by all judgements; on training queries by those that were hidden, `hidden`."""
    table = pa.concat_tables([pq.read_table(ranking / "ranking.parquet") for ranking in rankings.values()])
    seen = pq.read_table(world["common"]["data"] / "qrels.parquet", filters=[("split", "=", "train")])
    labelled = set(zip(seen["query_id"].to_pylist(), seen["doc_id"].to_pylist(), strict=True))

    def value(pairs: set[tuple[str, str]], measure: str) -> float:
        rows = [{"query_id": q, "doc_id": d, "relevance": 1, "split": "all"} for q, d in sorted(pairs)]
        return means(per_query(table, pa.Table.from_pylist(rows, schema=QRELS), [measure]))[measure]

    test = {pair for pair in world["relevant"] if pair[0].startswith("test")}
    hidden = {pair for pair in world["relevant"] if pair[0].startswith("train")} - labelled
    return {"test": value(test, f"nDCG@{EACH}"), "hidden": value(hidden, f"R@{EACH}")}


def mass(world: dict[str, Any], groups: Path) -> dict[str, float]:
    """The mean share of the target distribution that labelled, hidden and irrelevant documents have."""
    shares = {"labelled": 0.0, "hidden": 0.0, "irrelevant": 0.0}
    rows = pq.read_table(groups / "groups.parquet").to_pylist()
    for row in rows:
        topic = row["query_id"].removeprefix("train").split("-")[0]
        for doc, target in zip(row["doc_ids"], row["targets"], strict=True):
            same_topic = doc.startswith(f"d{topic}-")
            kind = "labelled" if doc == f"d{topic}-0" else "hidden" if same_topic else "irrelevant"
            shares[kind] += target / len(rows)
    return shares


def test_hidden_documents_get_most_of_what_evidence_gives_to_others(
    world: dict[str, Any], labels: Callable[[str], Path]
) -> None:
    """Of the 47 others five are relevant; uniform smoothing gives them just their number's share."""
    shares = {kind: mass(world, labels(kind)) for kind in KINDS}
    for share in shares.values():
        assert sum(share.values()) == pytest.approx(1, abs=1e-5)
    assert shares["labels alone"]["labelled"] == 1
    assert shares["evidence"]["hidden"] > shares["evidence"]["irrelevant"]
    assert shares["evidence"]["hidden"] > 3 * shares["uniform"]["hidden"]
    assert shares["uniform"]["labelled"] == pytest.approx(shares["evidence"]["labelled"], abs=1e-5)
    assert shares["uniform"]["hidden"] == pytest.approx((1 - shares["uniform"]["labelled"]) * 5 / 47, abs=1e-5)


def test_a_model_that_is_not_told_that_they_are_wrong_finds_more_of_them(
    world: dict[str, Any], found: Callable[[str], dict[str, float]]
) -> None:
    before = measured(world, world["rankings"])
    after = {kind: found(kind) for kind in KINDS}
    print(json.dumps({"before": before, **after}, indent=1))
    assert after["labels alone"]["test"] > before["test"] + 0.1
    for kind in ("labels alone", "uniform"):
        assert after["evidence"]["hidden"] > after[kind]["hidden"] + 0.05
        assert after["evidence"]["test"] > after[kind]["test"] + 0.03
