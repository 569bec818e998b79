"""Functions that a config names: found and checked by their source, and one clear line for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import Config, parse
from sparring.components.functions import FunctionRef, keyword_options, names
from sparring.components.training.terms import LossTerm
from tests.support.errors import refused

CROSS_ENTROPY = "components.losses.listwise.cross_entropy"


class Losses(Config):
    losses: list[LossTerm]


@pytest.mark.parametrize(
    ("short", "path"),
    [
        ("cross_entropy", CROSS_ENTROPY),
        ("listwise.cross_entropy", CROSS_ENTROPY),
        ("sparring.components.losses.listwise.cross_entropy", CROSS_ENTROPY),
        ("simlm.released", "components.losses.simlm.released"),
    ],
)
def test_a_short_name_stands_for_the_dotted_path(short: str, path: str) -> None:
    assert LossTerm(function=short).function == path


def test_a_function_is_found_and_its_options_are_bound() -> None:
    from sparring.components.losses.listwise import cross_entropy

    call = FunctionRef(function=CROSS_ENTROPY, options={"temperature": 0.05})
    assert call.resolve() is cross_entropy
    assert keyword_options("components.losses.listwise.distillation") == {
        "temperature": 1.0,
        "teacher_temperature": 1.0,
    }


@pytest.mark.parametrize(
    ("term", "key", "code"),
    [
        ({"function": "components.losses.listwise.cross_entropi"}, "losses.0.function", "unknown-function"),
        ({"function": "components.losses.listwize.cross_entropy"}, "losses.0.function", "unknown-module"),
        ({"function": "cross_entropi"}, "losses.0.function", "unknown-function"),
        ({"function": "released"}, "losses.0.function", "ambiguous-function"),
        ({"function": "simlm.relaesed"}, "losses.0.function", "unknown-module"),
        ({"function": "components.losses"}, "losses.0.function", "unknown-function"),
        ({"function": "nowhere.at.all"}, "losses.0.function", "unknown-module"),
        ({"function": "math.sqrt"}, "losses.0.function", "unknown-module"),
        ({"function": "time.sleep"}, "losses.0.function", "unknown-module"),
        ({"function": "components.config.FunctionRef.resolve"}, "losses.0.function", "unknown-module"),
        ({"function": CROSS_ENTROPY, "options": {"temprature": 1}}, "losses.0.options", "unknown-option"),
        ({"function": CROSS_ENTROPY, "options": {"scores": 1}}, "losses.0.options", "unknown-option"),
        ({"function": CROSS_ENTROPY, "options": {"temperature": "warm"}}, "losses.0.options", "wrong-type"),
        ({"function": CROSS_ENTROPY, "options": {"temperature": -0.05}}, "losses.0.options", "too-small"),
        ({"function": CROSS_ENTROPY, "options": {"temperature": True}}, "losses.0.options", "wrong-type"),
        ({"function": CROSS_ENTROPY, "options": {"temperature": None}}, "losses.0.options", "wrong-type"),
        ({"function": "components.sampling.uniform", "options": {"depth": 1}}, "losses.0.function", "wrong-signature"),
        ({"function": CROSS_ENTROPY, "wait": 1}, "losses.0.wait", "unknown-key"),
        ({"function": CROSS_ENTROPY, "temperature": 0.05}, "losses.0", "misplaced-option"),
        ({"function": CROSS_ENTROPY, "duplicates": "count"}, "losses.0.duplicates", "invalid"),
    ],
)
def test_a_typo_is_found_when_the_file_is_read(term: dict[str, Any], key: str, code: str) -> None:
    with refused(key, code):
        parse(Losses, {"losses": [term]}, where="some.yaml")


def test_a_whole_number_will_do_for_a_float() -> None:
    assert FunctionRef(function=CROSS_ENTROPY, options={"temperature": 2}).options == {"temperature": 2}


def test_a_default_that_is_no_plain_value_binds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_functions.py").write_text(
        "def f(x, *, a=-1.5, b=print, c='x', d=None, e, **more): ...\nasync def g(x, *, a=1): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert keyword_options("some_functions.f") == {"a": -1.5, "b": None, "c": "x", "d": None}
    FunctionRef(function="some_functions.f", options={"a": -2, "b": 7, "c": "y", "d": [1]})
    with pytest.raises(ValueError, match="Use a value like 'x'"):
        FunctionRef(function="some_functions.f", options={"c": 1})


def test_a_module_that_cannot_be_imported_is_found_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking_functions.py").write_text(
        "from __future__ import annotations\nimport os.path, no_such_package.inside\ntry:\n    import neither\n"
        "except ImportError: pass\ndef f(x): import nor_this\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"lacking_functions\.py:2: imports no_such_package, which is not installed"):
        FunctionRef(function="lacking_functions.f")


def test_checking_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_functions.py").write_text("raise RuntimeError('imported')\ndef f(x, *, a=1): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert FunctionRef(function="heavy_functions.f", options={"a": 2}).options == {"a": 2}


def test_a_terms_name_says_what_it_looks_over() -> None:
    assert LossTerm(function=CROSS_ENTROPY, over="batch").name == "cross_entropy (batch)"


@pytest.mark.parametrize(
    ("loss", "taught"),
    [
        ("listwise.cross_entropy", False),
        ("listwise.kl", True),
        ("adversarial.released", True),  # by a function of its module
        ("irgan.discriminator", False),
        ("irgan.generator", True),
    ],
)
def test_a_loss_that_needs_a_teacher_is_told_by_its_source(loss: str, taught: bool) -> None:
    assert names(f"components.losses.{loss}", "taught") is taught
