"""Training on two workers is training on one: gradients, losses, models, validation and resuming.

All runs of the two workers are made at once, by two processes that are started once; the tests compare.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sparring.components.compute import chunking
from sparring.components.compute import gather as gather_module
from sparring.components.compute.gather import first_row, gather, of_first, of_workers, sum_over_workers, workers
from sparring.components.data.batches import to_device
from sparring.components.objectives.parts.scoring import batch_scores
from sparring.components.training import efficiency, loop, sharding
from sparring.components.training.adafactor import Adafactor
from sparring.components.training.gradient_sums import GradientSums, divided
from sparring.components.training.gradients import autocast
from sparring.components.training.loop import Execution, train
from sparring.components.training.objective import ObjectiveInputs, make_objective
from sparring.components.training.prepared import Batches
from sparring.components.training.self_check import SelfCheckError
from sparring.components.training.state import TrainingState
from tests.support import toy
from tests.support.trainings import assert_same, lines, visits

CPU = torch.device("cpu")
BATCH = {"function": toy.CROSS_ENTROPY, "over": "batch"}
GROUP = {"function": "components.losses.listwise.distillation"}
GAME = {"function": "components.losses.adversarial.expected_reward", "weight": 0.5}
EDITS = {"function": "components.losses.likelihood.negative_log_likelihood", "weight": 0.5}
SIMLM = {"function": "components.losses.simlm.released", "over": "batch", "options": {"temperature": 0.5}}
HALF = {"precision": "bf16", "weights": "bf16"}

RUNS: dict[str, dict[str, Any]] = {
    "over the batch": {"losses": [BATCH], "clip": 0.05},
    "over the group": {"losses": [GROUP, GAME]},
    "a sum in two parts": {"losses": [GROUP, {**GAME, "reduce": "sum"}], "accumulate": 2},
    "over both, in pieces, recomputed, in two parts": {
        "losses": [BATCH, GROUP],
        "accumulate": 2,
        "piece": 40,
        "recompute": True,
        "clip": 0.05,
    },
    "an odd batch": {"losses": [BATCH, GROUP], "batch": 7, "clip": 0.05},
    "an odd batch, sharded, in pieces, recomputed": {
        "losses": [BATCH, {**SIMLM, "duplicates": "count"}],
        "table": "repeats",
        "batch": 5,
        "shard": True,
        "piece": 40,
        "recompute": True,
    },
    "two views and edits of an odd batch, with BatchNorm": {
        "kind": "diffcse",
        "table": "data",
        "dev": "data",
        "batch": 5,
        "losses": [{**BATCH, "options": {"temperature": 0.5}}, {**EDITS, "over": "discriminator"}],
    },
    "same tower": {
        "losses": [
            {
                "function": "components.losses.same_tower.samtone",
                "over": "batch",
                "options": {"temperature": 0.5, "document_side": True},
            },
            {"function": "components.losses.same_tower.pair", "over": "batch", "options": {"temperature": 0.5}},
            {"function": "components.losses.same_tower.released_pair", "over": "batch"},
        ],
        "table": "repeats",
        "clip": 0.05,
    },
    "same tower, in pieces, recomputed, in two parts": {
        "losses": [SIMLM],
        "table": "repeats",
        "accumulate": 2,
        "piece": 40,
        "recompute": True,
    },
    "same tower, where duplicates count": {
        "losses": [
            {**SIMLM, "duplicates": "count"},
            SIMLM,
            {"function": "components.losses.same_tower.pair", "over": "batch", "duplicates": "count"},
            {"function": "components.losses.same_tower.released_pair", "over": "batch", "duplicates": "count"},
        ],
        "table": "repeats",
    },
    "over prefixes, in pieces, recomputed": {
        "losses": [
            {**BATCH, "dimensions": [32, 8, 4], "dimension_weights": [1.0, 0.5, 2.0]},
            {**GROUP, "dimensions": [16, 8]},
        ],
        "piece": 40,
        "recompute": True,
        "clip": 0.05,
    },
    "ranker": {"kind": "ranker", "clip": 0.05},
    "adapters under two towers, in pieces, recomputed": {
        "losses": [BATCH, GROUP],
        "start": "adapted",
        "piece": 40,
        "recompute": True,
    },
    "two views and edits, with BatchNorm, recomputed": {
        "kind": "diffcse",
        "table": "data",
        "dev": "data",
        "piece": 100,
        "recompute": True,
        "validate_on_dev": {"every": 2, "measure": "loss"},
        "losses": [{**BATCH, "options": {"temperature": 0.5}}, {**EDITS, "over": "discriminator"}],
    },
    "groups and edits, in two parts": {
        "kind": "diffcse_retriever",
        "table": "repeats",
        "piece": 100,
        "accumulate": 2,
        "losses": [BATCH, *({**EDITS, "over": f"{side} discriminator"} for side in ("query", "document"))],
    },
    "with validation": {"losses": [GROUP], "validate_on_dev": {"every": 1}},
    "interrupted": {"losses": [BATCH], "stop": 2},
    "sharded": {"losses": [BATCH, GROUP], "shard": True, "clip": 0.05, "validate_on_dev": {"every": 1}},
    "sharded, interrupted": {
        "losses": [BATCH, GROUP],
        "shard": True,
        "clip": 0.05,
        "validate_on_dev": {"every": 1},
        "stop": 2,
    },
    "sharded, handed over": {
        "losses": [BATCH, GROUP],
        "shard": True,
        "clip": 0.05,
        "validate_on_dev": {"every": 1},
        "stop": 2,
    },
    **{
        f"sharded, Adafactor{ending}": {
            "losses": [BATCH, GROUP],
            "optimizer": "adafactor",
            "learning_rate": 1e-2,
            "weight_decay": 0.1,
            "shard": True,
            "clip": 0.05,
            **({"stop": 2} if ending else {}),
        }
        for ending in ("", ", interrupted", ", handed over")
    },
    "sharded, in pieces, recomputed, in two parts": {
        "losses": [BATCH, GROUP],
        "shard": True,
        "accumulate": 2,
        "piece": 40,
        "recompute": True,
        "clip": 0.05,
    },
    "sharded ranker, whose layers run again": {
        "kind": "ranker",
        "shard": True,
        "gradient_checkpointing": True,
        "piece": 60,
        "clip": 0.05,
    },
    "sharded, with adapters under two towers, in pieces, recomputed": {
        "losses": [BATCH, GROUP],
        "start": "adapted",
        "shard": True,
        "piece": 40,
        "recompute": True,
        "clip": 0.05,
        "validate_on_dev": {"every": 1},
    },
    "bf16 weights, in two parts": {"losses": [BATCH, GROUP], **HALF, "accumulate": 2, "clip": 0.05},
    "sharded, bf16 weights": {
        "losses": [BATCH, GROUP],
        **HALF,
        "shard": True,
        "piece": 40,
        "recompute": True,
        "clip": 0.05,
        "validate_on_dev": {"every": 1},
    },
    "sharded, bf16 weights, interrupted": {
        "losses": [BATCH, GROUP],
        **HALF,
        "shard": True,
        "piece": 40,
        "recompute": True,
        "clip": 0.05,
        "validate_on_dev": {"every": 1},
        "stop": 2,
    },
    "sharded, bf16 weights, with adapters": {"losses": [BATCH, GROUP], **HALF, "start": "adapted", "shard": True},
    "sharded, two views and edits": {
        "kind": "diffcse",
        "table": "data",
        "dev": "data",
        "piece": 100,
        "shard": True,
        "validate_on_dev": {"every": 2, "measure": "loss"},
        "losses": [{**BATCH, "options": {"temperature": 0.5}}, {**EDITS, "over": "discriminator"}],
    },
}


EXECUTION = ("shard", "gradient_checkpointing")
OTHER = ("kind", "table", "dev", "piece", "recompute", "stop", "start", *EXECUTION)
"""Options of a run that its config has not."""


ROUNDED = 2e-2
"""How far two workers may be from one where gradients are rounded to bf16, as a share of their length."""


def is_bf16(name: str) -> bool:
    """Whether a run's products are in bf16."""
    return RUNS[name].get("precision") == "bf16"


