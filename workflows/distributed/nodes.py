"""The nodes of a cluster that was joined: they are waited for, and looked at before anything runs on them."""

import importlib.metadata
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from components.config import UserError, listing
from workflows import mirror
from workflows.cluster import Cluster, ray_session

LOCK = Path(__file__).resolve().parent.parent / "cluster" / "requirements.lock"


def meet(cluster: Cluster, store: Path) -> None:
    """UserError unless a cluster that was joined can do the work: on each of its nodes the store is there and the
    packages are the lock's, and it has the processors that the profile asks for."""
    if mirror.remote(store) is None and not store.parent.is_dir():
        raise UserError(
            f"--store {store}: there is no {store.parent} on the cluster; accepted: a path in a directory that all its "
            "nodes share"
        )
    store.mkdir(exist_ok=True, parents=True)
    ray = ray_session(cluster)
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    _wait(ray, cluster)
    cluster.check()
    if cluster.device == "auto":
        gpus = int(cluster.room().gpus)
        print(f"device: auto: models run on {'GPUs' if gpus else 'CPUs'}: there are {gpus} GPUs", file=sys.stderr)
    probe = store / f".seen-{uuid.uuid4().hex[:8]}"
    probe.touch() if mirror.remote(store) is None else mirror.write(probe, {})
    try:
        names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        looks = [
            ray.remote(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))(_look).remote(
                str(probe), locked()
            )
            for node in names
        ]
        for address, wrong in zip(names.values(), ray.get(looks), strict=True):
            if wrong:
                raise UserError(f"the cluster's node {address}: {wrong}")
    finally:
        probe.unlink() if mirror.remote(store) is None else mirror.remove(store, [probe.name])


def _wait(ray: Any, cluster: Cluster) -> None:
    """Wait as long as the profile says for the nodes that training needs, saying so: they may still be starting."""
    kind, needed = "GPU" if cluster.device == "cuda" else "CPU", cluster.train.workers or 1
    began, said = time.monotonic(), False
    while (there := int(ray.cluster_resources().get(kind, 0))) < needed:
        if time.monotonic() - began >= cluster.patience:
            return
        if not said:
            print(f"waiting for nodes: training asks for {needed} {kind}s, there are {there}", file=sys.stderr)
            said = True
        time.sleep(1.0)


def locked() -> dict[str, str]:
    """Name to version of every package of the lock."""
    lines = LOCK.read_text().splitlines()
    return {name: version for name, equals, version in (line.partition("==") for line in lines) if equals}


def _look(probe: str, packages: dict[str, str]) -> str:
    """What is wrong with the node that this runs on, in words."""
    place = mirror.place(Path(probe))
    if mirror.remote(place) is not None:
        try:
            if not mirror.documents([mirror.opened(place.parent) / place.name]):
                return f"sees another s3://{mirror.remote(place.parent)} (look at its AWS_... variables)"
        except Exception as error:  # a package, a credential, a network
            return " ".join(str(error).split())
    elif not place.exists():
        return f"does not see {Path(probe).parent}; the store must be on a filesystem that all nodes share"
    other = [
        f"{name} {there or 'missing'} (lock: {version})"
        for name, version in packages.items()
        if (there := _version("faiss-gpu" if name == "faiss-cpu" else name) or _version(name)) != version
    ]
    more = f" and {len(other) - 3} more" if len(other) > 3 else ""
    return f"its packages are not those of cluster/requirements.lock: {listing(other[:3])}{more}" if other else ""


def _version(name: str) -> str | None:
    """An installed package's version, whatever build of it."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None
