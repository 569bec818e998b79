"""The nodes of a cluster that this run joined: wait for them, and check each before anything runs on it."""

import importlib.metadata
import os
import platform
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from sparring.components.config import UserError, listing
from sparring.workflows import ROOT
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.store import s3
from sparring.workflows.store.dag import StepFailed

SAY_SECONDS = 5.0
"""Seconds after which the user reads what a step waits for."""
LOCKS = [ROOT / "cluster" / name for name in ("requirements.lock", "torch.lock")]


def check_store(store: Path) -> None:
    """Make the folder of a store that all nodes must see. UserError if its parent is missing."""
    if not s3.is_cached(store) and not store.parent.is_dir():
        raise UserError(
            f"--store {store}: there is no {store.parent} on the cluster; accepted: a path in a directory that all its "
            "nodes share"
        )
    store.mkdir(exist_ok=True, parents=True)


def check_nodes(ray: Any, store: Path) -> None:
    """Check each node. UserError if it does not see the store, or if its Python or packages differ from this
    machine's."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = store / f".seen-{uuid.uuid4().hex[:8]}"
    s3.put_json(probe, {}) if s3.is_cached(store) else probe.touch()
    try:
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        checks = [
            ray.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))(
                _node_problem
            ).remote(str(probe), installed_versions())
            for node in addresses
        ]
        for address, problem in zip(addresses.values(), ray.get(checks), strict=True):
            if problem:
                raise UserError(f"the cluster's node {address}: {problem}")
    finally:
        s3.delete(store, [probe.name]) if s3.is_cached(store) else probe.unlink()


def wait_for_nodes(ray: Any, cluster: Cluster) -> None:
    """Wait until the processors for training are there, for at most `wait_seconds`, if the cluster may still grow.

    With `device: auto` they are GPUs. Nobody can ask Ray which nodes its autoscaler may start, so a cluster without GPU
    nodes is told apart only by the wait. StepFailed at its end, so that no run takes CPUs because GPUs came late.
    """
    if not may_grow(ray):
        return
    gpu, pool = cluster.device != "cpu", cluster.train
    kind, share, workers = ("GPU", pool.gpus, pool.workers or 1) if gpu else ("CPU", 1.0, pool.workers or 1)
    came = _wait(ray, cluster, kind, workers, share, noun="nodes", who="training asks for", note="train.workers")
    available = ray.cluster_resources().get(kind, 0)
    if not came and available < share:
        choice = ", or write `device: cpu` in the profile" if cluster.device == "auto" else ""
        raise StepFailed(
            f"the cluster has no {kind}, and none came in {cluster.wait_seconds} s (wait_seconds in the profile). "
            f"Repeat the command when it can start such nodes{choice}."
        )


def free_nodes() -> list[dict[str, float]]:
    """Return the resources of each living node that nothing has reserved."""
    from ray._private.state import available_resources_per_node  # `ray.available_resources` adds the nodes up

    return list(available_resources_per_node().values())


def node_memory() -> list[float]:
    """Return the memory of each living node that Ray may give to tasks, in bytes."""
    import ray

    return [float(node["Resources"].get("memory", 0)) for node in ray.nodes() if node["Alive"]]


def wait_for_processors(ray: Any, cluster: Cluster, kind: str, workers: int, share: float = 1.0) -> None:
    """Wait until the cluster has the processors that `workers` workers of a step need. `kind` is `CPU` or `GPU`.

    RuntimeError after `wait_seconds`. The processors were there when the run began, but their node may have died.
    """
    if not _wait(ray, cluster, kind, workers, share, noun="processors", who="this step needs", note="a node was lost"):
        raise RuntimeError(
            f"the cluster has lost {kind}s that this step needs, and none came back in {cluster.wait_seconds} s "
            "(wait_seconds in the profile). Repeat the command when they are there."
        )


def _wait(ray: Any, cluster: Cluster, kind: str, workers: int, share: float, *, noun: str, who: str, note: str) -> bool:
    """Wait until `workers` workers can have their processors, for at most `wait_seconds`. Return whether they can.

    The processors are requested from Ray's autoscaler, which starts no nodes for a driver that only waits.
    """
    total = round(workers * share, 6)

    def available() -> float:
        return float(ray.cluster_resources().get(kind, 0))

    def enough() -> bool:
        return available() >= total

    if enough() or not cluster.wait_seconds:
        return enough()
    from ray.autoscaler.sdk import request_resources

    print(
        f"waiting for {noun}, at most {cluster.wait_seconds} s (wait_seconds in the profile): there are "
        f"{available():g} {kind}s, and {who} {total:g} ({note})",
        file=sys.stderr,
        flush=True,
    )
    end = time.monotonic() + cluster.wait_seconds
    request_resources(bundles=[{kind: share}] * workers)
    try:
        while not enough() and time.monotonic() < end:
            time.sleep(1.0)
    finally:
        request_resources(bundles=[])  # a request outlives its driver
    return enough()


def may_grow(ray: Any) -> bool:
    """Check whether something may add nodes: KubeRay or Ray's launcher, which name each node's group. A cluster that
    people started with `ray start` counts as complete."""
    if os.environ.get("RAY_USAGE_STATS_KUBERAY_IN_USE") == "1":
        return True
    return any("ray.io/node-group" in node["Labels"] for node in ray.nodes() if node["Alive"])


def locked() -> dict[str, str]:
    """Return the requirement of every locked package, with its version and the platforms that need it, by name."""
    lines = [line.removesuffix(" \\") for lock in LOCKS for line in lock.read_text().splitlines()]
    return {line.partition("==")[0]: line for line in lines if re.match(r"[a-z0-9][\w.-]*==", line)}


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of every locked package that is installed here, by name."""
    versions = {name: version for name in locked() if (version := _installed_version(name)) is not None}
    return {"python": platform.python_version(), **versions}


def _node_problem(probe: str, versions: dict[str, str]) -> str:
    """Describe the problem of the node that runs this. Return "" if there is none."""
    place = s3.local_path(Path(probe))
    if s3.is_cached(place):
        try:
            s3.check_access(place.parent)
            if not s3.read_json([place]):
                return f"sees another {s3.url(place.parent)} (look at its AWS_... variables)"
        except Exception as error:  # a missing package, a wrong credential, the network
            return " ".join(str(error).split())
    elif not place.exists():
        return f"does not see {Path(probe).parent}; the store must be on a filesystem that all nodes share"
    differences = [
        f"{name} {installed or 'missing'} (here: {version})"
        for name, version in versions.items()
        # faiss-gpu replaces faiss-cpu on a node with GPUs.
        if (installed := _installed_version("faiss-gpu" if name == "faiss-cpu" else name) or _installed_version(name))
        != version
    ]
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    if not differences:
        return ""
    return (
        f"its packages are not those of this machine: {listing(differences[:3])}{more}. Set up both from one checkout "
        "(`make setup`), or use the image of cluster/Dockerfile for both"
    )


def _installed_version(name: str) -> str | None:
    """Return a package's version without its build (such as torch's `+cpu`), or Python's own. Return None if it is not
    installed."""
    if name == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
