"""What tests of pre-training share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import toy
from tests.support.pretrainings import Artifacts


@pytest.fixture(scope="session")
def pretraining(toys: Path, data: Path, tokens: Path, encoder: Path, language_model: Path) -> Artifacts:
    """What pre-training is made from. The retriever is as SimLM's: the vector is that of [CLS]."""
    retriever = toy.started(toys / "cls-retriever", toy.retriever_config(encoder))
    return Artifacts(data, tokens, retriever, language_model)
