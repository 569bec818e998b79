"""What tests of several files begin with."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.workflows import command_line
from tests.support import expanded
from tests.support.tiny import Place


@pytest.fixture(scope="session")
def chain(toys: Path, data: Path) -> dict[str, Path]:
    """Expansions, what each finds, and their ranks (`tests.support.expanded.chain`)."""
    return expanded.chain(toys / "chain", data)


@pytest.fixture(scope="module")
def exported(run: Place, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Export a system, by its name, of the run that a file's own fixture `run` made. Each is exported once."""
    places = tmp_path_factory.mktemp("exported")

    def folder(name: str) -> Path:
        to = places / name.replace(" ", "-")
        if not to.exists():
            assert run("export", str(to), "--system", name) == 0
        return to

    return folder


@pytest.fixture
def mistakes(monkeypatch: pytest.MonkeyPatch) -> list[UserError]:
    """The mistakes that a command reports."""
    reported: list[UserError] = []
    report = command_line._said

    def keep(mistake: UserError, arguments: argparse.Namespace) -> int:
        reported.append(mistake)
        return report(mistake, arguments)

    monkeypatch.setattr(command_line, "_said", keep)
    return reported
