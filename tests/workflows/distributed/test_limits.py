"""What a container or a service may use of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.workflows.distributed import limits
from sparring.workflows.estimating import site

V1 = "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n3:cpuset:/docker/ab\n"
UNBOUND = {
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.cfs_period_us": "100000",
    "memory/memory.limit_in_bytes": "9223372036854771712",
}


@pytest.mark.parametrize(
    ("own", "files", "cpus", "memory"),
    [
        # v2 in a container, whose own group is the root of the mount
        ("0::/", {"cpu.max": "150000 100000\n", "memory.max": "2147483648\n"}, 1.5, 2.0**31),
        ("0::/", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, limits.UNLIMITED, limits.UNLIMITED),
        # v2 in a service: the smallest limit on the way to its group holds
        (
            "0::/a/b.service",
            {
                "a/b.service/cpu.max": "400000 100000",
                "a/cpu.max": "200000 100000",
                "a/memory.max": "7",
                "a/b.service/memory.max": "max",
                "other/cpu.max": "1000 100000",
            },
            2.0,
            7.0,
        ),
        # v1, mounted whole, or from the container's group on
        (
            V1,
            {
                **UNBOUND,
                "cpu/docker/ab/cpu.cfs_quota_us": "50000",
                "cpu/docker/ab/cpu.cfs_period_us": "20000",
                "memory/docker/ab/memory.limit_in_bytes": "1000",
            },
            2.5,
            1000.0,
        ),
        (
            V1,
            {
                "cpu/cpu.cfs_quota_us": "300000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "5000",
            },
            3.0,
            5000.0,
        ),
        (V1, UNBOUND, limits.UNLIMITED, 9223372036854771712.0),
        ("0::/a", {}, limits.UNLIMITED, limits.UNLIMITED),
        (None, {}, limits.UNLIMITED, limits.UNLIMITED),
    ],
)
def test_the_quotas_of_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, files: dict[str, str], cpus: float, memory: float
) -> None:
    if own is not None:
        (tmp_path / "own").write_text(own)
    for name, text in files.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(limits, "OWN", tmp_path / "own")
    monkeypatch.setattr(limits, "MOUNT", tmp_path / "mount")
    assert (limits.cpus(), limits.memory()) == (cpus, memory)


@pytest.mark.parametrize(("quota", "cores"), [(limits.UNLIMITED, 8), (16.0, 8), (2.5, 2), (0.5, 1)])
def test_cores_are_those_of_the_quota(monkeypatch: pytest.MonkeyPatch, quota: float, cores: int) -> None:
    """With more threads than that, all of them would stand still for a part of each period."""
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(limits, "cpus", lambda: quota)
    assert limits.cores() == cores


def test_memory_is_that_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = site.available_memory()
    monkeypatch.setattr(limits, "memory", lambda: 1e6)
    assert site.available_memory() == 1e6 < whole
