"""Out of memory: the step fails once, and names the keys that make it need less."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.config import UserError
from sparring.workflows.distributed import oom, resources
from sparring.workflows.distributed.cluster import Cluster, Pool, TrainPool
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.distributed.worker_group import train_together
from tests.support import tiny, workers
from tests.support.machines import changed
from tests.support.tiny import ROOT, Said

SLOW = pytest.mark.slow  # each begins a group of training workers


def raised(call: Any) -> Exception:
    """What a call that asks for too much raises."""
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        call()
    return caught.value


def test_errors_about_memory_are_recognised() -> None:
    from ray.exceptions import OutOfMemoryError

    for error in (
        MemoryError(),
        raised(lambda: np.empty(2**55, np.uint8)),
        raised(lambda: torch.empty(2**55, dtype=torch.uint8)),
        workers.torch_out_of_memory(),
        OutOfMemoryError("Task was killed due to the node running low on memory."),
        RuntimeError("java.lang.OutOfMemoryError: Java heap space"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(12, "Cannot allocate memory"),
    ):
        assert oom.is_out_of_memory(error), error
    for exception in (ValueError("the memory of the elephant"), FileNotFoundError("memory.json"), RuntimeError("nan")):
        assert not oom.is_out_of_memory(exception), exception


def test_advice_names_keys_of_the_profile_with_their_values() -> None:
    """Only keys that make the step need less, as the profile is."""
    many = Cluster(map=Pool(workers=4), java=Pool(workers=2), train=TrainPool(workers=2), max_tokens_per_pass=512)
    cpus = Machine(many, nodes=1, cores=4, cpus=4, gpus=0.0, memory=1e9)
    gpus = replace(cpus, gpus=2.0)
    advice = {
        oom.map_advice(cpus, many.map, model=True, gpu=False): [
            "max_tokens_per_pass (now 512)",
            "map.workers (now 4)",
        ],
        oom.map_advice(gpus, many.map, model=True, gpu=True): ["max_tokens_per_pass (now 512)"],
        oom.map_advice(gpus, many.java, model=False, gpu=False): ["java.workers (now 2)"],
        oom.map_advice(cpus, Pool(workers=1), model=False, gpu=False): ["a machine with more memory"],
        oom.training_advice(cpus): ["train.workers (now 2)", "recompute: true", "batch"],
        oom.training_advice(changed(gpus, {"recompute": True})): [
            "max_tokens_per_pass (now 512)",
            "batch",
        ],
    }
    for text, wanted in advice.items():
        assert all(phrase in text for phrase in wanted), text
        for key in re.findall(r"([a-z_.]+) \(now|set ([a-z]+):", text):
            tree: Any = many
            for part in "".join(key).split("."):
                assert part in type(tree).model_fields
                tree = getattr(tree, part)


def test_only_errors_about_memory_get_advice() -> None:
    with pytest.raises(UserError, match=r"^out of memory of names$"), oom.advise("less"):
        raise UserError("out of memory of names")
    with pytest.raises(ValueError, match=r"^bad text$"), oom.advise("less"):
        raise ValueError("bad text")
    message = "no room; cannot allocate; to need less memory: less"
    with pytest.raises(RuntimeError, match=f"^{message}$"), oom.advise("less"):
        raise MemoryError("a long story\nno room; cannot allocate")


def asked(machine: Machine, out: Path, worker: type, **more: Any) -> str:
    """What a map whose worker asks for too much says."""
    out.mkdir(exist_ok=True)
    with pytest.raises(RuntimeError) as caught:
        map_shards(
            worker,
            [Shard("part", 1, {"number": 0})],
            out=out,
            machine=machine,
            pool=machine.cluster.map,
            unit="texts",
            log=str(out.parent / "log"),
            **more,
        )
    return str(caught.value)


def begun(folder: Path) -> int:
    return (folder / "log").read_text().splitlines().count("began")


def test_a_map_that_runs_out_of_memory_gives_advice(tmp_path: Path) -> None:
    machine = resolve_machine(Cluster(mode="inline", device="cpu", max_tokens_per_pass=512))
    text = asked(machine, tmp_path / "out", workers.Hungry, batch_tokens=512)
    assert text == (
        "Unable to allocate 2.00 GiB for an array with shape (268435456,) and data type float64; to need less memory: "
        "lower max_tokens_per_pass (now 512), map.workers (now one a core) in the profile (--cluster)"
    )


def test_through_ray_a_map_that_runs_out_of_memory_is_not_retried(ray: Machine, tmp_path: Path) -> None:
    text = asked(ray, tmp_path / "out", workers.Hungry, batch_tokens=512)
    assert "Unable to allocate 2.00 GiB" in text
    assert text.endswith("lower max_tokens_per_pass (now 256), map.workers (now 2) in the profile (--cluster)")
    assert begun(tmp_path) == 1


@pytest.mark.parametrize(
    ("kind", "error", "says", "times"),
    [
        ("gpu", RuntimeError, "worker 0: OutOfMemoryError: CUDA out of memory. ", 1),
        pytest.param("model", RuntimeError, "worker 0: FileNotFoundError: there is no such model", 1, marks=SLOW),
        pytest.param("mistake", UserError, "k: 9; accepted: 8", 1, marks=SLOW),
        pytest.param("neighbour", RuntimeError, "worker 0: RuntimeError: Connection closed by peer", 2, marks=SLOW),
    ],
)
def test_a_training_is_retried_only_after_errors_that_may_pass(
    ray: Machine, tmp_path: Path, kind: str, error: type[Exception], says: str, times: int
) -> None:
    """The loss of a neighbour is retried as often as the profile says; what every retry would meet is not."""
    machine = changed(ray, {"train": Pool(workers=1, threads=1), "retries": 1})
    task = {"kind": kind, "log": str(tmp_path / "log")}
    with pytest.raises(error, match=f"^{re.escape(says)}"):
        train_together(workers.failing, task, machine, storage=tmp_path)
    resources.end_warm()
    assert begun(tmp_path) == times


@pytest.mark.parametrize("mode", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_training_that_runs_out_of_memory_gives_advice(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, mode: str
) -> None:
    """From the command line, with a real limit on a real process."""
    tree = tiny.dpr(beir, encoder)
    tree["negatives"] = {"negatives": 0}
    tree["train"]["losses"] = [{"function": "tests.support.workers.hungry", "options": {"log": str(tmp_path / "log")}}]
    place = tiny.place(tmp_path, tree, mode=mode, retries=2, object_store_mb=100)
    done = subprocess.run(
        [sys.executable, "-m", "workflows", *place.words("run", "--until", "retriever")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert "step 'retriever' failed: " in line
    assert "allocate memory" in line
    assert "to need less memory: set recompute: true in the profile (--cluster); or, for another result" in line
    assert begun(tmp_path) == 1


KILLED = """
import sys
from pathlib import Path
from tests.support import workers
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.session import stop_ray
from sparring.workflows.distributed.shards import Shard, map_shards
out = Path(sys.argv[1])
machine = resolve_machine(Cluster(device="cpu", object_store_mb=100, map={"workers": 2}))
try:
    map_shards(workers.Slow, [Shard("part", 1, {"number": 0})], out=out, machine=machine, pool=machine.cluster.map,
               unit="texts", log=str(out.parent / "log"))
except Exception as error:
    (out.parent / "error").write_text(str(error))  # Ray writes to standard output too
stop_ray()
"""


@pytest.mark.slow
def test_retries_after_rays_memory_monitor_have_a_bound(tmp_path: Path) -> None:
    """With a monitor for which the memory is always full."""
    (tmp_path / "out").mkdir()
    full = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **full, "RAY_task_oom_retry_delay_base_ms": "100"},
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "error").read_text()
    assert text.endswith("to need less memory: lower map.workers (now 2) in the profile (--cluster)")
