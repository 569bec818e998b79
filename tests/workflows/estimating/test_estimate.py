"""Estimates of a run: sizes along the graph, memory and disk, and what the commands print."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml

from sparring.components.config import UserError
from sparring.components.models.shape import BASE, LARGE, ModelShape, shape_of
from sparring.components.retrieval.kinds.dense import Dense
from sparring.components.sources.beir import Source as BEIR
from sparring.components.training.config import TrainConfig
from sparring.components.yaml_files import yaml_text
from sparring.workflows import steps
from sparring.workflows.command_line import main
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.estimating import run_time, work
from sparring.workflows.estimating.collection import assumptions
from sparring.workflows.estimating.estimate import Estimate, estimate, works
from sparring.workflows.estimating.rates import Rates
from sparring.workflows.estimating.site import site
from sparring.workflows.estimating.sizes import UNKNOWN, Collection, Groups, Model, Vectors
from sparring.workflows.estimating.work import Work, work_of
from sparring.workflows.experiments import loading
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.steps.search import SearchConfig, search
from sparring.workflows.store.dag import Step, function_name, graph
from sparring.workflows.store.store import Store
from tests.support import tiny, toy
from tests.support.profiles import profile

WIDTH, MIDDLE, LAYERS = (toy.SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
DATA = Collection(1000, {"train": 100}, np.array([10.0]), np.array([5.0]), 50.0)

# peft asks transformers for a property that has another name now.
PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def estimated(config: Path, cluster: Cluster, **assumed: float) -> Estimate:
    """Estimate all steps of an experiment with an empty store."""
    nodes = graph(loading.read(config, [], config.parent / "runs").wanted)
    store = Store(config.parent / "store")
    return estimate(nodes, {node.fingerprint for node in nodes}, site(cluster, config.parent), store, assumed=assumed)


def trained(config: Any, cluster: Cluster, *, objective: str = "retriever", rows: Any = None, **keys: Any) -> Work:
    """Describe the work of a training."""
    inputs = {
        "objective": objective,
        "rows": Groups(40, 2) if rows is None else rows,
        "data": DATA,
        "start": Model(config, keys.pop("shape", None) or shape_of(config)),
        "config": TrainConfig.model_validate({**tiny.training(), **keys}),
    }
    described = work_of("workflows.steps.train.train", site(cluster, Path()), inputs)
    assert described is not None
    return described


def test_the_shape_of_a_model_is_read_from_its_folder(encoder: Path) -> None:
    shape = shape_of(toy.retriever_config(encoder))
    assert shape[:3] == (LAYERS, WIDTH, MIDDLE)
    assert shape_of(toy.retriever_config(encoder, layers=1)).layers == 1
    lengths = np.array([3, 17])
    by_hand = sum(2 * LAYERS * (n * (4 * WIDTH**2 + 2 * WIDTH * MIDDLE) + 2 * n * n * WIDTH) for n in (3, 17))
    assert shape.operations(lengths) == by_hand


def test_a_model_that_is_not_here_is_as_large_as_its_name_says() -> None:
    assert shape_of(toy.retriever_config("someone/new-large-model")) == LARGE
    assert shape_of(toy.retriever_config("someone/new-model")) == BASE
    assert 108e6 < BASE.parameters < 111e6


@pytest.mark.parametrize(
    ("factory", "bytes_of_one", "looks"),
    [
        ("Flat", 4 * 768, 1e6),
        ("IVF1024,Flat", 4 * 768 + 8, 1024 + 1e6 * 16 / 1024),
        ("IVF4096,PQ64", 72, None),
        ("IVF65536_HNSW32,PQ64", 72, None),
        ("HNSW32", 4 * 768 + 264, 128 * 64),
        ("OPQ64_128,IVF4096,PQ64x4", 40, None),
        ("SQ8", 768, 1e6),
    ],
)
def test_an_index_takes_the_bytes_of_its_kind(factory: str, bytes_of_one: float, looks: float | None) -> None:
    index = Dense().index_shape(factory, 1_000_000, 768, ef_construction=40, memory=1e12)
    assert index.bytes == bytes_of_one
    assert looks is None or index.looks == looks


def test_assumptions_are_read_and_mistakes_named() -> None:
    assert assumptions(["documents=1e9", "queries=5", "queries.test=7"]) == {
        "documents": 1e9,
        "queries": 5,
        "queries.test": 7,
    }
    with pytest.raises(UserError, match=r"--assume docs=3: unknown key 'docs'; accepted: documents, queries"):
        assumptions(["docs=3"])
    with pytest.raises(UserError, match=r"--assume documents=many: got 'many'; accepted: a number"):
        assumptions(["documents=many"])


def test_only_step_functions_have_work() -> None:
    names = set()
    for path in Path(steps.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"{steps.__name__}.{path.stem}")
        functions = [value for value in vars(module).values() if hasattr(value, "description")]
        names |= {".".join(function_name(function).split(".")[-2:]) for function in functions}
    assert work.WORK.keys() | work.MAKES.keys() <= names
    assert not work.WORK.keys() & work.MAKES.keys()


def test_plan_estimates_every_step_and_leaves_nothing_in_the_store(
    config: Path, tmp_path: Path, said: tiny.Said
) -> None:
    places = ["--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")]
    cluster = ["--cluster", str(profile(tmp_path, price_per_hour=3.6))]
    assert main([*places, "plan", str(config), "--estimate", *cluster]) == 0, said()
    out, _ = said()
    labels = [node.label for node in graph(loading.read(config, [], tmp_path / "runs").wanted)]
    lines = out.splitlines()
    assert [line.partition("  ")[0] for line in lines[1 : len(labels) + 1]] == labels
    assert re.split(" {2,}", lines[0]) == ["step", "time", "money", "memory", "disk"]
    assert lines[len(labels) + 1].startswith("in all")
    assert "40 documents; queries: " in out
    assert "not estimated" not in out
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("recipe", ["ear", "adapt", "ar2", "simlm"])
def test_nothing_of_an_experiment_is_left_out_of_the_sums(
    tmp_path: Path, beir: Path, encoder: Path, recipe: str
) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", getattr(tiny, recipe)(beir, encoder))
    expected = estimated(path, Cluster(mode="inline"))
    assert expected.unknown == []
    assert all(data.exact for data in expected.collections)


def test_a_writer_and_a_reader_are_estimated(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """What they learn from is a table of groups and a collection in one."""
    tree = tiny.ear(beir, encoder)
    learn = {"train": tiny.training("components.losses.likelihood.negative_log_likelihood")}
    tree["generators"]["taught"] = {"writer": {"model": {"model": str(encoder)}, "learn": learn}}
    tree["reader"] = {"model": {"model": str(encoder), "passage_tokens": 24}, "depths": [4], "passages": 4, **learn}
    assert estimated(tiny.write(tmp_path / "tiny.yaml", tree), Cluster(mode="inline")).unknown == []


def test_requests_to_addresses_are_counted_and_have_no_time(
    config: Path, tmp_path: Path, said: tiny.Said, encoder: Path
) -> None:
    tree = yaml.safe_load(config.read_text())
    url = "http://localhost:9/v1"
    vendor = {"rerank_url": f"{url}/rerank", "depth": 2, "queries": 3}
    tree |= {"contenders": {"vendor": vendor, "vectors": {"embedder_url": f"{url}/embeddings"}}, "teacher": "vendor"}
    tree["train"]["losses"] = [{"function": tiny.DISTILLATION}]
    config.write_text(yaml_text(tree))
    expected = estimated(config, Cluster(mode="inline"))
    counts = {row.node.label: row.work.makes for row in expected.rows if row.work is not None}
    assert expected.requests == {
        "vendor (test)": 3,
        "vendor (dev)": 3,
        "vectors vectors": 6,  # files of 7 of the 40 documents
        "vectors queries (test)": 1,
        "vectors queries (dev)": 1,
        "retriever scored groups": counts["retriever groups"].groups,  # fewer than there are training queries
    }
    assert counts["retriever scored groups"] is counts["retriever groups"]
    where = ["--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")]
    assert main([*where, "plan", str(config), "--estimate"]) == 0
    output, _ = said()
    assert f"at most {sum(expected.requests.values()):,} requests to addresses: " in output
    assert re.search(r"(?m)^vendor \(test\) +\? ", output)


@PEFT
def test_an_adapter_has_gradients_of_its_own_weights_alone(encoder: Path) -> None:
    """And keeps them alone. By peft's own count."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    model = AutoModel.from_pretrained(encoder)
    targets = ["query", "key", "value", "dense"]
    peft = get_peft_model(model, LoraConfig(r=3, target_modules=targets, exclude_modules=["pooler.dense"]))
    weights, adapter = shape_of(toy.retriever_config(encoder)).parameters, peft.get_nb_trainable_parameters()[0]
    whole, adapted = (
        trained(toy.retriever_config(encoder, **keys), Cluster(mode="inline"))
        for keys in ({}, {"adapter": {"rank": 3}})
    )
    assert adapted.kept == 4 * adapter  # the optimizer is kept where trainings share a schedule alone
    assert whole.needs[0].bytes - adapted.needs[0].bytes == 12 * (weights - adapter)
    assert whole.amount > adapted.amount


