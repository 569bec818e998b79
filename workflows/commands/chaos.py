"""Kill a small run again and again on your cluster, and check that nothing is lost or wrong. The run trains a tiny
model on a toy collection. The command kills the driver, its workers and their nodes at random moments. It also kills
the head if the profile starts Ray on this machine. On a cluster that was joined it touches nothing of other jobs: it
kills a node only if no other job uses it and enough nodes remain. It repeats the run until it is finished, and compares
every artifact with those of an undisturbed run. The exit status is 1 if one differs."""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.yaml_files import yaml_text
from sparring.workflows.chaos import joined, toy, victims
from sparring.workflows.chaos.killer import HANGS, Broken, Kill, Killer, Run
from sparring.workflows.commands.shared_arguments import add_cluster, check_output, store_root
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.quantities import duration
from sparring.workflows.store import s3
from sparring.workflows.store.comparison import first_difference

SAVE_SECONDS = 0.5
"""Seconds between the checkpoints of the toy's trainings, which take seconds."""
UPDATES, BATCH = 40, 8
"""Updates of each training, and rows of a batch if the workers can share them evenly."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="number of processes to kill (default: 20)")
    add_cluster(parser)
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the moments and the processes to kill (default: 1)"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="an empty or new folder in which the toy and the runs are kept, with their logs; all nodes must see it "
        "(default: a folder next to the store, which is removed if all is well)",
    )


def call(arguments: argparse.Namespace) -> None:
    """Kill, resume and compare. SystemExit 1 if something is lost or wrong."""
    if arguments.kills < 1:
        raise UserError(f"--kills: got {arguments.kills}; accepted: 1 or more")
    cluster = clusters.read_cluster(arguments.cluster)
    folder = _folder(arguments)
    kills, wrong = list[Kill](), ""
    try:
        wrong = _try(folder, cluster, arguments.kills, arguments.seed, kills)
    except Broken as broken:
        wrong = str(broken)
    finally:
        if kills:
            print(table(kills))
        if not wrong and arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if wrong:
        print(f"WRONG: {wrong}\neverything is kept in {folder}", flush=True)
        sys.exit(1)
    print("nothing lost, nothing wrong")


def _folder(arguments: argparse.Namespace) -> Path:
    """Return the folder for everything."""
    root = store_root(arguments)
    if arguments.keep is not None:
        folder = Path(arguments.keep).absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"--keep {arguments.keep}: is not an empty folder; accepted: an empty or a new one")
        check_output(folder, "another FOLDER")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    if s3.is_cached(s3.local_path(root)):
        raise UserError(f"--store {root}: chaos tries stores in directories; accepted: --keep FOLDER, one of them")
    parent = Path(root).absolute().parent
    if not parent.is_dir():
        raise UserError(f"--store {root}: there is no folder {parent}; accepted: a store in one that is there")
    return Path(tempfile.mkdtemp(prefix="chaos-", dir=parent))


def _try(folder: Path, cluster: Cluster, count: int, seed: int, kills: list[Kill]) -> str:
    """Add `count` kills to the list, and compare each run. Return the first difference, or ""."""
    config, profile = folder / "toy.yaml", folder / "profile.yaml"
    cluster = cluster.model_copy(update={"save_seconds": SAVE_SECONDS})
    profile.write_text(yaml_text(cluster.model_dump(mode="json")))
    workers = cluster.train.workers or 1
    tree = toy.experiment(
        toy.write_collection(folder / "collection"),
        toy.write_encoder(folder / "encoder"),
        dropout=0.1,
        updates=UPDATES,
        batch=workers * -(-BATCH // workers),
    )
    config.write_text(yaml_text(tree))

    def on_kill(kill: Kill) -> None:
        kills.append(kill)
        print(f"{len(kills):4}/{count}  {line(kill)}", flush=True)

    began, undisturbed = time.monotonic(), Run(folder / "undisturbed", config, profile)
    kinds = victims.kinds(cluster)
    Killer(kinds, 0, seed, on_kill).finish(undisturbed, 10 * HANGS)
    alone = time.monotonic() - began
    print(f"undisturbed: {alone:.0f} s, {undisturbed.finished()} artifacts", flush=True)
    killer = Killer(
        kinds,
        count,
        seed,
        on_kill,
        artifacts=undisturbed.finished(),
        seconds=alone,
        retries=cluster.retries,
        find=joined.Finder(cluster).find if cluster.address else victims.find,
    )
    runs = starts = 0
    began = time.monotonic()
    while killer.remaining:
        runs += 1
        run = Run(folder / f"run-{runs}", config, profile)
        starts += killer.finish(run, max(HANGS, 10 * alone))
        if (difference := first_difference(run.store, undisturbed.store)) is not None:
            return f"{run.store}/{difference}"
        shutil.rmtree(run.folder)
    seconds = time.monotonic() - began
    took = f"{duration(seconds)}; undisturbed about {duration(runs * alone)}"
    print(f"\n{runs} runs, {starts} starts of the command, {took}")
    return ""


def line(kill: Kill) -> str:
    """Describe a kill."""
    where = f"in {kill.step}" if kill.step else "between steps"
    again = f", {kill.updates} updates to do again" if kill.updates else ""
    return f"{kill.kind} killed {where}, {kill.seconds:.1f} s after the start{again}"


def table(kills: list[Kill]) -> str:
    """Format the kills by the process that was hit: their number, their steps, and the updates that were done twice."""
    lines = [f"\n{'hit':14}{'kills':>6}{'updates done twice':>20}  in"]
    for kind in victims.VICTIMS:
        hit = [kill for kill in kills if kill.kind == kind]
        steps = Counter(kill.step or "between steps" for kill in hit).most_common()
        if hit:
            where = ", ".join(f"{step} {count}" for step, count in steps)
            lines.append(f"{kind:14}{len(hit):6}{sum(kill.updates for kill in hit):20}  {where}")
    return "\n".join(lines)
