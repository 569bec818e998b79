"""The rules of the house: what the documentation and the docstrings promise of the code's shape."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sparring.components.config import Config
from sparring.components.sources import base as sources
from sparring.components.yaml_files import read_based
from sparring.workflows.experiments import loading
from sparring.workflows.systems.rows import Outcome
from tests.support.planned import CONFIGS, planned
from tests.support.tiny import ROOT

PACKAGES = ("components", "workflows")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(path: Path) -> str:
    """The name that a module is imported by."""
    return ".".join(["sparring", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def tracked() -> list[Path]:
    """Every file of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no checkout")
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


# The layout


def layout(text: str) -> dict[str, str]:
    """Paths of the tree under the heading Layout, with what is said of each."""
    block = re.search(r"^## Layout\n+```\w*\n(.*?)^```", text, re.M | re.S)
    assert block, "house.md has no fenced block under the heading Layout"
    shown, above = {}, []
    for line in block[1].splitlines():
        words = line.split(maxsplit=1)
        level = (len(line) - len(line.lstrip())) // 2
        above[level:] = [words[0]]
        shown["".join(above)] = words[1].removeprefix("# ") if len(words) > 1 else ""
    return shown


def test_the_layout_is_what_is_on_disk() -> None:
    """Each line is a path and what it is. All folders are there, of the two packages those inside them too."""
    shown = layout((ROOT / "docs" / "pages" / "house.md").read_text())
    assert [path for path in shown if not (ROOT / path).exists()] == []
    assert [path for path in shown if (ROOT / path).is_dir() != path.endswith("/")] == []
    assert [path for path, subject in shown.items() if not subject] == []
    parents = [parent for path in tracked() for parent in path.relative_to(ROOT).parents if parent != Path()]
    folders = {f"{parent}/" for parent in parents if not parent.parts[0].startswith(".")}
    tops = {folder for folder in folders if folder.count("/") == 1}
    assert tops - shown.keys() == set()
    within = [f"{package}/" for package in PACKAGES]
    within += [top for top in tops if any(path.startswith(top) and path != top for path in shown)]
    for folder in folders:
        top, *rest = Path(folder).parts
        if len(rest) == 1 and f"{top}/" in within:
            assert folder in shown, f"the layout shows {top}/, but not {folder}"


# Recipes, configs, steps


@pytest.mark.parametrize("recipe", loading.recipe_names())
def test_a_recipe_has_a_config_and_builds_a_graph(recipe: str) -> None:
    module = importlib.import_module(f"sparring.workflows.recipes.{recipe}")
    assert issubclass(module.Config, Config)
    assert typing.get_args(module.Config.model_fields["recipe"].annotation) == (recipe,)
    assert inspect.signature(module.build).parameters.keys() == {"config"}
    assert typing.get_type_hints(module.build) == {"config": module.Config, "return": Outcome}


