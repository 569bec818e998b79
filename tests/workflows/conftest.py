"""What several steps' tests begin with."""

from pathlib import Path

import pytest

from tests.support import expanded


@pytest.fixture(scope="session")
def chain(toys: Path, data: Path) -> dict[str, Path]:
    """Expansions, what each finds, and their ranks (`tests.support.expanded.chain`)."""
    return expanded.chain(toys / "chain", data)
