"""The examples in the docstrings of `components.data` give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from sparring.components import data


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(data.__path__)])
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"sparring.components.data.{name}")).failed == 0