class Interrupted(Exception):
    """Stands for whatever kills a training."""


def rows() -> list[dict[str, Any]]:
    """Groups whose candidates fall very unevenly: the first of a batch share theirs, the later ones have many."""
    rows = []
    for i in range(16):
        negatives = [(i % 8 + 11 + k) % 40 for k in range(1 if i % 8 < 4 else 5)]
        if i % 8 < 4:
            negatives = [20]
        documents = [f"d{i}", *(f"d{k}" for k in negatives)]
        if i % 8 == 5:
            documents.append(f"d{i - 5}")  # another worker's positive, and a duplicate text under the id of d30
            documents.append("d30")
        rows.append(
            {
                "query_id": f"q{i}",
                "doc_ids": documents,
                "teacher": [float((7 * k + i) % 4) for k in range(len(documents))],
            }
        )
    return rows


def repeats() -> list[dict[str, Any]]:
    """Groups in which queries and documents stand again, in the same share of a batch and in the other one."""
    queries = [0, 1, 2, 0, 3, 1, 6, 6, 4, 0, 4, 9, 2, 2, 3, 1]
    rows = []
    for i, query in enumerate(queries):
        document = query + 9 if query % 3 == 0 and i % 2 else query  # of a query with two positives now one, now both
        negatives = [f"d{(i + 11 + k) % 40}" for k in range(i % 4)]
        rows.append({"query_id": f"q{query}", "doc_ids": [f"d{document}", *negatives, "d30"]})
    return rows


