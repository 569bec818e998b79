"""A retriever kind is one file: two kinds of the tests are trained, searched and exported as the dense one is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentence_transformers
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from sparring.components.compute.gather import workers
from sparring.components.config import Config, UserError, parse
from sparring.components.data.vectors import DocumentVectors, QueryVectors, document_shards, read_rows
from sparring.components.files import read_json
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.retrieval import kind
from sparring.components.retrieval.kind import RetrieverConfig
from sparring.components.sources.beir import Source
from sparring.components.systems import model_folder
from sparring.components.training.gradient_sums import GradientSums
from sparring.components.training.objective import ObjectiveInputs, make_objective
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.evaluate import evaluate
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.mine import MineConfig, mine
from sparring.workflows.steps.search import SearchConfig, build_index, search
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from sparring.workflows.store.dag import step
from tests.support import toy
from tests.support.errors import refused
from tests.support.toy import INLINE
from tests.support.trainings import lines, visits

SPARSE, MULTI = "tests.support.sparse_kind", "tests.support.multi_vector_kind"
BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch"}
GROUP = {"function": toy.CROSS_ENTROPY}
ENCODE = EncodeConfig(shard=7, precision="fp32", vectors="float32")
K = 10

KINDS = pytest.mark.parametrize("name", [SPARSE, MULTI])


class Recipe(Config):
    """A recipe's config with a retriever of any kind."""

    retriever: RetrieverConfig


def config(name: str, encoder: Path, **options: Any) -> Any:
    """A retriever's config, as YAML names its kind."""
    settings = {"kind": name, "model": str(encoder), "query_tokens": 8, "document_tokens": 24, "dropout": 0.0}
    return parse(Recipe, {"retriever": {**settings, **options}}, where="recipe").retriever


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, beir: Path, encoder: Path) -> Callable[[str], Path]:
    """Runs all steps for a retriever of a kind; the folder with their artifacts."""
    finished: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in finished:
            place = tmp_path_factory.mktemp("kind")
            _run(place, config(name, encoder), beir)
            finished[name] = place
        return finished[name]

    return folder


def _run(place: Path, retriever: Any, beir: Path) -> None:
    def run(name: str, function: Any, **inputs: Any) -> Path:
        (place / name).mkdir()
        function(place / name, INLINE, **inputs)
        return place / name

    data = run("data", ingest, source=Source(format="beir", path=str(beir)))
    start = toy.started(place / "start", retriever)
    tokens = run("tokens", tokenize, data=data, model=start, config=TokenizeConfig())

    def retrieved(name: str, model: Path, split: str) -> Path:
        inputs = {"data": data, "tokens": tokens, "retriever": model, "config": ENCODE}
        queries = run(f"{name}-queries", encode_queries, split=split, **inputs)
        vectors = run(f"{name}-vectors", encode_documents, **inputs)
        return run(f"{name}-ranking", search, data=data, vectors=vectors, queries=queries, k=K, config=SearchConfig())

    ranking = retrieved("start", start, "train")
    mined = {"split": "train", "groups": 32, "seed": [1], "config": MineConfig(negatives=2, depth=K)}
    groups = run("groups", mine, data=data, tokens=tokens, ranking=ranking, **mined)
    config = toy.train_config(losses=[BATCH, GROUP], updates=8, log_every=1)
    inputs = {"objective": "retriever", "rows": groups, "dev": None, "data": data, "tokens": tokens, "start": start}
    run("trained", train, seed=[1], config=config, **inputs)
    retrieved("end", place / "trained", "test")
    run("measured", evaluate, data=data, ranking=place / "end-ranking", split="test", measures=["RR@10"])


