"""Modules by their dotted paths: where they are, and what changes the digest of their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.components import modules
from tests.support.tiny import ROOT

PACKAGE = {
    "__init__.py": "",
    "losses.py": "from .parts import margins\nfrom components import scores\ndef loss(): return margins.f\n",
    "parts/__init__.py": "",
    "parts/margins.py": "import own_package.parts.numbers\ndef f(): return 1  # one\n",
    "parts/numbers.py": "SLOPE = 2\n",
    "aside.py": "from own_package import losses\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's package, in a folder that Python looks into."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in PACKAGE.items():
        path = tmp_path / "own_package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own_package"


def test_what_lies_beside_a_module_is_part_of_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a package or not; packages that are installed have versions instead."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "flat_loss.py").write_text("import flat_helper, numpy, json\nimport flat_package.deep\n")
    (tmp_path / "flat_helper.py").write_text("T = 1\n")
    (tmp_path / "flat_package").mkdir()
    for name in ("__init__.py", "deep.py"):
        (tmp_path / "flat_package" / name).write_text("")
    digests = [modules.digest("flat_loss")]
    for path in (tmp_path / "flat_helper.py", tmp_path / "flat_package" / "deep.py"):
        path.write_text("T = 22\n")
        digests.append(modules.digest("flat_loss"))
    assert len(set(digests)) == 3
    (tmp_path / "flat_unused.py").write_text("T = 3\n")
    assert modules.digest("flat_loss") == digests[-1]
    (tmp_path / "flat_spaces").mkdir()  # a package without __init__.py
    (tmp_path / "flat_spaces" / "a.py").write_text("import flat_helper\n")
    spaced = modules.digest("flat_spaces.a")
    (tmp_path / "flat_helper.py").write_text("T = 333\n")
    assert modules.digest("flat_spaces.a") != spaced
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / "their_loss.py").write_text("import their_helper\n")
    (installed / "their_helper.py").write_text("T = 1\n")
    expected = modules.digest("their_loss")
    (installed / "their_helper.py").write_text("T = 22\n")
    assert modules.digest("their_loss") == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("losses.py", "from .parts import margins\ndef loss(): return margins.f()\n"),
        ("__init__.py", "import random\n"),
        ("parts/__init__.py", "X = 1\n"),
        ("parts/margins.py", "import own_package.parts.numbers\ndef f(): return 2\n"),
        ("parts/numbers.py", "SLOPE = 3\n"),
    ],
)
def test_what_a_module_imports_from_its_package_is_part_of_its_digest(package: Path, name: str, text: str) -> None:
    before = modules.digest("own_package.losses")
    (package / name).write_text(text)
    assert modules.digest("own_package.losses") != before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("aside.py", "from own_package import losses\nX = 1\n"),
        ("parts/numbers.py", "# How steep it is.\n\nSLOPE = (2)\n"),
    ],
)
def test_another_module_comments_and_layout_are_none(package: Path, name: str, text: str) -> None:
    before = modules.digest("own_package.losses")
    (package / name).write_text(text)
    assert modules.digest("own_package.losses") == before
    assert before is not None


def test_a_package_without_init_and_a_single_module_have_digests_too(package: Path) -> None:
    (package / "__init__.py").unlink()
    (package / "parts" / "__init__.py").unlink()
    before = modules.digest("own_package.losses")
    (package / "parts" / "numbers.py").write_text("SLOPE = 3\n")
    assert modules.digest("own_package.losses") != before
    (package.parent / "single_module.py").write_text("X = 1\n")
    assert modules.digest("single_module") is not None


@pytest.mark.parametrize("name", ["components.losses.listwise", "workflows.steps.train", "math", "nowhere.at.all", ""])
def test_ours_and_what_is_no_python_file_have_none(name: str) -> None:
    assert modules.digest(name) is None


def test_files_are_found_and_nothing_is_imported(package: Path) -> None:
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    assert modules.file_of("own_package.parts.margins") == package / "parts" / "margins.py"
    assert modules.file_of("own_package.parts") == package / "parts" / "__init__.py"
    assert modules.file_of("components.config").resolve() == ROOT / "components" / "config.py"
    for name in ("components.config.Config", "own_package.no", "own_package.", ".losses", "own_package/aside", "math"):
        assert modules.file_of(name) is None


def test_a_file_that_is_not_python_is_named_with_its_line(package: Path) -> None:
    (package / "parts" / "numbers.py").write_text("SLOPE = 2\nSLOPE =\n")
    with pytest.raises(ValueError, match=r"own_package/parts/numbers\.py:2: not Python: invalid syntax"):
        modules.digest("own_package.losses")
    (package / "parts" / "numbers.py").write_bytes(b"SLOPE = '\xe9'\n")
    with pytest.raises(ValueError, match=r"own_package/parts/numbers\.py: not UTF-8 text"):
        modules.digest("own_package.losses")