def objective(places: dict[str, str], table: str, options: dict[str, Any], losses: list[Any]) -> Any:
    kind = options.get("kind", "retriever")
    inputs = ObjectiveInputs(
        model=Path(places[options.get("start", "ranker" if kind == "ranker" else "retriever")]) / "model",
        rows=Path(places[table]),
        data=Path(places["data"]),
        tokens=Path(places["tokens"]),
        losses=losses,
        max_tokens=options.get("piece", 10_000),
        recompute=options.get("recompute", False),
    )
    extra = {"generator": Path(places["language_model"])} if kind.startswith("diffcse") else {}
    return make_objective(kind, inputs, seed=1, **extra)


def config_of(options: dict[str, Any]) -> Any:
    settings = {k: v for k, v in options.items() if k not in OTHER}
    return toy.train_config(**{"updates": 3, "batch": 8, "log_every": 1, **settings})


class Keeping:
    """An optimizer that keeps gradients instead of stepping."""

    def __init__(self, module: torch.nn.Module, path: Path) -> None:
        self.param_groups = [{"params": list(module.parameters()), "lr": 0.0}]
        self._module, self._path = module, path

    def zero_grad(self, *, set_to_none: bool) -> None:
        self._module.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        gradients = {name: p.grad.contiguous() for name, p in self._module.named_parameters() if p.grad is not None}
        save_file(gradients, self._path)


def again(options: dict[str, Any], places: dict[str, str], place: Path, *, stop: int | None) -> None:
    """A run from wherever it is, perhaps up to an interruption."""

    def on_update(update: int, note: str) -> None:
        if update == stop:
            raise Interrupted

    config = config_of(options)
    fresh = objective(places, options.get("table", "rows"), options, config.losses)
    train(
        fresh,
        config,
        out=place,
        seed=1,
        start=None,
        device=CPU,
        dev=fresh.reading(Path(places[options.get("dev", "dev")])),
        save_seconds=-1.0,
        on_update=on_update,
        execution=Execution(**{key: options.get(key, False) for key in EXECUTION}),
    )


def everything(places: dict[str, str], out: Path) -> None:
    """Every run, and the gradients of its first update, by this process together with those it trains with."""
    rank = dist.get_rank() if workers() > 1 else 0
    for name, options in RUNS.items():
        config = config_of(options)
        place = out / name
        place.mkdir(parents=True, exist_ok=True)
        model = objective(places, options.get("table", "rows"), options, config.losses)
        keep = Keeping(model, place / f"gradients-{rank}.safetensors")
        with GradientSums(model) as sums, Batches(model, config, seed=1, device=CPU) as batches:
            loop._update(model, keep, config, TrainingState(), batches, sums, seed=1, rate=0.0, device=CPU)

        if "stop" in options and workers() > 1:
            with pytest.raises(Interrupted):
                again(options, places, place, stop=options["stop"])
            if "handed over" in name:
                continue
        again(options, places, place, stop=None)


