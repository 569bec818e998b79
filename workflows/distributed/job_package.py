"""Files that a Ray job gets from this machine: a folder with the code, the experiment and the profile, and its
environment.

Nothing else is sent. Ray copies the folder to every node. Sources, store and runs are the cluster's.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.yaml_files import override, read_based
from sparring.workflows import PACKAGE, ROOT
from sparring.workflows.distributed import session
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.program import CALLED_AS, EXPERIMENT_KEYS, SENT, located, program
from sparring.workflows.store.code_version import code_version

CODE = ("workflows", "components", "configs", "cluster")
"""Folders that are sent, next to the files of the package `sparring` itself. This lists what is sent, and not what is
left out, so that no notes, data or keys are sent by mistake."""
PROFILE = f"{SENT}/cluster.yaml"
"""Place of the profile in the package `sparring`."""


def pack(config: Path, cluster: Cluster, folder: Path, assignments: Sequence[str] = ()) -> str:
    """Fill a folder with all that a job needs, as a package `sparring`. Return the experiment's place in the package.

    UserError if an assignment names a file that no job would have, or if a file of the code cannot be read.
    """
    _check_assignments(assignments, "--set")
    folder = folder / "sparring"
    folder.mkdir(parents=True)
    for file in PACKAGE.glob("*.py"):
        shutil.copy(file, folder)
    for name in CODE:
        try:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        except shutil.Error as error:
            source, _, reason = error.args[0][0]
            raise UserError(
                f"{source}: cannot be read, and all of {name}/ is sent with a job ({reason}); accepted: files "
                "and folders; remove it"
            ) from None
    write(folder / PROFILE, cluster.model_dump(mode="json"))
    return pack_experiment(config, folder)


def pack_experiment(config: Path, folder: Path, referrer: Path | None = None) -> str:
    """Write an experiment's file, merged with its bases, and the experiments that it builds on. Return its place in the
    folder. A file that another experiment (`referrer`) names may lie next to that experiment."""
    config = located(config, referrer)
    source = config.resolve()
    if source.is_relative_to(ROOT):
        place = source.relative_to(ROOT)
    else:
        place = Path(SENT) / hashlib.sha256(str(source.parent).encode()).hexdigest()[:6] / source.name

    def packed(named: str) -> str:
        sent = pack_experiment(Path(named), folder, config)
        # Next to the file that names it, if both were sent. The run's folder keeps both, and outlives the job's.
        both = place.parts[0] == Path(sent).parts[0] == SENT
        return os.path.relpath(sent, place.parent) if both else sent

    tree = read_based(config)
    _check_assignments(tree.get("sets", ()), f"{config}: sets")
    if tree.get("recipe") == "compare":
        for name, compared in tree["experiments"].items():
            if isinstance(compared, dict):
                _check_assignments(compared["sets"], f"{config}: experiments.{name}.sets")
                compared["file"] = packed(compared["file"])
            else:
                tree["experiments"][name] = packed(compared)
    for key in EXPERIMENT_KEYS:
        if isinstance(tree.get(key), str):
            tree[key] = packed(tree[key])
    write(folder / place, tree)
    return str(place)


def _check_assignments(assignments: Sequence[str], where: str) -> None:
    """Raise UserError if an assignment names an experiment's file outside the repository. A file that the key in the
    experiment's own file names is sent, which the message says."""
    for assignment in assignments:
        named = override({}, [assignment])
        key = next((key for key in EXPERIMENT_KEYS if isinstance(named.get(key), str)), None)
        if key is None:
            continue
        file = located(Path(named[key])).resolve()
        if not any(file.is_relative_to(ROOT / folder) for folder in CODE):
            raise UserError(
                f"{where}: {assignment}: the file is not sent with a job; accepted: the key {key} in the "
                "experiment's own file, or a config of the repository",
                code="file-not-sent",
            )


def write(path: Path, tree: dict[str, Any]) -> None:
    """Write a tree as JSON. JSON is YAML in which text cannot be mistaken for numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def environment() -> dict[str, str]:
    """Return the job's environment variables: Ray's settings, the commit, the sending program, and `$SPARRING_DATA`
    if it is set here."""
    data = os.environ.get("SPARRING_DATA")
    if data and not Path(data).is_absolute():
        raise UserError(
            f"SPARRING_DATA: {data} is a place on this machine; accepted: an absolute path on the cluster's nodes"
        )
    return {
        **session.SETTINGS,
        **({"SPARRING_DATA": data} if data else {}),
        "SPARRING_CODE": json.dumps(code_version()),
        CALLED_AS: program(),
    }


def largest(folder: Path) -> str:
    """Name the largest file that a job is sent, with its size."""
    size, path = max((path.stat().st_size, path) for path in folder.rglob("*") if path.is_file())
    return f"{path.relative_to(folder)} ({size / 2**20:,.0f} MiB)"


def digest(folder: Path, words: list[str]) -> str:
    """Compute the digest of all that a job is sent, and of further words. Equal jobs have equal digests."""
    total = hashlib.sha256(json.dumps(words).encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(folder)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
