"""An experiment with a section `tune`, for the tests of tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import tiny

WARM, GAME = "retriever.warm.train.learning_rate", "retriever.game.train.learning_rate"


def tree(beir: Path, encoder: Path, **options: Any) -> dict[str, Any]:
    """AR2 without controls, and a tuning of its learning rates."""
    space = {WARM: {"grid": [1e-3, 1e-9]}, GAME: {"grid": [1e-3, 2e-3]}}
    section = {"measure": "RR@10", "systems": ["warm retriever", "retriever 1"], "space": space, **options}
    return {**tiny.ar2(beir, encoder), "controls": {"include": []}, "tune": section}