def worker(rank: int, places: dict[str, str], out: str) -> None:
    """One of two processes. What it says, and why it died, is in a file of its own."""
    log = (Path(out) / f"said-{rank}.txt").open("w")
    os.dup2(log.fileno(), 2)
    faulthandler.enable()
    torch.set_num_threads(1)
    meeting = Path(out) / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    everything(places, Path(out))
    small(rank, Path(out))
    small_adafactor(rank, Path(out))
    held(rank, places, Path(out))
    apart(rank, places, Path(out))
    choosing(rank, places, Path(out))
    broken(rank, places, Path(out))
    model = objective(places, "rows", {}, config_of({"losses": [BATCH]}).losses)
    batch = to_device(model.collate(visits(list(range(8))[4 * rank : 4 * rank + 4])), CPU)
    with torch.no_grad():
        scores = batch_scores(*model.encode(batch), batch)
    parts = {name: getattr(scores, name).contiguous() for name in ("student", "target", "where")}
    save_file({**parts, "documents": batch.document_keys}, Path(out) / f"scores-{rank}.safetensors")
    dist.barrier()  # a worker that left early would close what the other still reads
    # Torch's caches keep the mesh of a sharded training, and the mesh keeps gloo's threads: an interpreter that winds
    # down beside them aborts in one of some twenty runs ("terminate called without an active exception", torch 2.13).
    os._exit(0)


def held(rank: int, places: dict[str, str], out: Path) -> None:
    """What this worker has of the layers of a frozen model under adapters, and how it gathers them."""
    for name, half in (("fp32", {}), ("bf16", HALF)):
        config = config_of({"losses": [BATCH], **half})
        model = objective(places, "rows", {"start": "adapted"}, config.losses)
        layers = sharding.layers(model)
        inside = [weight for layer in layers for weight in layer.parameters()]
        few = sum(weight.numel() for weight in inside if weight.ndim < 2)
        numbers = {kind: sum(p.numel() for p in inside if p.requires_grad == kind) for kind in (True, False)}
        body = model.model.tower("query").body.weights.items()
        before = {key: weakref.ref(weight) for key, weight in body if ".layer." in key and weight.ndim >= 2}
        del body
        loop._prepare(model, config, check=False, seed=1, device=CPU, execution=Execution(shard=True))
        dtypes: set[str] = set()
        for layer in layers:
            layer.intermediate.dense.base_layer.register_forward_pre_hook(
                lambda module, _, dtypes=dtypes: dtypes.add(str(module.weight.dtype))
            )
        batch = to_device(model.collate(visits(list(range(8))[4 * rank : 4 * rank + 4])), CPU)
        with chunking.in_step(), torch.no_grad(), autocast(CPU, config.precision):
            model.encode(batch)
        parts: list[Any] = [getattr(p, "_local_tensor", p) for layer in layers for p in layer.parameters()]
        sizes = {
            "trained": numbers[True],
            "frozen": numbers[False],
            "biases and norms": few,
            "gathered": sorted(dtypes),
            "bytes": sum(part.numel() * part.element_size() for part in parts),
            "whole": [
                key
                for key, weight in before.items()
                if weight() is not None or key in model.model.tower("query").body.weights
            ],
        }
        (out / f"held-{name}-{rank}.json").write_text(json.dumps(sizes))


def apart(rank: int, places: dict[str, str], out: Path) -> None:
    """Trainings on two nodes that see files of their own: one from its start, and two that resume.

    Of the second's checkpoints this worker has the same as the other; of the third's the second worker lacks one.
    """
    config = config_of({"losses": [GROUP], "validate_on_dev": {"every": 1}, "updates": 4})

    def again(stop: int | None = None) -> None:
        def on_update(update: int, note: str) -> None:
            if update == stop:
                raise Interrupted

        model = objective(places, "rows", {}, config.losses)
        train(
            model,
            config,
            out=place,
            seed=1,
            start=None,
            device=CPU,
            dev=model.reading(Path(places["dev"])),
            save_seconds=-1.0,
            on_update=on_update,
        )

    (place := out / f"apart-{rank}").mkdir()
    again()
    for name in ("brought", "missing"):
        (place := out / f"{name}-{rank}").mkdir()
        with pytest.raises(Interrupted):
            again(stop=3)
        dist.barrier()
        if rank == 1:
            shutil.copytree(out / f"{name}-0" / "checkpoints", place / "checkpoints")
            if name == "missing":
                shutil.rmtree(place / "checkpoints" / "update-000003")
        dist.barrier()
        try:
            again()
        except RuntimeError as error:
            (place / "said.txt").write_text(str(error))


