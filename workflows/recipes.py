"""Reading an experiment: the YAML file, its recipe found by name, its graph, and its place under `runs/`."""

import hashlib
import importlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from components.config import UserError, listing, override, parse, read_based
from workflows.dag import Step

_DEFINED = re.compile(r"^(?:class|def) \w+", re.MULTILINE)


@dataclass(frozen=True)
class Experiment:
    """A config file with its `--set` values, and what its recipe makes of it."""

    name: str
    config: Any
    outcome: Any
    run: Path
    """`runs/<config name>[-<6 hex of the --set values>]`."""

    @property
    def wanted(self) -> list[Step]:
        """The steps that the whole graph leads to."""
        return [self.outcome.results, self.outcome.data, *self.outcome.pictures]


@cache
def names() -> list[str]:
    """The recipes: modules of this folder with both a `Config` and a `build`."""
    here = sorted(Path(__file__).parent.glob("*.py"))
    # Looked for in the text: to parse them all takes a tenth of a second, which every command would wait for.
    return [path.stem for path in here if {"class Config", "def build"} <= set(_DEFINED.findall(path.read_text()))]


def read(path: Path, assignments: list[str], runs: Path) -> Experiment:
    """The experiment in a config file; UserError names what is wrong with it."""
    tree = override(read_based(path), assignments)
    suffix = ""
    if assignments:
        digest = hashlib.sha256(json.dumps(sorted(assignments)).encode()).hexdigest()
        suffix = f"-{digest[:6]}"
    return made(tree, path, runs / f"{path.stem}{suffix}")


def made(tree: dict[str, Any], path: Path, run: Path) -> Experiment:
    """What the recipe that a tree names makes of it; the file that it comes from is for messages."""
    tree = {key: value for key, value in tree.items() if key != "tune"}  # which is for `tune`
    name = tree.get("recipe")
    if name not in names():
        raise UserError(f"{path}: recipe: {'missing' if name is None else repr(name)}; accepted: {listing(names())}")
    module = importlib.import_module(f"workflows.{name}")
    config = parse(module.Config, tree, where=str(path))
    try:
        outcome = module.build(config)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return Experiment(name=path.stem, config=config, outcome=outcome, run=run)
