"""How a driver hands out shards and replaces processes, played with processes that answer as the test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from sparring.workflows.distributed import nodes, ray_map, resources
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.ray_map import Shard, map_on_ray
from sparring.workflows.distributed.shard_worker import Report

Answer = Callable[[str, "Process"], Any]
DONE = Report({}, [])


class Call:
    """The reference to an answer, which comes when the driver waits for it."""

    def __init__(self, process: Process, name: str) -> None:
        self.process, self.name = process, name


class Process:
    """A process on a node, whose answers are the scene's."""

    number = 0

    def __init__(self, scene: Scene) -> None:
        Process.number += 1
        self.number, self.scene = Process.number, scene
        self.place = scene.places[(len(scene.processes)) % len(scene.places)]
        scene.processes.append(self)

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(
            remote=lambda *arguments: Call(self, arguments[1] if method == "fill" else method),
            options=lambda name: getattr(self, method),
        )


class Scene:
    """Ray, with processes that the test can look at."""

    def __init__(self, answer: Answer, *places: str) -> None:
        self.answer, self.places, self.living = answer, places or ("a node",), set(places or ("a node",))
        self.processes: list[Process] = []
        self.killed: list[Process] = []
        self.waiting: list[list[str]] = []
        self.total: dict[str, float] = {"CPU": 8.0, "GPU": 8.0}

    def put(self, value: Any) -> Any:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return self.total

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node, "NodeManagerHostname": f"host of {node}", "Alive": node in self.living, "Labels": {}}
            for node in self.places
        ]

    def wait(self, refs: list[Call], num_returns: int = 1, timeout: float = 0) -> tuple[list[Call], list[Call]]:
        self.waiting.append([ref.name for ref in refs])
        ready = [ref for ref in refs if ref.name in ("node", "begin")][:1] or refs[:1]
        if ready and self.answer(ready[0].name, ready[0].process) is None:
            return [], refs
        return ready, []

    def get(self, ref: Call) -> Any:
        answer = self.answer(ref.name, ref.process)
        if isinstance(answer, Exception):
            raise answer
        return ref.process.place if ref.name == "node" else answer


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fill shards with the processes of a scene; return their names in the order in which they are done."""

    def played(scene: Scene, count: int = 6, *, notes: list[str] | None = None, **profile: Any) -> list[int]:
        machine = Machine(
            Cluster(address="auto", device="cpu", **{"map": Pool(workers=2), **profile}),
            nodes=2,
            cores=8,
            cpus=8,
            gpus=0.0,
            memory=2**30,
        )
        monkeypatch.setattr(ray_map, "ray_session", lambda cluster: scene)
        actors = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _: Process(scene)))
        monkeypatch.setattr(ray_map, "_actor_class", lambda: actors)
        monkeypatch.setattr(ray_map._Process, "kill", lambda self: scene.killed.append(self.actor))
        shards = [Shard(f"part-{number}", number + 1, {}) for number in range(count)]
        run = map_on_ray(SimpleNamespace, shards, tmp_path, machine, machine.cluster.map, False, {})
        advances = list(run)
        if notes is not None:
            notes += [advance.note for advance in advances if not advance.size]
        return [advance.size - 1 for advance in advances if advance.size]

    yield played
    resources.forget_warm()


def died() -> Exception:
    return ActorDiedError(cause=None)


def test_every_shard_is_done_by_two_processes(play: Any) -> None:
    scene = Scene(lambda name, process: DONE)
    assert sorted(play(scene)) == list(range(6))
    assert len(scene.processes) == 2
    assert scene.killed == []


def test_a_process_gets_shards_ahead_only_while_enough_wait(play: Any) -> None:
    """Two at once at most, and at the end one."""
    scene = Scene(lambda name, process: DONE)
    play(scene, 20)
    shards = [[name for name in names if name.startswith("part")] for names in scene.waiting]
    assert max(map(len, shards)) == 4
    assert max(len(names) for names in shards if "part-19" in names) <= 3


def test_the_progress_says_that_processes_died_or_do_not_start(play: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray_map, "LOOK_SECONDS", -1.0)
    notes = list[str]()
    scene = Scene(lambda name, process: died() if name == "part-3" and len(scene.processes) < 4 else DONE)
    play(scene, notes=notes)
    assert notes[0] == ""
    assert len(scene.killed) > 1
    assert notes[-1] == f"{len(scene.killed)} processes died and started again"
    resources.forget_warm()
    monkeypatch.setattr(ray_map, "STARVED_SECONDS", -1.0)
    notes.clear()
    play(Scene(lambda name, process: DONE), notes=notes)
    assert notes[0] == "no process has started for 0 s; other programs may hold the processors"


def test_the_next_map_uses_the_same_processes(play: Any) -> None:
    scene = Scene(lambda name, process: DONE)
    play(scene)
    play(scene)
    assert len(scene.processes) == 2


def test_a_warm_process_that_has_died_is_replaced_and_no_death_counts(play: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray_map, "MAX_DEATHS", -1)
    scene = Scene(lambda name, process: DONE)
    play(scene)
    scene.answer = lambda name, process: died() if process in scene.processes[:2] else DONE
    assert sorted(play(scene)) == list(range(6))
    assert scene.killed == scene.processes[:2]
    assert len(scene.processes) == 4


def test_a_shard_that_ends_its_process_again_and_again_is_named(play: Any) -> None:
    scene = Scene(lambda name, process: died() if name == "part-3" else DONE)
    with pytest.raises(RuntimeError, match=r"again and again .* 5 times at part-3 in \S+, the last time on host of"):
        play(scene)
    assert len(scene.processes) <= 2 + ray_map.MAX_DEATHS


def test_a_process_that_dies_at_its_start_again_and_again_ends_the_map(play: Any) -> None:
    scene = Scene(lambda name, process: died() if name == "begin" else DONE)
    with pytest.raises(RuntimeError, match="5 times at its start in "):
        play(scene)


def test_deaths_of_nodes_count_by_themselves(play: Any) -> None:
    """A shard may lose more nodes than processes."""

    def answer(name: str, process: Process) -> Any:
        if name == "part-3" and process.place == "spot" and len(scene.processes) < lost:
            return died()
        return DONE

    lost, scene = 3 + 2 * ray_map.MAX_DEATHS, Scene(answer, "spot")
    scene.living = set()
    assert sorted(play(scene)) == list(range(6))
    lost, scene = 999, Scene(answer, "spot")
    scene.living = set()
    with pytest.raises(RuntimeError, match=r"17 times at part-3 in .* on a node that was lost"):
        play(scene)


def test_nodes_that_join_are_used_unless_the_profile_has_a_number(play: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray_map, "GROW_SECONDS", -1.0)
    scene = Scene(lambda name, process: DONE)
    scene.total = {"CPU": 12.0}
    play(scene, 40, map=Pool())
    assert len(scene.processes) == 12
    resources.forget_warm()
    scene = Scene(lambda name, process: DONE)
    scene.total = {"CPU": 12.0}
    play(scene, 40, map=Pool(workers=3))
    assert len(scene.processes) == 3


def test_a_map_without_a_process_says_so_and_gives_up(
    play: Any, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_map, "START_SECONDS", 0.05)
    monkeypatch.setattr(nodes, "SAY_SECONDS", 0.0)
    scene = Scene(lambda name, process: None)
    with pytest.raises(RuntimeError, match="no process of this step has started on 1 CPU of one node within 0 s"):
        play(scene, wait_seconds=0)
    assert "waiting for 1 CPU of one node, at most 0 s" in capsys.readouterr().err
    assert scene.killed == scene.processes
