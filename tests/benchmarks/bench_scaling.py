"""Strong scaling of a training over processes with a slow network, and the share of the communication that is hidden.

make bench ARGS="-k bench_scaling"

The processes run in a network namespace of their own, where `tc` limits what they send. This needs Linux, iproute2, and
root. Each device is emulated: a layer sleeps for its rows, so that two cores are enough for many workers. Gradients,
batches of the size of a real model's, and the sums through gloo are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparring.components.compute import gather
from sparring.components.training import gradient_sums
from sparring.components.training.gradient_sums import GradientSums
from tests.benchmarks.conftest import ROOT
from tests.benchmarks.measure import figure
from tests.benchmarks.table import machine, write

LAYERS, WIDTH = 12, 1024
"""Layers, and their width, of a model with 12.6 million weights: 50 MB of gradients."""
ROWS = 64
"""Number of rows in a batch, over all workers."""
ROW_SECONDS = 0.02
"""Seconds that a device needs for a row, forward and backward."""
LINK_MBIT = 2_000
"""Rate of each worker's link: 250 MB a second."""
WORKERS = (1, 2, 4, 8)
UPDATES = 4


class Device(torch.autograd.Function):
    """A layer's computation: it takes the time of its rows, a third forward and two thirds backward."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        time.sleep(len(states) * ROW_SECONDS / LAYERS / 3)
        return states.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (weight,) = ctx.saved_tensors
        time.sleep(len(gradient) * ROW_SECONDS / LAYERS * 2 / 3)
        return gradient, torch.ones_like(weight)


class Model(nn.Module):
    """Layers that take time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.zeros(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, states: Tensor) -> Tensor:
        for weight in self.layers:
            states = Device.apply(states, weight)
        return states.sum()


Spans = list[tuple[float, float]]


def spans_of_sums(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """When each sum was sent and when it was there, from now on."""
    spans: Spans = []
    real = gather.begin_sum

    def noted(values: Tensor) -> Any:
        began, work = time.perf_counter(), real(values)
        work.get_future().then(lambda _: spans.append((began, time.perf_counter())))
        return work

    monkeypatch.setattr(gradient_sums, "begin_sum", noted)
    return spans


def update(kind: str, model: Any, sums: GradientSums, rows: int) -> tuple[float, float]:
    """One update's gradient. Return when its backward pass began and ended."""
    states = torch.zeros(rows, 1, requires_grad=True)
    loss = model(states)
    began = time.perf_counter()
    with sums.last_pass() if kind != "DDP" else nullcontext():
        loss.backward()
        ended = time.perf_counter()
    return began, ended


def worker(rank: int, workers: int, kind: str, out: str) -> None:
    """One process: it times updates and, as the first worker, writes what it found."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=workers)
    model: Any = Model()
    sums = GradientSums(model)
    if kind == "DDP":
        model = nn.parallel.DistributedDataParallel(model)
    with pytest.MonkeyPatch.context() as patch, sums if kind == "ours" else nullcontext():
        spans = spans_of_sums(patch)
        seconds, backwards = [], []
        for number in range(2 + UPDATES):  # our first pass learns the order, and DDP's too
            model.zero_grad(set_to_none=True)
            dist.barrier()
            if number == 2:
                spans.clear()
            began = time.perf_counter()
            backward = update(kind, model, sums, ROWS // workers)
            if number >= 2:
                seconds.append(time.perf_counter() - began)
                backwards.append(backward)
    dist.barrier()
    if rank == 0:
        hidden = sum(max(0.0, min(b, d) - max(a, c)) for a, b in spans for c, d in backwards)
        record = {"seconds": seconds, "hidden": hidden, "sending": sum(b - a for a, b in spans), "spans": spans}
        Path(out, "found.json").write_text(json.dumps({**record, "backwards": backwards}))
    os._exit(0)


def measured(workers: int, kind: str, out: Path) -> dict[str, Any]:
    """Updates of some workers in a network of their own, whose switch carries a link of each."""
    out.mkdir()
    limit = f"tbf rate {LINK_MBIT * workers}mbit burst 4mb latency 1s"
    command = f"ip link set lo up && tc qdisc add dev lo root {limit} && exec {sys.executable} -m {__name__} "
    subprocess.run(
        ["unshare", "-n", "bash", "-c", command + f"{workers} {kind} {out}"], cwd=ROOT, check=True, timeout=600
    )
    record: dict[str, Any] = json.loads((out / "found.json").read_text())
    return record


def namespaces() -> bool:
    """Check whether this process may make a network with a limit."""
    limit = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 1mb latency 1s"
    try:
        return subprocess.run(["unshare", "-n", "bash", "-c", limit], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


KINDS = {"ours": "during the backward pass", "after": "after it", "DDP": "torch's DDP"}


@pytest.mark.skipif(not namespaces(), reason="no network namespace with a limit: it needs root and iproute2")
def test_scaling(tmp_path: Path) -> None:
    alone = median(measured(1, "ours", tmp_path / "alone")["seconds"])
    head = ["workers", "gradients are summed", "s/update", "speed", "efficiency", "hidden"]
    rows = [["1", "", figure(alone), "1x", "100%", ""]]
    for workers in WORKERS[1:]:
        for kind, name in KINDS.items():
            record = measured(workers, kind, tmp_path / f"{kind}-{workers}")
            seconds = median(record["seconds"])
            hidden = f"{record['hidden'] / record['sending']:.0%}" if record["sending"] else ""
            speed = alone / seconds
            rows.append([str(workers), name, figure(seconds), f"{speed:.2f}x", f"{speed / workers:.0%}", hidden])
    megabytes = LAYERS * WIDTH**2 * 4 / 1e6
    lines = [
        f"A batch of {ROWS} rows, {ROW_SECONDS * 1e3:g} ms of an emulated device each; {megabytes:.0f} MB of gradients "
        f"over links of {LINK_MBIT / 1e3:g} Gbit/s.",
        "Hidden: share of the time of the sums in which the backward pass still ran, on the first worker.",
        machine(ROOT),
    ]
    write("Strong scaling", 'make bench ARGS="-k bench_scaling"', head, rows, lines)


def main(workers: str, kind: str, out: str) -> None:
    """All workers of one measurement."""
    torch.multiprocessing.spawn(worker, (int(workers), kind, out), nprocs=int(workers))


if __name__ == "__main__":
    main(*sys.argv[1:])