def reachable(annotation: Any) -> Iterator[type[BaseModel]]:
    """Config classes inside an annotation, and inside those."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from reachable(field.annotation)
    for argument in typing.get_args(annotation):
        yield from reachable(argument)


def configs() -> list[type[BaseModel]]:
    """Every config that a file can hold: from recipes, sources and profiles."""
    tops = [importlib.import_module(f"sparring.workflows.recipes.{recipe}").Config for recipe in loading.recipe_names()]
    tops += [importlib.import_module(f"sparring.components.sources.{format}").Source for format in sources.formats()]
    tops += [
        importlib.import_module("sparring.workflows.distributed.cluster").Cluster,
        importlib.import_module("sparring.workflows.tuning.config").Tuning,
    ]
    return sorted({result for top in tops for result in reachable(top)}, key=lambda c: f"{c.__module__}.{c.__name__}")


@pytest.mark.parametrize("config", configs(), ids=lambda config: f"{config.__module__}.{config.__name__}")
def test_every_config_field_is_documented(config: type[BaseModel]) -> None:
    """By a docstring under it, or by that of the config it holds."""
    assert config.__doc__
    missing = [
        field
        for field, details in config.model_fields.items()
        if not (details.description or "").strip()
        and not list(reachable(details.annotation))
        and len(typing.get_args(details.annotation)) != 1  # a tag that has one value, such as the recipe's name
    ]
    assert missing == []
    assert config.model_config.get("extra") == "forbid"
    assert config.model_config.get("frozen")


def test_a_step_takes_a_place_a_machine_and_named_inputs() -> None:
    """`f(out, machine, *, ...)`, in a file of `workflows/steps`, with a docstring that says what it writes.

    `train` alone takes inputs of any name beside: what an objective asks for that others do not.
    """
    for function in frozenset().union(*(planned(path).functions for path in CONFIGS)):
        first, second, *rest = inspect.signature(function).parameters.values()
        assert (first.name, second.name) == ("out", "machine")
        named = [
            item for item in rest if item.kind is not inspect.Parameter.VAR_KEYWORD or function.__name__ != "train"
        ]
        assert all(item.kind is inspect.Parameter.KEYWORD_ONLY for item in named)
        assert function.__module__.startswith("sparring.workflows.steps.")
        assert function.__doc__


COMPARED = re.compile(r"\.function(\.__name__)? (is|==|!=|in|not in) ")


@pytest.mark.parametrize("path", [path for path in MODULES if "workflows" in path.parts], ids=name)
def test_a_steps_description_and_not_its_function_says_what_others_need(path: Path) -> None:
    """Knowledge flows forward: see `Description` in `workflows.store.dag`."""
    assert not [line for line in path.read_text().splitlines() if COMPARED.search(line)]


# Modules


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_what_is_public_says_what_it_does(path: Path) -> None:
    module = tree(path)
    assert ast.get_docstring(module)
    silent = [
        node.name
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "misc", "base_utils", "tools", "lib"}
    paths = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    assert [name(path) for path in paths if path.stem in empty or path.parent.name in empty] == []


def imports(path: Path) -> set[str]:
    """Top-level names of what a module imports, anywhere in it."""
    result: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: a relative import"
            result.add(node.module or "")
    return {module.partition(".")[0] for module in result}


def runs_what_it_reads(module: ast.Module) -> list[str]:
    """Calls that run code which lies on a disk or comes from a model hub: pickles, eval, unsafe YAML, shells."""
    result = []
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            called, named = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
            banned = called in ("eval", "exec", "compile", "torch.load", "torch.save", "yaml.load")
            by_place = called == "np.load" and len(node.args) > 2  # the third argument is allow_pickle
            if banned or by_place or named & {"trust_remote_code", "allow_pickle", "shell"}:
                result.append(ast.unparse(node))
    return result


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_on_disk_is_run(path: Path) -> None:
    assert not imports(path) & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    assert runs_what_it_reads(tree(path)) == []


PLANTED = """\
eval("1")
exec("1")
import pickle; pickle.loads(b"")
import cloudpickle; cloudpickle.loads(b"")
import dill; dill.loads(b"")
import joblib; joblib.load("x")
import marshal; marshal.loads(b"")
import shelve; shelve.open("x")
import torch; torch.load("x", weights_only=False)
import yaml; yaml.load("x", Loader=yaml.Loader)
import numpy as np; np.load("x", allow_pickle=True)
import numpy as np; np.load("x", None, True)
import transformers; transformers.AutoModel.from_pretrained("x", trust_remote_code=True)
import subprocess; subprocess.run("x", shell=True)
import os; os.system("x" + y)
import requests; requests.get("x", verify=False)
"""


def test_what_runs_what_it_reads_is_found() -> None:
    """By the linter in all that there is, or by the rule above in what reads files."""
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "json", "--stdin-filename", "planted.py", "-"]
    done = subprocess.run(command, input=PLANTED, capture_output=True, text=True, check=False, cwd=ROOT)
    codes = [(load["location"]["row"], load["code"]) for load in json.loads(done.stdout)]
    lint = {row for row, code in codes if code == "TID251" or re.fullmatch(r"S\d+", code or "")}
    for row, line in enumerate(PLANTED.splitlines(), 1):
        assert row in lint or runs_what_it_reads(ast.parse(line)), line
    assert len(lint) == len(PLANTED.splitlines()) - 3  # those that no rule of the linter knows


# Imports


def test_workflows_and_components_are_ours() -> None:
    for package in PACKAGES:
        assert Path(importlib.import_module(f"sparring.{package}").__file__ or "").resolve().parent == ROOT / package


def test_planning_loads_nothing_heavy() -> None:
    """Nor does reading any module of `workflows`: torch, Ray and Java are imported where a step runs. One config of
    each recipe is planned here, and all of them in tests/system/test_golden_plans.py. Once a plan is printed, what
    its steps refuse is looked for, which imports torch: not here.
    """
    code = """
