"""The examples in the docstrings run, and every public function of these modules has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from sparring.components import losses, neighbours, sampling
from sparring.components.evaluation import measures


def modules_of(package: ModuleType) -> list[ModuleType]:
    return [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(package.__path__)
    ]


def functions_of(module: ModuleType) -> list[Callable[..., Any]]:
    return [
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]


MODULES = [*modules_of(losses), *modules_of(neighbours), measures, sampling]
FUNCTIONS = [function for module in MODULES for function in functions_of(module)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda item: f"{item.__module__}.{item.__name__}")
def test_a_public_function_has_an_example_that_holds(function: Callable[..., Any]) -> None:
    (test,) = doctest.DocTestFinder(recurse=False).find(function, globs=dict(vars(inspect.getmodule(function))))
    assert test.examples, "the docstring has no example"
    report: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert not failed, "".join(report)