def choosing(rank: int, places: dict[str, str], out: Path) -> None:
    """A training of which the first worker alone is worth while. What each worker returned lies beside it."""
    config = config_of({"losses": [BATCH], "clip": 0.05})
    (place := out / "chosen").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficiency, "_seconds", lambda *_, **__: 1.0)  # the second worker brings nothing
        summary = train(
            objective(places, "rows", {}, config.losses),
            config,
            out=place,
            seed=1,
            start=None,
            device=CPU,
            dev=None,
            save_seconds=-1.0,
            on_update=lambda update, note: None,
            execution=Execution(choose_workers=True),
        )
    (out / f"chosen-{rank}.json").write_text(json.dumps(summary))
    assert workers() == 2  # for the next training
    assert efficiency.efficient_workers(objective(places, "rows", {}, config.losses), config, seed=1, device=CPU) <= 2


def broken(rank: int, places: dict[str, str], out: Path) -> None:
    """What the check before the first update says where the backward pass of the gather scales, as public code does."""
    real = gather_module._Gather.backward

    def scaled(ctx: Any, gradient: torch.Tensor) -> Any:
        return real(ctx, gradient)[0] / workers(), None

    gather_module._Gather.backward = staticmethod(scaled)
    config = config_of({"losses": [BATCH]})
    try:
        train(
            objective(places, "rows", {}, config.losses),
            config,
            out=out / f"broken-{rank}",
            seed=1,
            start=None,
            device=CPU,
            dev=None,
            save_seconds=-1.0,
            on_update=lambda update, note: None,
        )
    except SelfCheckError as error:
        (out / f"broken-{rank}.txt").write_text(str(error))
    finally:
        gather_module._Gather.backward = real


def small(rank: int, out: Path) -> None:
    """What the functions of `components.compute.gather` give, worker by worker."""
    local = torch.arange(1.0, 3.0 + rank).reshape(-1, 1).requires_grad_()  # 2 rows here, 3 there
    counts = of_workers(len(local))
    whole = gather(local, counts)
    weight = torch.arange(float(len(whole))).reshape(-1, 1) * (rank + 1)
    (whole * weight).sum().backward()
    model = torch.nn.ParameterDict({"used": torch.zeros(2), "unused": torch.zeros(3), "idle": torch.zeros(1)})
    parameter, idle = model["used"], model["idle"]
    with GradientSums(model) as sums, sums.last_pass():
        ((parameter * torch.tensor([1.0, 2.0])).sum() * (rank + 1) + (idle.sum() if rank == 1 else 0.0)).backward()
    assert model["unused"].grad is None  # with two workers as with one: an optimizer would decay it
    assert parameter.grad is not None
    assert idle.grad is not None
    assert local.grad is not None
    sizes = {
        "counts": counts,
        "first": first_row(counts),
        "of first": of_first(7 + rank),
        "whole": whole.flatten().tolist(),
        "gradient": local.grad.flatten().tolist(),
        "total": sum_over_workers(torch.tensor([1.0 + rank, 10.0])).tolist(),
        "summed": parameter.grad.tolist(),
        "idle": idle.grad.tolist(),
        "workers": workers(),
    }
    (out / f"small-{rank}.json").write_text(json.dumps(sizes))


SHAPES = [(6, 4), (5, 3), (1, 4), (4, 1), (5,), (1,), (3, 4, 2)]
"""Of parameters whose rows two workers share evenly, unevenly, or which only one of them has."""


