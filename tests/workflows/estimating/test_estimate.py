"""What a run would cost: the arithmetic, the refusals, the commands."""

from __future__ import annotations

import importlib
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from sparring.workflows.distributed.cluster import Cluster, Hardware
from sparring.workflows.distributed.site import GB, Site, site
from sparring.workflows.estimating import rates, run_time, trial
from sparring.workflows.estimating.collection import assumptions
from sparring.workflows.estimating.estimate import costs, estimate
from sparring.workflows.estimating.rates import Rates
from sparring.workflows.estimating.trial import Trial
from sparring.workflows.experiments import loading
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.steps.choose import rank_groups
from sparring.workflows.steps.train import train
from sparring.workflows.store.cost import Grouped, Made, ModelTask, Sizes, Work, expanded_sizes
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from tests.support import tiny, toy
from tests.support.profiles import HARDWARE, profile

WIDTH, MIDDLE, LAYERS = (toy.SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
SIZES = Sizes(1000, {"train": 100}, np.array([10.0]), np.array([5.0]), 50.0)

# peft asks transformers for a property that has another name now.
PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture
def quick_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are tried in this process: another would import torch for seconds."""

    def tried(site: Site, specs: Any, *, workers: int, threads: int, seconds: float) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            imported, *found = trial.measure(specs, Path(folder), threads=threads, batch_tokens=512, cuda=False)
        return [(imported, found)]

    monkeypatch.setattr(rates, "_tried", tried)
    monkeypatch.setattr(trial, "SECONDS", 0.01)


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
        ("HNSW32", 4 * 768 + 264, 128 * 64),
        ("OPQ64_128,IVF4096,PQ64x4", 40, None),
        ("SQ8", 768, 1e6),
    ],
)
def test_an_index_takes_the_bytes_of_its_kind(factory: str, bytes_of_one: float, looks: float | None) -> None:
    shape = Dense().index_shape(factory, 1_000_000, 768, ef_construction=40, memory=1e12)
    assert shape.bytes == bytes_of_one
    assert looks is None or shape.looks == looks


def test_seconds_of_a_stated_cluster_are_operations_over_its_rate() -> None:
    """1e15 operations at half of 100 teraflops on each of 16 GPUs: 1.25 s."""
    site = Site(Cluster(device="cuda", hardware=Hardware(**HARDWARE)), 2, 64, 512 * GB, 1e15, 8, 80 * GB)
    task = ModelTask("encoding", Made(toy.retriever_config("x/y"), ModelShape(1, 8, 16, 100)), SIZES, 1e12, 10.0)
    assert rates.assumed(site).seconds(Work("encoding", 1000, "map", task)) == pytest.approx(1.25)


def test_what_was_tried_is_scaled_by_units_and_shared_by_workers() -> None:
    site = Site(Cluster(mode="inline", map={"workers": 2, "threads": 1}), 1, 2, 1e10, 1e12)
    made = Made(toy.retriever_config("x/y"), BASE)
    encoding = ModelTask("encoding", made, SIZES, 1e9, 10.0, {"side": "document", "precision": "fp32"})
    training = ModelTask("training", made, SIZES, 1e9, 10.0, {"objective": "retriever"})
    known = Rates(site, trials={encoding.key: Trial(0.1, own=0.5), training.key: Trial(2.0, 3.0)})
    assert known.seconds(Work("encoding", 100, "map", encoding)) == pytest.approx(5.0)
    assert known.seconds(Work("training", 10, "train", training)) == pytest.approx(20.0)
    assert known.fixed(training) == 3.0
    assert known.alone().seconds(Work("encoding", 100, "map", encoding)) == pytest.approx(2.5)
    assert known.seconds(Work("rows", 1e6, "driver")) == pytest.approx(1.0)


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


@pytest.mark.usefixtures("quick_trials")
def test_plan_estimates_every_step_and_leaves_nothing_in_the_store(
    config: Path, tmp_path: Path, said: tiny.Said
) -> None:
    store = tmp_path / "store"
    words = [
        "--store",
        str(store),
        "--runs",
        str(tmp_path / "runs"),
        "plan",
        str(config),
        "--estimate",
        "--cluster",
        str(profile(tmp_path, price_per_hour=3.6)),
    ]
    assert main(words) == 0, said()
    out, _ = said()
    labels = [node.label for node in graph(loading.read(config, [], tmp_path / "runs").wanted)]
    lines = out.splitlines()
    assert [line.partition("  ")[0] for line in lines[1 : len(labels) + 1]] == labels
    assert lines[0].split("  ")[0] == "step"
    assert "money" in lines[0]
    assert lines[len(labels) + 1].startswith("in all")
    assert "40 documents; queries: " in out
    assert "could not be tried" not in out
    assert "not estimated" not in out
    assert not store.exists()


@pytest.mark.usefixtures("quick_trials")
def test_trainings_on_texts_alone_are_tried(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """A masked language model, SimLM with its generator and head, and all that follows."""
    path = tiny.write(tmp_path / "tiny.yaml", tiny.simlm(beir, encoder))
    nodes = graph(loading.read(path, [], tmp_path).wanted)
    cluster = Cluster.model_validate({"mode": "inline", "device": "cpu", "train": {"threads": 1}})
    here, store = site(cluster, tmp_path), Store(tmp_path / "store")
    found, _ = costs(nodes, here, store, {})
    works = [(work, work.task) for cost in found.values() if cost for work in cost.work if work.kind == "training"]
    assert {"mlm", "simlm"} <= {task.options["objective"] for _, task in works}
    tried = rates.measured(here, works)
    assert tried.trials.keys() == {task.key for _, task in works}
    assert tried.notes == []


def test_every_step_function_describes_its_cost() -> None:
    """A step without one would be missing from the sums of every experiment that has it."""
    folder = Path(steps.__file__).parent
    modules = [importlib.import_module(f"{steps.__name__}.{path.stem}") for path in sorted(folder.glob("[a-z]*.py"))]
    described = [one for module in modules for one in vars(module).values() if hasattr(one, "description")]
    assert len(described) > 40
    assert [one.__name__ for one in described if one.description.cost is None] == []


@pytest.mark.parametrize("recipe", ["ear", "adapt", "ar2"])
def test_nothing_of_an_experiment_is_left_out_of_the_sums(
    tmp_path: Path, beir: Path, encoder: Path, recipe: str
) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", getattr(tiny, recipe)(beir, encoder))
    nodes = graph(loading.read(path, [], tmp_path).wanted)
    result = estimate(
        nodes,
        {node.fingerprint for node in nodes},
        site(Cluster(mode="inline"), tmp_path),
        Store(tmp_path / "store"),
        assumed={},
        quick=True,
    )
    assert result.unknown == []
    assert result.exact


def test_a_writer_and_a_reader_are_estimated(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """What they learn from is a table of groups and a collection in one."""
    tree = tiny.ear(beir, encoder)
    learn = {"train": tiny.training("components.losses.likelihood.negative_log_likelihood")}
    tree["generators"]["taught"] = {"writer": {"model": {"model": str(encoder)}, "learn": learn}}
    tree["reader"] = {"model": {"model": str(encoder), "passage_tokens": 24}, "depths": [4], "passages": 4, **learn}
    nodes = graph(loading.read(tiny.write(tmp_path / "tiny.yaml", tree), [], tmp_path).wanted)
    result = estimate(
        nodes,
        {node.fingerprint for node in nodes},
        site(Cluster(mode="inline"), tmp_path),
        Store(tmp_path / "store"),
        assumed={},
        quick=True,
    )
    assert result.unknown == []


@PEFT
def test_an_adapter_has_gradients_of_its_own_weights_alone(encoder: Path) -> None:
    """And keeps them alone. By peft's own count."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    model = AutoModel.from_pretrained(encoder)
    targets = ["query", "key", "value", "dense"]
    peft = get_peft_model(model, LoraConfig(r=3, target_modules=targets, exclude_modules=["pooler.dense"]))
    trained = peft.get_nb_trainable_parameters()[0]
    here = site(Cluster(mode="inline"), Path())

    def cost(**keys: Any) -> Any:
        config = toy.retriever_config(encoder, **keys)
        return train.description.cost(  # type: ignore[attr-defined]
            here,
            objective="retriever",
            rows=Grouped(40, 2),
            dev=None,
            data=SIZES,
            tokens=SIZES,
            seed=[],
            start=Made(config, shape_of(config)),
            config=TrainConfig.model_validate(tiny.training()),
        )

    whole, adapted = cost(), cost(adapter={"rank": 3})
    assert adapted.kept == 4 * trained  # the optimizer is kept where trainings share a schedule alone
    weights = shape_of(toy.retriever_config(encoder)).parameters
    assert whole.needs[0].bytes - adapted.needs[0].bytes == 12 * (weights - trained)
    assert whole.work[0].task.operations > adapted.work[0].task.operations


def test_gradient_caching_takes_time_and_never_more_memory(encoder: Path) -> None:
    """A batch that is smaller than a pass is held whole, with it or without; each forward pass is run twice."""
    config = toy.retriever_config(encoder)

    def cost(batch: int, **profile: Any) -> Any:
        training = TrainConfig.model_validate({**tiny.training(), "batch": batch})
        return train.description.cost(  # type: ignore[attr-defined]
            site(Cluster(mode="inline", max_tokens_per_pass=1024, **profile), Path()),
            objective="retriever",
            rows=Grouped(40, 2),
            dev=None,
            data=SIZES,
            tokens=SIZES,
            seed=[],
            start=Made(config, shape_of(config)),
            config=training,
        )

    for batch in (1, 4096):
        plain, cached = cost(batch), cost(batch, recompute=True)
        assert 3 * cached.work[0].task.operations == pytest.approx(4 * plain.work[0].task.operations)
        assert (cached.needs[0].bytes < plain.needs[0].bytes) is (batch > 1)
        assert cached.needs[0].bytes <= plain.needs[0].bytes


def test_sharding_and_checkpointing_leave_less_on_each_worker(encoder: Path) -> None:
    """Of a large model on 16 GPUs; while it begins, weights and one gradient are whole. The advice names both keys."""
    config, training = toy.retriever_config(encoder), TrainConfig.model_validate(tiny.training(batch=16))
    large = ModelShape(layers=32, width=4096, middle=16384, vocabulary=32_000)

    def need(**keys: Any) -> Any:
        here = site(Cluster(mode="ray", train={"workers": 16, **keys}), Path())
        cost = train.description.cost(  # type: ignore[attr-defined]
            here,
            objective="retriever",
            rows=Grouped(40, 2),
            dev=None,
            data=SIZES,
            tokens=SIZES,
            seed=[],
            start=Made(config, large),
            config=training,
        )
        return cost.needs[0]

    whole, sharded, checked = need(), need(shard=True), need(gradient_checkpointing=True)
    assert 16 * large.parameters < 2 * sharded.bytes < 1.01 * 16 * large.parameters < 1.01 * whole.bytes
    assert checked.bytes - 16 * large.parameters < (whole.bytes - 16 * large.parameters) / 8
    assert "train: {gradient_checkpointing: true}, train: {shard: true}" in whole.advice
    assert "shard" not in sharded.advice
    assert "checkpointing" not in checked.advice


@pytest.mark.parametrize(
    ("objective", "optimizer", "says"),
    [
        (
            "generator",
            "adamw",
            "train.shard in the profile (--cluster): the objective generator divides a batch itself",
        ),
        ("retriever", "adafactor", ""),
        ("retriever", "adamw", ""),
    ],
)
def test_what_cannot_be_sharded_is_told_with_the_plan(encoder: Path, objective: str, optimizer: Any, says: str) -> None:
    config = toy.retriever_config(encoder)
    training = TrainConfig.model_validate({**tiny.training(batch=16), "optimizer": optimizer})
    cluster = Cluster(mode="ray", train={"workers": 2, "shard": True})
    cost = train.description.cost(  # type: ignore[attr-defined]
        site(cluster, Path()),
        objective=objective,
        rows=Grouped(40, 2),
        dev=None,
        data=SIZES,
        tokens=SIZES,
        seed=[],
        start=Made(config, shape_of(config)),
        config=training,
    )
    assert [one.partition(";")[0] for one in cost.limits] == ([says] if says else [])
    alone = cluster.model_copy(update={"train": cluster.train.model_copy(update={"workers": 1})})
    train.description.refuses(objective, training, alone)  # type: ignore[attr-defined]
    if says:
        with pytest.raises(UserError, match=re.escape(says)):
            train.description.refuses(objective, training, cluster)  # type: ignore[attr-defined]


def test_memory_holds_the_scores_of_what_is_predicted_together(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,024 tokens' scores of the vocabulary, their gradient, and this where it is a product's."""
    here, config = site(Cluster(mode="inline"), Path()), toy.retriever_config(encoder)

    def held() -> Any:
        cost = train.description.cost(  # type: ignore[attr-defined]
            here,
            objective="mlm",
            rows=SIZES,
            dev=None,
            data=SIZES,
            tokens=SIZES,
            seed=[],
            start=Made(config, shape_of(config)),
            config=TrainConfig.model_validate(tiny.training()),
        )
        return cost.needs[0].bytes

    predicting = held()
    monkeypatch.setattr("sparring.workflows.steps.train.declared", lambda objective, name: None)
    assert predicting - held() == 12 * 1024 * shape_of(config).vocabulary


def test_expansions_multiply_queries(tmp_path: Path) -> None:
    """Three of each of two splits' queries, with 10 tokens more; what comes of them counts the queries again."""
    made = expanded_sizes(replace(SIZES, queries={"train": 100, "dev": 10, "test": 5}), ["train", "dev"], 3, 10.0)
    assert (made.count, made.asked("dev"), made.asked("test"), made.number) == (330, 30, 0, 3)
    assert made.query_lengths.tolist() == [15.0]
    grouped = rank_groups.description.cost(  # type: ignore[attr-defined]
        None, data=SIZES, ranks=made, split="train", max_rank=101, queries=40, candidates=2, seed=[]
    ).makes
    assert (grouped.groups, grouped.candidates) == (40, 2)


def test_folds_of_a_collection_are_read_once_and_tried_once(
    tmp_path: Path, beir: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tiny.write(tmp_path / "inner.yaml", tiny.dpr(beir, encoder))
    folds = {"recipe": "folds", "experiment": str(inner), "of": "train", "folds": 3}
    nodes = graph(loading.read(tiny.write(tmp_path / "folds.yaml", folds), [], tmp_path).wanted)
    here, read = site(Cluster(mode="inline"), tmp_path), []
    monkeypatch.setattr(BEIR, "read_documents", lambda own, plain=BEIR.read_documents: read.append(own) or plain(own))
    found, collections = costs(nodes, here, Store(tmp_path / "store"), {})
    assert (len(collections), len(read)) == (3, 1)
    tasks = {work.task.key for cost in found.values() if cost for work in cost.work if work.task is not None}
    assert len(tasks) == 3  # documents, queries, a training


def test_a_disk_without_any_space_is_said_to_be_too_small(config: Path, tmp_path: Path) -> None:
    """As /proc says of itself."""
    nodes = graph(loading.read(config, [], tmp_path).wanted)
    none = replace(site(Cluster(mode="inline"), tmp_path), disk=0.0, memory=0.0)
    found = estimate(nodes, {node.fingerprint for node in nodes}, none, Store("/proc/foo"), assumed={}, quick=True)
    assert any(re.match(r"disk: \S+ \wB must be free, and there are 0 B; ", problem) for problem in found.problems)


def test_queries_that_a_share_draws_are_called_expected(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = tiny.dpr(beir, encoder)
    tree["data"] |= {"hold_out": {"held": {"of": "train", "share": 0.25}}}
    nodes = graph(loading.read(tiny.write(tmp_path / "held.yaml", tree), [], tmp_path).wanted)
    here, store = site(Cluster(mode="inline"), tmp_path), Store(tmp_path / "store")
    found = estimate(nodes, {node.fingerprint for node in nodes}, here, store, assumed={}, quick=True)
    assert (found.queries["held"], found.queries["train"]) == (4, 12)
    assert any(note.startswith("queries of held are drawn by share") for note in found.notes)


def test_workers_that_cannot_share_a_batch_are_refused(tmp_path: Path, beir: Path, encoder: Path) -> None:
    nodes = graph(loading.read(tiny.write(tmp_path / "x.yaml", tiny.dpr(beir, encoder)), [], tmp_path).wanted)
    for workers, refused in ((None, False), (1, False), (7, True)):
        here = site(Cluster(device="cpu", train={"workers": workers}), tmp_path)
        found = estimate(nodes, {node.fingerprint for node in nodes}, here, Store(tmp_path), assumed={}, quick=True)
        told = [one for one in found.problems if "cannot be shared evenly among 7 workers in 1 parts; to" in one]
        assert bool(told) == refused


def test_a_batch_larger_than_the_data_is_told(tmp_path: Path, beir: Path, encoder: Path, said: tiny.Said) -> None:
    for batch, told in ((16, []), (40, ["a batch of 40 has each of the 16 training queries up to 3 times"])):
        tree = tiny.dpr(beir, encoder)
        tree["train"] |= {"batch": batch}
        experiment = loading.read(tiny.write(tmp_path / "large.yaml", tree), [], tmp_path / "runs")
        nodes, store = graph(experiment.wanted), Store(tmp_path / "store")
        said()
        assert run_time.foresee(experiment, nodes, store, Cluster(mode="inline", device="cpu"))
        lines = [line for line in said()[1].splitlines() if "slow" in line]
        assert lines == [f"estimate: slow: retriever: {one}" for one in told]


@pytest.mark.usefixtures("quick_trials")
def test_run_says_the_estimate_first_and_how_far_it_was_off(config: Path, tmp_path: Path, said: tiny.Said) -> None:
    words = ["--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")]
    cluster = ["--cluster", str(profile(tmp_path))]
    experiment = loading.read(config, [], tmp_path / "runs")
    nodes, store = graph(experiment.wanted), Store(tmp_path / "store")
    inline = Cluster(mode="inline", device="cpu")
    forecast = run_time.foresee(experiment, nodes, store, inline)
    assert forecast is not None
    assert forecast.total > 0
    assert f"for {len(nodes)} steps" in said()[1]
    assert set(run_time.read_estimate(experiment.run)[0]) == {node.name for node in nodes}
    assert main([*words, "plan", str(config), "--estimate", *cluster]) == 0
    said()
    kept = run_time.foresee(
        experiment, nodes, store, Cluster.model_validate(yaml.safe_load(Path(cluster[1]).read_text()))
    )
    assert kept is not None
    assert "(plan --estimate)" in said()[1]
    assert kept.spread[0] < 1 < kept.spread[1]
    expected = Forecast({"a": 400.0}, spread=(0.5, 2.0))
    assert run_time.how_far_off(expected, 300) == "estimated 3 to 13 min, took 5 min 00 s: as estimated"
    assert run_time.how_far_off(expected, 150) == "estimated 3 to 13 min, took 2 min 30 s: less than estimated"
    assert run_time.how_far_off(expected, 900) == "estimated 3 to 13 min, took 15 min 00 s: longer than estimated"
    assert not (tmp_path / "store").exists()


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


def test_reading_takes_as_long_as_records_of_the_source_took(tmp_path: Path) -> None:
    """1,000 documents and 100 queries that are read twice: 1,200 records of 10 ms, 1.3 times as long with writing; half
    of it on the same machine without other programs."""
    from sparring.workflows.estimating.estimate import WRITING, _seconds
    from sparring.workflows.steps.ingest import ingest

    known = replace(SIZES, read_seconds=0.01)
    cost = ingest.description.cost(None, source=known)  # type: ignore[attr-defined]
    busy = Rates(Site(Cluster(), 1, 2, 1e10, 1e12), slowness=16.0, own=0.5)
    assert _seconds(cost.work[0], cost, busy) == pytest.approx(1200 * 0.01 * WRITING)
    assert _seconds(cost.work[0], cost, busy.alone()) == pytest.approx(600 * 0.01 * WRITING)