def table(run: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(run / name / "ranking.parquet").to_pylist()


@KINDS
def test_training_lowers_the_loss_and_rankings_are_measured(run: Callable[[str], Path], name: str) -> None:
    place = run(name)
    first, *_, last = lines(place / "trained")
    assert {"cross_entropy (batch)", "cross_entropy (group)"} <= first.keys()
    assert all(last[name] < first[name] for name in first if name.startswith("cross_entropy"))
    assert read_json(place / "trained/model/sparring.json")["kind"] == name
    assert pq.read_table(place / "measured/per_query.parquet").num_rows > 0


@KINDS
def test_the_ranking_is_that_of_the_model_itself(run: Callable[[str], Path], name: str) -> None:
    """Whatever the shards: every query's scores are those that the model gives all documents at once."""
    from sparring.components.data.token_store import TokenStore

    place = run(name)
    model = kind.load(place / "trained/model").eval()
    store = TokenStore(place / "tokens", place / "trained/model")
    ids = read_json(place / "end-queries/queries.json")
    rows = pq.read_table(place / "data/queries.parquet")["query_id"].to_pylist()
    numbers = np.array([rows.index(query) for query in ids])
    documents = pq.read_table(place / "data/documents.parquet")["doc_id"].to_pylist()
    with torch.no_grad():
        queries = model(store.template.texts(store.queries, numbers, 8), "query")
        whole = model(store.template.texts(store.documents, np.arange(len(documents)), 24), "document")
        scores = model.score(queries, whole).numpy()
        lists = model.score_lists(queries, whole.expand(len(queries), *whole.shape)).numpy()
    np.testing.assert_allclose(lists, scores, rtol=1e-5, atol=1e-5)
    ranking = table(place, "end-ranking")
    assert len(ranking) == K * len(ids)
    for row in ranking:
        score = scores[ids.index(row["query_id"]), documents.index(row["doc_id"])]
        assert row["score"] == pytest.approx(score, rel=1e-4, abs=1e-5)
        assert (scores[ids.index(row["query_id"])] > score + 1e-4).sum() < row["rank"]


@KINDS
def test_copies_of_a_document_have_the_same_representation(run: Callable[[str], Path], name: str) -> None:
    place = run(name)
    same = np.load(place / "tokens/documents.same.npy")
    shards = document_shards(place / "end-vectors")
    rows = [shard[np.array([row])] for shard in shards for row in range(len(shard))]
    copies = np.flatnonzero(same != np.arange(len(same)))
    assert len(copies)
    for copy in copies:
        for vector, first in zip(rows[copy].values, rows[same[copy]].values, strict=True):
            np.testing.assert_array_equal(vector, first)


@KINDS
def test_the_exported_model_represents_texts_alike_in_sentence_transformers(
    run: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    model_folder.copy(run(name) / "trained/model", tmp_path / "exported")
    exported = kind.kind_of(tmp_path / "exported")
    assert hasattr(sentence_transformers, exported.loader)
    exported.check_export(tmp_path / "exported")


def test_an_index_is_built_and_searched_in_shards(run: Callable[[str], Path], tmp_path: Path) -> None:
    """The inverted lists of each file of documents find what exact search finds."""
    place, options = run(SPARSE), SearchConfig(index="inverted", sample=5)
    (tmp_path / "index").mkdir()
    (tmp_path / "out").mkdir()
    vectors = place / "end-vectors"
    build_index(tmp_path / "index", INLINE, vectors=vectors, factory="inverted", kind=SPARSE)
    files = sorted(path.name for path in (tmp_path / "index").glob("index.*"))
    assert files == [f"index.{first:05d}.npy" for first in (0, 10, 20, 30)]
    inputs = {"data": place / "data", "vectors": vectors, "queries": place / "end-queries", "k": K}
    summary = search(tmp_path / "out", INLINE, config=options, index=tmp_path / "index", **inputs)
    assert summary[f"recall@{K} of exact"] == 1.0
    pairs = [
        [(row["query_id"], row["doc_id"]) for row in table(folder, name)]
        for folder, name in ((place, "end-ranking"), (tmp_path, "out"))
    ]
    assert pairs[0] == pairs[1]


def test_a_kind_without_an_index_refuses_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"search\.index"):
        kind.kind_named(MULTI).check_index("Flat")


@KINDS
def test_what_needs_vectors_refuses_other_representations(run: Callable[[str], Path], name: str) -> None:
    for reader, folder in ((DocumentVectors, "end-vectors"), (QueryVectors, "end-queries")):
        with pytest.raises(UserError, match=name):
            reader(run(name) / folder)


def test_stored_rows_are_read_as_they_were_written(run: Callable[[str], Path]) -> None:
    rows = read_rows(run(SPARSE) / "end-queries/queries.npy")
    terms, weights = rows.values
    assert len(rows) == len(read_json(run(SPARSE) / "end-queries/queries.json"))
    assert len(terms) == len(weights) == rows.offsets[-1]
    assert (weights > 0).all()


# Configs


def test_a_config_without_a_kind_is_dense(encoder: Path) -> None:
    assert isinstance(parse(Recipe, {"retriever": {"model": str(encoder)}}, where="").retriever, DualEncoderConfig)
    assert kind.kind_named("dense").config is DualEncoderConfig


def test_a_kind_without_a_model_is_refused_as_a_retriever(encoder: Path) -> None:
    with refused("retriever.kind", "unknown-kind"):
        config("lexical", encoder)


@KINDS
def test_a_recipe_keeps_and_writes_the_config_of_another_kind(encoder: Path, name: str) -> None:
    """With all its keys, also in what identifies a step."""
    recipe = Recipe(retriever=config(name, encoder))
    again = Recipe.model_validate_json(recipe.model_dump_json())
    assert again == recipe
    assert isinstance(again.retriever, kind.kind_named(name).config)
    assert recipe.model_dump()["retriever"].keys() == kind.kind_named(name).config.model_fields.keys() - {"adapter"}


def test_a_mistake_in_the_config_of_another_kind_names_its_keys(encoder: Path) -> None:
    with pytest.raises(UserError, match=r"retriever.*pooling.*width"):
        config(MULTI, encoder, pooling="mean")


@pytest.mark.parametrize("name", ["lexica", "tests.support.no_kind", "tests.support.toy"])
def test_an_unknown_kind_is_a_mistake_of_the_config(encoder: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"retriever: kind: '{name}'"):
        config(name, encoder)


def test_the_source_of_a_users_kind_is_part_of_the_identity(encoder: Path) -> None:
    from sparring.workflows.steps.start import start

    dense, sparse = (step("start", start, config=config(name, encoder)) for name in ("dense", SPARSE))
    assert dense.code == {}
    assert sparse.code.keys() == {SPARSE}


# Two workers


def gradients(place: Path, name: str, start: Path, out: Path) -> None:
    """Write the gradient of one batch on this process together with those that it trains with."""
    inputs = ObjectiveInputs(
        model=start / "model",
        rows=place / "groups",
        data=place / "data",
        tokens=place / "tokens",
        losses=toy.train_config(losses=[BATCH, GROUP]).losses,
        max_tokens=60,  # several chunks
        recompute=True,
    )
    objective = make_objective("retriever", inputs, seed=1)
    count, rank = workers(), dist.get_rank() if workers() > 1 else 0
    share = 8 // count
    batch = objective.collate(visits(range(rank * share, (rank + 1) * share)))
    loss = sum(term.value for term in objective.terms(objective.encode(batch), batch).values())
    with GradientSums(objective) as sums, sums.last_pass():
        loss.backward()
    gradient = {key: value.grad for key, value in objective.named_parameters() if value.grad is not None}
    save_file(gradient, out / f"{name}-{count}-{rank}.safetensors")


def worker(rank: int, place: Path, names: list[str], out: Path) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out / 'meeting'}", rank=rank, world_size=2)
    for name, folder in zip(names, [place / name for name in names], strict=True):
        gradients(folder, name, folder / "start", out)
    dist.barrier()
    os._exit(0)


def test_two_workers_have_the_gradient_of_one(run: Callable[[str], Path], tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    names = [SPARSE, MULTI]
    for name in names:
        (tmp_path / name).symlink_to(run(name))
        gradients(run(name), name, run(name) / "start", tmp_path)
    torch.multiprocessing.spawn(worker, (tmp_path, names, tmp_path), nprocs=2)
    for name in names:
        alone, *both = (load_file(tmp_path / f"{name}-{part}.safetensors") for part in ("1-0", "2-0", "2-1"))
        for key, gradient in alone.items():
            for part in both:
                torch.testing.assert_close(part[key], gradient, rtol=1e-3, atol=1e-5, msg=f"{name} {key}")