def weight_and_gradients(shape: tuple[int, ...]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A weight, and gradients of very different lengths, one of them 0."""
    numbers = torch.Generator().manual_seed(sum(shape))
    draws = [torch.randn(shape, generator=numbers) for _ in range(5)]
    return draws[0], [factor * draw for factor, draw in zip((1.0, 0.0, 1e-3, 50.0), draws[1:], strict=True)]


def small_adafactor(rank: int, out: Path) -> None:
    """What two workers make of weights of which each has some rows."""
    mesh = init_device_mesh("cpu", (2,))
    weights = {}
    for number, shape in enumerate(SHAPES):
        weight, gradients = weight_and_gradients(shape)
        parameter = torch.nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))
        optimizer = Adafactor([sharding.updated(parameter)], lr=0.1, weight_decay=0.1)
        for gradient in gradients:
            parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)])
            sharding.pass_gradients(optimizer)
            optimizer.step()
        weights[str(number)] = sharding.whole(parameter.detach()).contiguous()
    save_file(weights, out / f"adafactor-{rank}.safetensors")


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
    data: Path,
    encoder: Path,
    tokens: Path,
    retriever: Path,
    ranker: Path,
    language_model: Path,
) -> dict[int, Path]:
    """Where the runs of one worker lie and where those of two."""
    folder = tmp_path_factory.mktemp("workers")
    dev = [{"query_id": f"q{i}", "doc_ids": [f"d{i}", "d33", "d34", "d35", "d36"]} for i in range(5)]
    places = {
        "data": str(data),
        "tokens": str(tokens),
        "retriever": str(retriever),
        "ranker": str(ranker),
        "language_model": str(language_model),
        "adapted": str(toy.started(folder / "adapted", toy.retriever_config(encoder, towers="separate", adapter={}))),
        "rows": str(toy.write_groups(folder / "rows", rows())),
        "repeats": str(toy.write_groups(folder / "repeats", repeats())),
        "dev": str(toy.write_groups(folder / "dev", dev)),
    }
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    two = folder / "two"
    two.mkdir()
    (two / "places.json").write_text(json.dumps(places))
    try:
        torch.multiprocessing.spawn(worker, (places, str(two)), nprocs=2)
    except torch.multiprocessing.ProcessExitedException as error:
        logs = "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in sorted(two.glob("said-*.txt")))
        pytest.fail(f"{error}\n{logs}", pytrace=False)
    everything(places, folder / "one")
    return {1: folder / "one", 2: two}


RUN = pytest.mark.parametrize("name", list(RUNS))
WHOLE = pytest.mark.parametrize("name", [name for name in RUNS if "handed over" not in name])


@RUN
def test_the_gradient_of_two_workers_is_that_of_one(both: dict[int, Path], name: str) -> None:
    """Neither twice nor half of it, and in the same direction; both workers hold it."""
    single = load_file(both[1] / name / "gradients-0.safetensors")
    for rank in (0, 1):
        two = load_file(both[2] / name / f"gradients-{rank}.safetensors")
        assert two.keys() == single.keys()
        a = torch.cat([value.flatten() for value in single.values()]).double()
        b = torch.cat([two[key].flatten() for key in single]).double()
        assert a.norm() > 1e-3
        if is_bf16(name):
            assert (a - b).norm() < ROUNDED * a.norm()
            continue
        assert float(a @ b / (a @ a)) == pytest.approx(1.0, abs=1e-4)
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5 * float(a.norm()))


@WHOLE
def test_two_workers_train_as_one(both: dict[int, Path], name: str) -> None:
    """The same losses, norms and measures in the log, and the same means of gradients at the end."""
    logged = {count: lines(both[count] / name) for count in (1, 2)}
    assert len(logged[1]) == len(logged[2]) >= 3
    for a, b in zip(logged[1], logged[2], strict=True):
        if is_bf16(name):  # near ties are broken otherwise: on some processors one of the five dev groups is
            dev = [key for key in a if key.startswith("dev ")]
            assert all(abs(a.pop(key) - b.pop(key)) < 1 / 5 + 1e-6 for key in dev)
        assert a == pytest.approx(b, rel=ROUNDED if is_bf16(name) else 1e-3, abs=2e-5)
    single, two = (load_file(both[count] / name / "state/optimizer.safetensors") for count in (1, 2))
    if is_bf16(name):
        a, b = (
            torch.cat([state[key].flatten() for key in single if key.endswith("exp_avg")]) for state in (single, two)
        )
        assert (a - b).norm() < 5 * ROUNDED * a.norm()  # Adam makes whole steps of gradients that are almost 0
    else:
        for key in single:
            torch.testing.assert_close(two[key], single[key], rtol=5e-3, atol=2e-5, msg=key)
    state = json.loads((both[2] / name / "state/state.json").read_text())
    assert state["summary"]["workers"] == 2


@pytest.mark.parametrize("name", ["sharded", "sharded, Adafactor", "sharded, bf16 weights"])
def test_sharded_and_interrupted_it_ends_as_if_never_interrupted(both: dict[int, Path], name: str) -> None:
    """With the same bits: weights, moments, lines of the log."""
    assert_same(both[2] / name, both[2] / f"{name}, interrupted")


@pytest.mark.parametrize("number", range(len(SHAPES)), ids=[str(shape) for shape in SHAPES])
def test_adafactor_updates_a_sharded_weight_as_torch_does_a_whole_one(both: dict[int, Path], number: int) -> None:
    """Torch's own optimizer makes the updates that are expected."""
    weight, gradients = weight_and_gradients(SHAPES[number])
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.Adafactor([parameter], lr=0.1, weight_decay=0.1)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    assert not torch.allclose(parameter, weight)
    for rank in (0, 1):
        actual = load_file(both[2] / f"adafactor-{rank}.safetensors")[str(number)]
        torch.testing.assert_close(actual, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_worker_keeps_half_of_each_layer_and_nothing_whole(both: dict[int, Path]) -> None:
    """Of a frozen model under adapters too. With bf16 weights the half of what is trained is of the fp32 master, that
    of what is frozen is in bf16, and so is what is gathered; biases and norms, all frozen here, are whole."""
    for rank in (0, 1):
        for name, dtype, frozen, whole in (("fp32", "float32", 4, 0), ("bf16", "bfloat16", 2, 1)):
            sizes = json.loads((both[2] / f"held-{name}-{rank}.json").read_text())
            parts = 4 * sizes["trained"] + frozen * sizes["frozen"]
            assert sizes["bytes"] == (parts + whole * frozen * sizes["biases and norms"]) / 2
            assert sizes["gathered"] == [f"torch.{dtype}"]
            assert sizes["whole"] == []


@pytest.mark.parametrize("whole", ["sharded", "sharded, Adafactor"])
def test_a_sharded_trainings_checkpoint_resumes_with_another_number_of_workers(
    both: dict[int, Path], tmp_path: Path, whole: str
) -> None:
    """It holds whole weights and moments, so one process without sharding goes on from it; here from its second."""
    name = f"{whole}, handed over"
    shutil.copytree(both[2] / name, tmp_path / "one")
    assert [path.name for path in sorted((tmp_path / "one/checkpoints").glob("update-*"))] == [
        "update-000001",
        "update-000002",
    ]
    again(RUNS[name], json.loads((both[2] / "places.json").read_text()), tmp_path / "one", stop=None)
    for a, b in zip(lines(tmp_path / "one"), lines(both[1] / whole), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=2e-5)
    actual, expected = (load_file(p / "state/optimizer.safetensors") for p in (tmp_path / "one", both[1] / whole))
    for key in expected:
        torch.testing.assert_close(actual[key], expected[key], rtol=5e-3, atol=2e-5, msg=key)


def test_the_first_worker_alone_needs_the_best_weights(both: dict[int, Path]) -> None:
    """Another node has not seen them. A resumed training ends with the same model."""
    whole = load_file(both[2] / "apart-0/model/model.safetensors")
    resumed = load_file(both[2] / "brought-0/model/model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert sorted(path.name for path in (both[2] / "apart-0").iterdir()) == ["metrics.jsonl", "model", "state"]
    assert list((both[2] / "apart-1").iterdir()) == []


def test_workers_that_see_different_checkpoints_do_not_train(both: dict[int, Path]) -> None:
    """Not even the one that sees the newest."""
    for rank in (0, 1):
        message = (both[2] / f"missing-{rank}" / "said.txt").read_text()
        assert "update-000003: the first worker resumes from this checkpoint, but 1 of 2 workers cannot" in message
        assert not (both[2] / f"missing-{rank}" / "model").exists()


def test_workers_that_are_not_worth_while_leave_the_training_to_the_others(both: dict[int, Path]) -> None:
    """The first worker alone does what one process does, to the bit."""
    summaries = [json.loads((both[2] / f"chosen-{rank}.json").read_text()) for rank in (0, 1)]
    assert summaries[0]["workers"] == 1
    assert summaries[1] == {}
    assert_same(both[2] / "chosen", both[1] / "over the batch")


def test_a_gather_of_the_wrong_scale_stops_every_worker_before_the_first_step(both: dict[int, Path]) -> None:
    for rank in (0, 1):
        message = (both[2] / f"broken-{rank}.txt").read_text()
        assert message.startswith("The check before the first update failed: ")
        assert "the gradient has norm" in message
        assert not (both[2] / f"broken-{rank}").exists()


def test_clipping_bites_in_these_runs(both: dict[int, Path]) -> None:
    """Else the runs above would not show that the norm is that of the whole gradient."""
    for name, options in RUNS.items():
        if "clip" in options:
            updates = [line for line in lines(both[1] / name) if "gradient_norm" in line]  # others are of validations
            assert all(line["gradient_norm"] > options["clip"] for line in updates)


def test_the_workers_hold_uneven_numbers_of_documents_and_each_text_counts_once(both: dict[int, Path]) -> None:
    """Rows of one worker after those of the other are the rows of one process, once columns are matched by text."""
    parts = [load_file(both[2] / f"scores-{rank}.safetensors") for rank in (0, 1)]
    counts = [len(part["documents"]) for part in parts]
    assert counts[0] < counts[1]
    keys = torch.cat([part["documents"] for part in parts])
    for part in parts:
        assert part["student"].shape == (4, len(keys))
        first: dict[int, int] = {}
        for column, key in enumerate(keys.tolist()):
            if key == -1 or key in first:
                assert not part["where"][:, column].any()
            first.setdefault(key, column)
        assert (part["target"].sum(-1) == 1).all()
        assert part["where"][part["target"] > 0].all()
    wide = torch.cat([part["where"] for part in parts]).sum(-1)
    limits = torch.tensor([len(set(keys.tolist()) - {-1})] * 8)
    assert (wide <= limits).all()
    assert (wide >= limits - 2).all()


def test_what_gathering_gives_each_worker(both: dict[int, Path]) -> None:
    """Rows 1 2 of the first and 1 2 3 of the second; the losses weigh row i with i and with 2 i, so the gradient of row
    i is 3 i, wherever it came from."""
    a, b = (json.loads((both[2] / f"small-{rank}.json").read_text()) for rank in (0, 1))
    assert a["counts"] == b["counts"] == [2, 3]
    assert (a["first"], b["first"]) == (0, 2)
    assert a["of first"] == b["of first"] == 7
    assert a["whole"] == b["whole"] == [1, 2, 1, 2, 3]
    assert a["gradient"] == [0, 3]
    assert b["gradient"] == [6, 9, 12]
    assert a["total"] == b["total"] == [3, 20]
    assert a["summed"] == b["summed"] == [3, 6]
    assert a["idle"] == b["idle"] == [1]  # a parameter that only one worker used
    assert a["workers"] == b["workers"] == 2


def test_alone_nothing_is_gathered() -> None:
    local = torch.ones(2, 3, requires_grad=True)
    assert workers() == 1
    assert gather(local, [2]) is local
    assert of_workers(4) == [4]
    assert of_first(4) == 4
    assert sum_over_workers(local).requires_grad is False
    model = torch.nn.Linear(1, 1)
    with GradientSums(model) as sums, sums.last_pass():
        model(torch.ones(1)).sum().backward()
    assert [float(p.grad.sum()) for p in model.parameters() if p.grad is not None] == [1.0, 1.0]


def test_large_parameters_are_summed_in_several_buffers() -> None:
    buckets = divided([torch.nn.Parameter(torch.zeros(size)) for size in (3, 4, 2, 9, 1)], limit=6)
    assert [[len(p) for p in bucket] for bucket in buckets] == [[3], [4, 2], [9], [1]]


def test_weights_of_different_precisions_are_summed_in_different_buffers() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2, dtype=kind)) for kind in (torch.float32, torch.bfloat16)]
    assert [[p.dtype for p in bucket] for bucket in divided(weights, limit=6)] == [[torch.float32], [torch.bfloat16]]
