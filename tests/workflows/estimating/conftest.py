"""An experiment to estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.components.yaml_files import yaml_text
from tests.support import tiny


@pytest.fixture
def config(tmp_path: Path, data: Path, encoder: Path) -> Path:
    """DPR on a toy collection."""
    beir = tiny.write_beir(tmp_path / "beir", data)
    path = tmp_path / "dpr.yaml"
    path.write_text(yaml_text(tiny.dpr(beir, encoder)))
    return path