def test_adafactor_keeps_no_moments(encoder: Path) -> None:
    config, weights = toy.retriever_config(encoder), shape_of(toy.retriever_config(encoder)).parameters
    adam, adafactor = (
        trained(config, Cluster(mode="inline"), optimizer=optimizer) for optimizer in ("adamw", "adafactor")
    )
    assert adam.needs[0].bytes - adafactor.needs[0].bytes == 8 * weights
    assert (adam.scratch, adafactor.scratch) == (12 * weights, 4 * weights)


def test_gradient_caching_takes_time_and_never_more_memory(encoder: Path) -> None:
    """A batch that is smaller than a pass is held whole, with it or without; each forward pass is run twice."""
    config = toy.retriever_config(encoder)
    for batch in (1, 4096):
        plain, cached = (
            trained(config, Cluster(mode="inline", max_tokens_per_pass=1024, recompute=again), batch=batch)
            for again in (False, True)
        )
        assert 3 * cached.amount == pytest.approx(4 * plain.amount)
        assert (cached.needs[0].bytes < plain.needs[0].bytes) is (batch > 1)
        assert cached.needs[0].bytes <= plain.needs[0].bytes


def test_sharding_and_checkpointing_leave_less_on_each_worker(encoder: Path) -> None:
    """Of a large model on 16 GPUs; while it begins, weights and one gradient are whole. The advice names both keys."""
    large = ModelShape(layers=32, width=4096, middle=16384, vocabulary=32_000)

    def need(**keys: Any) -> Any:
        cluster = Cluster.model_validate({"mode": "ray", "train": {"workers": 16, **keys}})
        return trained(toy.retriever_config(encoder), cluster, shape=large, batch=16).needs[0]

    whole, sharded, checked = need(), need(shard=True), need(gradient_checkpointing=True)
    assert 16 * large.parameters < 2 * sharded.bytes < 1.01 * 16 * large.parameters < 1.01 * whole.bytes
    assert checked.bytes - 16 * large.parameters < (whole.bytes - 16 * large.parameters) / 8
    assert "train: {gradient_checkpointing: true}, train: {shard: true}" in whole.advice
    assert "shard" not in sharded.advice
    assert "checkpointing" not in checked.advice