import contextlib, importlib, io, sys
modules, configs = (words.split(",") for words in sys.argv[1:])
for module in modules:
    importlib.import_module(module)
from sparring.workflows.recipes.adapt import defaults
defaults.PATIENCE = 600.0  # a busy machine reads a collection for longer than the notice waits
from sparring.workflows.running.refusals import Refusals
Refusals.check = lambda self, **_: None
from sparring.workflows.command_line import main
for path in configs:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["--store", "nowhere", "plan", path]) == 0, path
heavy = {"torch", "transformers", "ray", "faiss", "jnius", "pyserini", "sentence_transformers", "matplotlib"}
print(sorted(heavy & sys.modules.keys()))
"""
    modules = [module for module in map(dotted, MODULES) if module.startswith("sparring.workflows")]
    configs = {read_based(path)["recipe"]: path for path in CONFIGS}.values()
    words = [",".join(map(str, item)) for item in (modules, configs)]
    command = [sys.executable, "-W", "error", "-c", code, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout, done.returncode) == ("", "[]\n", 0)


def test_every_module_is_imported_without_java_network_or_keys(tmp_path: Path) -> None:
    """Nor does reading a module start a process: what asks for any of these is a step, when it runs."""
    code = """
import importlib, socket, subprocess, sys
import torch  # with CUDA it looks for libraries by /sbin/ldconfig
class Denied(socket.socket):
    def connect(self, *arguments): raise AssertionError(f"connects to {arguments}")
def denied(*arguments, **options): raise AssertionError(f"asks for {arguments}")
socket.socket, socket.getaddrinfo, socket.create_connection, subprocess.Popen = Denied, denied, denied, denied
for module in sys.argv[1:]:
    importlib.import_module(module)
print(sorted({"jnius", "pyserini", "openai"} & sys.modules.keys()))
"""
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, *map(dotted, MODULES)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


# The repository


PLACES = re.compile(
    r"(?<![\w.$}/~-])/(?:home|root|Users|mnt|work|workspace|scratch|private|var/folders|opt/conda)/"  # one machine's
    r"|[A-Z]:\\Users"
    r"|\b(?:pypi\.org|pythonhosted\.org|test\.pypi|conda\.anaconda|npmjs\.org|artifactory|nexus\.|jfrog|ghcr\.io|gcr\.io)"
    r"|(?:index-url|find-links)\s*[= ]\s*\S*://"
    r"|\b(?!127\.0\.0\.1|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?::\d+)\b",
    re.I,
)


def test_no_file_names_a_place_of_one_machine() -> None:
    """Neither a path that only one machine has, nor the address of a registry: pip's own settings say where."""
    result = []
    for path in tracked():
        if path == Path(__file__) or path.suffix in (".png", ".gz", ".parquet"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if PLACES.search(line):
                result.append(f"{name(path)}:{number}: {line.strip()[:100]}")
    assert result == []


def test_no_large_file_is_tracked() -> None:
    assert [name(path) for path in tracked() if path.stat().st_size > 500_000] == []
