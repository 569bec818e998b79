"""Cluster profiles, of this machine and of a cluster that is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparring.components.yaml_files import yaml_text

HARDWARE = {
    "nodes": 2,
    "cores": 64,
    "memory_gb": 512,
    "disk_gb": 50_000,
    "gpus": 8,
    "gpu_teraflops": 100,
    "share_of_peak": 0.5,
}


def profile(tmp_path: Path, **keys: Any) -> Path:
    """A cluster profile."""
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml_text({"mode": "inline", "device": "cpu", "map": {"workers": 1, "threads": 1}, **keys}))
    return path


def stated(tmp_path: Path, hardware: dict[str, Any] | None = None, **keys: Any) -> Path:
    """The profile of a cluster that is not here."""
    settings = {"hardware": {**HARDWARE, **(hardware or {})}, **keys}
    return profile(tmp_path, mode="ray", device="cuda", price_per_hour=30.0, **settings)