def test_memory_holds_the_scores_of_what_is_predicted_together(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 tokens' scores of the vocabulary, their gradient, and this where it is a product's."""

    def held() -> float:
        config = toy.retriever_config(encoder)
        return trained(config, Cluster(mode="inline"), objective="mlm", rows=DATA).needs[0].bytes

    predicting = held()
    monkeypatch.setattr(work, "declared", lambda objective, name: None)
    assert predicting - held() == 12 * 1024 * shape_of(toy.retriever_config(encoder)).vocabulary


def test_expansions_multiply_queries() -> None:
    """Three of each of two splits' queries, with 15 tokens more; what comes of them counts the queries again."""
    machine, config = site(Cluster(mode="inline"), Path()), work.Inputs(number=3)
    data = replace(DATA, queries={"train": 100, "dev": 10, "test": 5})
    expanded = work_of(
        "workflows.steps.expand.expand_from_file", machine, {"data": data, "splits": ["train", "dev"], "config": config}
    )
    assert expanded is not None
    makes = expanded.makes
    assert (makes.rows, makes.count("dev"), makes.count("test"), makes.expansions) == (330, 30, 0, 3)
    assert makes.query_lengths.tolist() == [20.0]
    inputs = {"data": DATA, "ranks": makes, "split": "train", "queries": 40, "candidates": 2}
    grouped = work_of("workflows.steps.choose.rank_groups", machine, inputs)
    assert grouped is not None
    assert (grouped.makes.groups, grouped.makes.candidates) == (40, 2)
    assert work_of("workflows.steps.choose.rank_groups", machine, {**inputs, "ranks": UNKNOWN}) is None
    assert work_of("theirs.step", machine, inputs) is None


def test_folds_of_a_collection_are_read_once(
    tmp_path: Path, beir: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tiny.write(tmp_path / "inner.yaml", tiny.dpr(beir, encoder))
    folds = {"recipe": "folds", "experiment": str(inner), "of": "train", "folds": 3}
    nodes = graph(loading.read(tiny.write(tmp_path / "folds.yaml", folds), [], tmp_path).wanted)
    machine, read = site(Cluster(mode="inline"), tmp_path), []
    monkeypatch.setattr(BEIR, "read_documents", lambda own, plain=BEIR.read_documents: read.append(own) or plain(own))
    _, collections = works(nodes, machine, Store(tmp_path / "store"), {}, seconds=8.0)
    assert (len(collections), len(read)) == (3, 1)


def test_a_disk_without_any_space_is_said_to_be_too_small(config: Path, tmp_path: Path) -> None:
    """As /proc says of itself."""
    nodes = graph(loading.read(config, [], tmp_path).wanted)
    none = replace(site(Cluster(mode="inline"), tmp_path), disk=0.0, memory=0.0)
    expected = estimate(nodes, {node.fingerprint for node in nodes}, none, Store("/proc/foo"), assumed={})
    assert any(re.match(r"disk: \S+ \wB must be free, and there are 0 B; ", problem) for problem in expected.problems)


def test_steps_at_once_take_as_long_as_the_longest_chain(config: Path, tmp_path: Path) -> None:
    alone, together = (estimated(config, Cluster(parallel_steps=count)) for count in (1, 4))
    assert alone.seconds == sum(row.seconds for row in alone.rows)
    assert max(row.seconds for row in together.rows) < together.seconds < alone.seconds


def test_queries_that_a_share_draws_are_called_expected(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = tiny.dpr(beir, encoder)
    tree["data"] |= {"hold_out": {"held": {"of": "train", "share": 0.25}}}
    expected = estimated(tiny.write(tmp_path / "held.yaml", tree), Cluster(mode="inline"))
    queries = expected.collections[0].queries
    assert (queries["held"], queries["train"]) == (4, 12)
    assert any(note.startswith("queries of held are sampled by share") for note in expected.notes)


@pytest.mark.parametrize("workers", [None, 1, 7])
def test_workers_that_cannot_share_a_batch_are_refused(
    tmp_path: Path, config: Path, said: tiny.Said, workers: int | None
) -> None:
    cluster = profile(tmp_path, mode="ray", train={"workers": workers, "threads": 1})
    refused = main(["--store", str(tmp_path / "store"), "plan", str(config), "--estimate", "--cluster", str(cluster)])
    assert (refused == 2) == (workers == 7)
    assert ("are too few for 7 workers" in said()[1]) == (workers == 7)


def test_a_batch_larger_than_the_data_is_told(tmp_path: Path, beir: Path, encoder: Path, said: tiny.Said) -> None:
    for batch, warnings in (
        (16, []),
        (40, ["a batch of 40 is larger than the 16 training queries, so a query repeats up to 3 times"]),
    ):
        tree = tiny.dpr(beir, encoder)
        tree["train"] |= {"batch": batch}
        experiment = loading.read(tiny.write(tmp_path / "large.yaml", tree), [], tmp_path / "runs")
        nodes, store = graph(experiment.wanted), Store(tmp_path / "store")
        said()
        assert run_time.foresee(experiment, nodes, store, Cluster(mode="inline", device="cpu"))
        lines = [line for line in said()[1].splitlines() if "slow" in line]
        assert lines == [f"estimate: slow: retriever: {line}" for line in warnings]


def test_run_says_the_estimate_first_and_how_far_it_was_off(config: Path, tmp_path: Path, said: tiny.Said) -> None:
    experiment = loading.read(config, [], tmp_path / "runs")
    nodes, store = graph(experiment.wanted), Store(tmp_path / "store")
    assert run_time.read_estimate(experiment.run) is None
    forecast = run_time.foresee(experiment, nodes, store, Cluster(mode="inline", device="cpu"))
    assert forecast is not None
    assert forecast.total > 0
    assert forecast.spread[0] < 1 < forecast.spread[1]
    assert f"for {len(nodes)} steps" in said()[1]
    kept = run_time.read_estimate(experiment.run)
    assert kept is not None
    assert (kept.total, kept.spread) == (forecast.total, forecast.spread)
    expected = Forecast({"a": 400.0}, spread=(0.5, 2.0))
    assert run_time.how_far_off(expected, 300) == "estimated 3 to 13 min, took 5 min 00 s: as estimated"
    assert run_time.how_far_off(expected, 150) == "estimated 3 to 13 min, took 2 min 30 s: less than estimated"
    assert run_time.how_far_off(expected, 900) == "estimated 3 to 13 min, took 15 min 00 s: longer than estimated"
    assert not (tmp_path / "store").exists()


def test_an_estimate_that_fails_keeps_no_run_from_beginning(
    config: Path, tmp_path: Path, said: tiny.Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: Any, **keys: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(run_time, "estimate", broken)
    experiment = loading.read(config, [], tmp_path / "runs")
    cluster = Cluster(mode="inline", device="cpu")
    assert run_time.foresee(experiment, graph(experiment.wanted), Store(tmp_path / "store"), cluster) is None
    assert "estimate: none (RuntimeError: a bug)" in said()[1]


def test_without_the_source_its_size_is_asked_for(config: Path, tmp_path: Path, said: tiny.Said) -> None:
    tree = yaml.safe_load(config.read_text())
    tree["data"]["path"] = str(tmp_path / "nowhere")
    config.write_text(yaml_text(tree))
    assert main(["--store", str(tmp_path / "s"), "plan", str(config), "--estimate"]) == 2
    assert "source missing" in (error := said()[1])
    assert "--assume documents=1e6" in error


def test_price_and_hardware_are_execution() -> None:
    """Neither moves an artifact; both are in the record."""
    assert json.loads(Cluster(price_per_hour=3.0).model_dump_json())["price_per_hour"] == 3.0
    with pytest.raises(ValueError, match="price_per_hour"):
        Cluster(price_per_hour=-1)


def test_rankings_are_written_by_workers_without_gpus() -> None:
    """They share what is merged and written. The products are divided among the GPUs."""
    hardware = {"nodes": 4, "cores": 96, "memory_gb": 1000, "disk_gb": 1000, "gpus": 8}
    place = site(Cluster.model_validate({"hardware": hardware}), Path())
    rates, node, seconds = Rates(place), cast(Step, SimpleNamespace(function=search)), []
    for k in (200, 200, 1000):  # the first of all also starts Ray
        vectors = {"vectors": Vectors(8_841_823, 768, 2), "queries": Vectors(502_939, 768, 2)}
        data = replace(DATA, documents=8_841_823)
        described = work_of(function_name(search), place, {**vectors, "data": data, "k": k, "config": SearchConfig()})
        assert described is not None
        assert described.makes.rows == 502_939 * k
        assert all(need.pool == "one" for need in described.needs)  # the ids are in one worker's memory, not here
        seconds.append(rates.seconds(node, described))
    assert seconds[2] - seconds[1] == pytest.approx(502_939 * 800 * work.WRITTEN_ROW / (4 * 96))
    assert seconds[1] > work.ORDERED_ID * 8_841_823
