"""Hours of small rounds, and an hour of requests: is what processes hold at the end what they held at the beginning?

    SPARRING_BENCH_MINUTES=60 make bench ARGS="-k soak"

The rounds are those of AR2 on a toy collection through a Ray of its own, one seed after another in one driver. The
service answers for a toy system; four clients ask, wait for the answer, and ask again after 50 ms. Twice a minute it is
looked at what each kind of process holds. The table has the median of the second tenth of the time, when all has begun,
and of the last.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import aiohttp

from tests.benchmarks.processes import below, size_of
from tests.benchmarks.table import machine, write
from tests.support import tiny, toy
from tests.support.served import served

ROOT = Path(__file__).parents[2]
MINUTES = float(os.environ.get("SPARRING_BENCH_MINUTES", "60"))
EVERY = 30.0
CLIENTS, PAUSE = 4, 0.05
KINDS = {
    "gcs_server": "Ray's head",
    "raylet": "Ray's node",
    "ray::": "Ray's workers",
    "dashboard": "Ray's other processes",
    "ray/": "Ray's other processes",
    "workflows.distributed": "Java",
    "workflows": "driver",
}
"""What a process is, by the first of these in its command."""

Look = dict[str, float]


class Soak:
    """What a process and those below it hold, looked at again and again while a block lasts."""

    def __init__(self, pid: int, **folders: Path) -> None:
        self._pid, self._folders, self._stop = pid, folders, threading.Event()
        self._looks: list[Look] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Soak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            look: Look = defaultdict(float)
            for pid in below(self._pid):
                folder = Path("/proc") / str(pid)
                try:
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    handles, threads = len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                kind = next((name for part, name in KINDS.items() if part in command), "other processes")
                look[f"{kind}: MiB"] += size_of(pid, mapped=False) / 2**20
                look[f"{kind}: handles"] += handles
                look[f"{kind}: threads"] += threads
            for name, place in self._folders.items():
                files = [file for file in place.rglob("*") if file.is_file() and not file.is_symlink()]
                look[f"{name}: files"] = len(files)
                look[f"{name}: MiB"] = sum(file.stat().st_size for file in files if file.exists()) / 2**20
            self._looks.append(look)

    def rows(self) -> list[list[str]]:
        """What was held, early and late."""
        count = len(self._looks)
        tenth = max(1, count // 10)
        rows = []
        for quantity in sorted({name for look in self._looks for name in look}):
            early, late = (
                median(look.get(quantity, 0.0) for look in part)
                for part in (self._looks[tenth : 2 * tenth] or self._looks, self._looks[-tenth:])
            )
            rows.append([quantity, f"{early:,.0f}", f"{late:,.0f}"])
        return rows


def told(title: str, soak: Soak, *lines: str) -> None:
    head = ["what", "in the second tenth of the time", "in the last"]
    write(f"Soak, {title}", 'make bench ARGS="-k soak"', head, soak.rows(), [*lines, machine(ROOT)])


def test_soak_rounds(tmp_path: Path) -> None:
    beir = tiny.write_beir(tmp_path / "beir", toy.write_data(tmp_path / "data"))
    tree = {**tiny.ar2(beir, toy.write_encoder(tmp_path / "encoder")), "seeds": list(range(1, 401))}
    place = tiny.place(tmp_path / "run", tree, mode="ray", train={"workers": 1, "threads": 1})
    # a name of its own: Ray's sockets lie in it, and the name of a socket has at most 107 bytes
    temporary = Path(tempfile.mkdtemp(prefix="soak"))
    environment = {**os.environ, "TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "workflows", *place.words("run", "--no-estimate")]
    with (tmp_path / "said").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        with Soak(process.pid, temporary=temporary) as soak:
            until = time.monotonic() + 60 * MINUTES
            while process.poll() is None and time.monotonic() < until:
                time.sleep(1)
            done = Counter(record["function"].rpartition(".")[2] for record in tiny.records(place.store))
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        elif process.returncode:
            raise RuntimeError((tmp_path / "said").read_text()[-2000:])
        process.wait(120)
    shutil.rmtree(temporary)
    lines = f"{done.total()} steps in {MINUTES:g} minutes, {done['train']} of them trainings."
    told(
        "rounds of AR2 through Ray", soak, lines, f"What the driver said: {(tmp_path / 'said').stat().st_size:,} bytes."
    )


def test_soak_service(tmp_path: Path) -> None:
    beir = tiny.write_beir(tmp_path / "beir", toy.write_data(tmp_path / "data"))
    place = tiny.place(tmp_path / "run", tiny.dpr(beir, toy.write_encoder(tmp_path / "encoder")))
    assert place("run") == 0
    with served(place, warnings="default") as service:
        threading.Thread(target=service.process.stdout.read, daemon=True).start()  # type: ignore[union-attr]
        with Soak(service.process.pid) as soak:
            requests, lost = asyncio.run(
                _ask(service.url, lambda number: f"question {number} of bara comi {number % 97}")
            )
    told(
        "the search service",
        soak,
        f"{requests:,} requests of {CLIENTS} clients in {MINUTES:g} minutes; lost: {dict(lost) or 'none'}.",
    )
    assert not lost


async def _ask(url: str, query: Callable[[int], str]) -> tuple[int, Counter[str]]:
    """Ask until the time is over; how many requests there were, and what came in place of five documents."""
    until, requests, lost = time.monotonic() + 60 * MINUTES, 0, Counter[str]()

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal requests
        while time.monotonic() < until:
            requests += 1
            try:
                async with session.post(f"{url}/search", json={"queries": [query(requests)], "k": 5}) as answer:
                    tree = await answer.json()
                    if answer.status != 200 or len(tree["results"][0]["documents"]) != 5:
                        lost[f"{answer.status} {json.dumps(tree)[:200]}"] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                lost[repr(error)] += 1
            await asyncio.sleep(PAUSE)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return requests, lost
