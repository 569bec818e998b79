"""On a GPU every objective learns what it learns on a CPU, however it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sparring.components.training.loop import Execution, train
from tests.components.compute.test_gather import BATCH, config_of, objective, rows
from tests.components.objectives.conftest import pretraining  # noqa: F401 (a fixture)
from tests.components.objectives.test_generator import learning as writers  # noqa: F401 (a fixture)
from tests.components.objectives.test_other_device import EVERY, made  # noqa: F401 (a fixture)
from tests.components.objectives.test_reader import learning as reading  # noqa: F401 (a fixture)
from tests.support import toy
from tests.support.trainings import lines

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

EXECUTIONS = {
    "plain": Execution(),
    "layers run again": Execution(gradient_checkpointing=True),
    "compiled": Execution(compile=True),
}


def trained(
    objective: Any, out: Path, device: str, *, execution: Execution = EXECUTIONS["plain"], **config: Any
) -> Path:
    """Train in fp32 without dropout, with the check before the first update."""
    out.mkdir()
    for module in objective.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    train(
        objective,
        toy.train_config(updates=3, batch=4, log_every=1, **config),
        out=out,
        seed=1,
        start=None,
        device=torch.device(device),
        dev=None,
        save_seconds=-1.0,
        on_update=lambda update, note: None,
        execution=execution,
    )
    return out


def assert_alike(first: Path, second: Path) -> None:
    for a, b in zip(lines(first), lines(second), strict=True):
        assert a == pytest.approx(b, rel=5e-3, abs=1e-4)


def again(made: Any, name: str, tmp_path: Path) -> Any:  # noqa: F811
    """An objective that was made before, with the same files."""
    if name == "coder":
        (tmp_path / "vectors").rename(tmp_path / "moved")
    return made(name)[0]


# Hugging Face warns that what it makes of an encoder has had another loss once.
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@pytest.mark.parametrize("name", EVERY)
def test_every_objective_trains_there(made: Any, name: str, tmp_path: Path) -> None:  # noqa: F811
    """To its end, and its first losses are a CPU's."""
    objective, losses = made(name)
    cpu = trained(objective, tmp_path / "cpu", "cpu", losses=losses)
    out = trained(again(made, name, tmp_path), tmp_path / "gpu", "cuda", losses=losses)
    assert lines(out)[0] == pytest.approx(lines(cpu)[0], rel=5e-3, abs=1e-4)
    assert len(lines(out)) == 3
    assert (out / "model").is_dir()


# torch's compiler warns of itself, and as it looks at what a layer is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", ["retriever", "ranker", "coder", "ICT"])
def test_a_gpu_learns_what_a_cpu_learns(
    made: Any,  # noqa: F811
    name: str,
    execution: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    objective, losses = made(name)
    cpu = trained(objective, tmp_path / "cpu", "cpu", losses=losses)
    twin = again(made, name, tmp_path)
    assert_alike(cpu, trained(twin, tmp_path / "gpu", "cuda", losses=losses, execution=EXECUTIONS[execution]))


def worker(rank: int, places: dict[str, str], out: str) -> None:
    """One of two processes, each with a GPU of its own."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{out}/meeting", rank=rank, world_size=2)
    config = config_of({"losses": [BATCH]})
    for name, execution in {"whole": Execution(), "sharded": Execution(shard=True)}.items():
        (place := Path(out) / f"{name}-{rank}").mkdir()
        train(
            objective(places, "rows", {"piece": 40, "recompute": True}, config.losses),
            config,
            out=place,
            seed=1,
            start=None,
            device=torch.device("cuda"),
            dev=None,
            save_seconds=-1.0,
            on_update=lambda update, note: None,
            execution=execution,
        )
    dist.destroy_process_group()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")
def test_two_gpus_with_a_part_of_each_layer_train_as_one_process(
    tmp_path: Path, data: Path, tokens: Path, retriever: Path
) -> None:
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    groups = toy.write_groups(tmp_path / "rows", rows())
    places = {"data": str(data), "tokens": str(tokens), "retriever": str(retriever), "rows": str(groups)}
    torch.multiprocessing.spawn(worker, (places, str(tmp_path)), nprocs=2)
    config = config_of({"losses": [BATCH]})
    (tmp_path / "one").mkdir()
    train(
        objective(places, "rows", {}, config.losses),
        config,
        out=tmp_path / "one",
        seed=1,
        start=None,
        device=torch.device("cpu"),
        dev=None,
        save_seconds=-1.0,
        on_update=lambda update, note: None,
    )
    assert_alike(tmp_path / "one", tmp_path / "whole-0")
    assert_alike(tmp_path / "one", tmp_path / "sharded-0")
