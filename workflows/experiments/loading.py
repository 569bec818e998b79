"""Reading an experiment: its YAML file, its recipe, its graph, and its place under `runs/`."""

import hashlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sparring.components import modules
from sparring.components.config import Config, Invalid, UserError, leading_key, listing, parse
from sparring.components.sources.table_files import KINDS, kind_of
from sparring.components.systems.config import SYSTEM
from sparring.components.yaml_files import read_based, read_yaml
from sparring.workflows import ROOT
from sparring.workflows.experiments.expected import KEY, Expected
from sparring.workflows.experiments.scale import KEYS, SCALE, NoSmallScale, at_scale_of, rescaled
from sparring.workflows.program import CALLED_AS, EXPERIMENT_KEYS, SENT, located, program
from sparring.workflows.stages import selection
from sparring.workflows.stages.config import CollectionConfig, Default
from sparring.workflows.store.dag import Step, counted
from sparring.workflows.store.object_store import open_store
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Outcome

CONFIG = "config.yaml"
"""The resolved config in a run's folder."""
FROM = "from.txt"
"""The file in a run's folder with the relative path of the config's file, next to which its experiments may lie."""


@dataclass(frozen=True)
class Experiment:
    """A config file with its `--set` values, and the graph that its recipe builds from it."""

    name: str
    config: Any
    outcome: Outcome
    run: Path
    """`runs/<config name>[-<6 hex of the --set values>]`."""
    defaults: Sequence[Default] = ()
    """Values that the config left open and the recipe filled in."""
    expected: Expected | None = None
    """The paper's results, if the file has them."""
    scale: str | None = None
    """`small` if the file's key `small` has changed the experiment."""
    file: Path | None = None
    """The config's file."""

    @property
    def wanted(self) -> list[Step]:
        """The steps at the ends of the graph, in the order in which a run comes to them."""
        early = [outcome.results for outcome in self.outcome.early]
        return [*early, self.outcome.results, self.outcome.data, *self.outcome.pictures]

    def newest(self, store: Store) -> "Experiment":
        """Return the experiment with the last of its outcomes that has results. If none has, return it as it is."""
        return replace(self, outcome=self.outcome.newest(store))

    @property
    def tree(self) -> dict[str, Any]:
        """The keys of a file that describes this experiment: its config, and its scale."""
        scale = {SCALE: self.scale} if self.scale is not None else {}
        return dict(self.config.model_dump(mode="json")) | scale


@cache
def recipe_names() -> list[str]:
    """List the recipes of `workflows/recipes`: its modules and packages."""
    paths = (ROOT / "workflows" / "recipes").iterdir()
    return sorted(path.stem for path in paths if not path.name.startswith(("_", ".")))


def name_of(path: Path) -> str:
    """Return an experiment's name: its file's, after those of its folders if these are in `configs`."""
    folder, configs = path.resolve().parent, ROOT / "configs"
    return "-".join([*(folder.relative_to(configs).parts if folder.is_relative_to(configs) else ()), path.stem])


def read(path: Path, assignments: list[str], runs: Path, store: str | None = None) -> Experiment:
    """Read the experiment in a config file, or in a run's folder. UserError says what is wrong with it.

    The choices that a recipe made for an earlier run still hold. They are in that run's folder, or kept in a store.
    """
    if is_run(place := located(path)):
        if assignments:
            meant = _suggest(path, [place.name, place.name.rpartition("-")[0]])
            raise UserError(
                f"{path}: the folder of a run, as it was run; accepted with --set: its config{meant}",
                key=str(path),
                code="finished-run",
            )
        experiment = build_experiment(read_tree(path, []), place / CONFIG, place)
        return replace(experiment, name=place.name, file=_origin(place / CONFIG))
    path, suffix = _find_file(path), ""
    if assignments:
        digest = hashlib.sha256(json.dumps(sorted(assignments)).encode()).hexdigest()
        suffix = f"-{digest[:6]}"
    experiment = build_experiment(read_tree(path, assignments), path, runs / f"{name_of(path)}{suffix}", store)
    if experiment.expected is None:
        return experiment
    return replace(experiment, expected=experiment.expected.after(assignments))


def other_runs(experiment: Experiment) -> list[Path]:
    """List the folders of other runs of the same config: with other `--set` values, or with none."""
    name = re.sub(r"-[0-9a-f]{6}$", "", experiment.run.name)
    folders = [experiment.run.with_name(name), *sorted(experiment.run.parent.glob(f"{name}-" + "[0-9a-f]" * 6))]
    return [path for path in folders if is_run(path) and path != experiment.run]


def is_run(path: Path) -> bool:
    """Check whether a path is the folder of a run."""
    return (path / CONFIG).is_file()


def is_system(path: Path) -> bool:
    """Check whether a path that may be a config is the folder of an exported system."""
    return path.is_dir() and not is_run(path)


def _find_file(path: Path) -> Path:
    """Return a config's file: a run's is in its folder, and one that another experiment names may lie next to that.
    UserError with a suggestion if it is missing."""
    above = _outer_file()
    place = located(path, above and _origin(above))
    if is_run(place):
        return place / CONFIG
    if (place / SYSTEM).is_file():
        raise UserError(
            f"{path}: an exported system; accepted: a config (search, serve and marks take a system too)",
            key=str(path),
            code="not-a-config",
        )
    if place.is_dir():
        raise UserError(
            f"{path}: a folder without {CONFIG}; accepted: a config, or the folder of a run, which has it",
            key=str(path),
            code="not-a-config",
        )
    if kind_of(place.name) in KINDS and place.is_file():
        raise UserError(
            f"{path}: a table; accepted: a config, which `{program()} init {path}` writes for it",
            key=str(path),
            code="not-a-config",
        )
    if place.exists():
        return place
    meant = _suggest(path, [name_of(place), place.stem])
    if above:
        message = f"{path}: there is no such file, here or beside {above}{meant}"
        raise UserError(message, key=str(path), code="missing-file")
    hint = f"`{program()} init FOLDER` writes one"
    advice = hint if path.suffix in (".yaml", ".yml") else f"accepted: a config ({hint}), or the folder of a run"
    message = f"{path}: there is no such file{meant or f'; {advice}'}"
    raise UserError(message, key=str(path), code="missing-file")


def _origin(path: Path) -> Path:
    """Return the file that a run's config comes from, if it still exists. For any other config return its own file."""
    note = path.with_name(FROM)
    if path.name == CONFIG and note.is_file() and (origin := note.parent / note.read_text().strip()).is_file():
        return origin
    return path


def keep_file(file: Path, folder: Path) -> Path:
    """Copy an experiment's file to a folder that outlasts a job, if the file was sent with the job.

    Return the path to use from that folder.
    """
    file = file.resolve()
    if CALLED_AS in os.environ and (ROOT / SENT).is_dir():
        shutil.copytree(ROOT / SENT, folder / SENT, dirs_exist_ok=True)
    return file.relative_to(ROOT) if file.is_relative_to(ROOT / SENT) else file


def keep_experiments(tree: dict[str, Any], path: Path, folder: Path) -> dict[str, Any]:
    """Rewrite the experiments that a config names so that a file in another folder can name them too."""
    named = {key: located(Path(tree[key]), _origin(path)) for key in EXPERIMENT_KEYS if isinstance(tree.get(key), str)}
    return tree | {
        key: str(keep_file(file, folder))
        for key, file in named.items()
        if not file.resolve().is_relative_to(ROOT / "configs")
    }


def _suggest(path: Path, names: list[str]) -> str:
    """Suggest a config by an experiment's name (`demo`: configs/demo.yaml) or by a similar path."""
    files = {name_of(file): str(file) for file in Path().glob("*.yaml")}
    files |= {name_of(file): str(file.relative_to(ROOT)) for file in (ROOT / "configs").rglob("*.yaml")}
    near = [files[name] for name in names if name in files] + get_close_matches(str(path), files.values(), 1)
    return f"; did you mean {near[0]}?" if near else ""


def read_tree(path: Path, assignments: list[str]) -> dict[str, Any]:
    """Read the tree of keys in a config file, with `--set` values."""
    return rescaled(read_based(_find_file(path)), assignments, str(path))


def build_experiment(tree: dict[str, Any], path: Path, run: Path, store: str | None = None) -> Experiment:
    """Build the experiment that a tree of keys describes. Messages name the file that it comes from."""
    with at_scale_of(tree):
        recipe, config, defaults = _resolve(tree, path, lambda: _read_earlier(run, store))
        outcome = _build(recipe, config, path)
    expected = parse(Expected, tree[KEY], where=f"{path}: {KEY}") if tree.get(KEY) is not None else None
    return Experiment(
        name=name_of(path),
        config=config,
        outcome=outcome,
        run=run,
        defaults=defaults,
        expected=expected,
        scale=tree.get(SCALE),
        file=path,
    )


def read_config(path: Path, assignments: list[str]) -> Any:
    """Read the config in a file, an instance of its recipe's `Config`. No graph is built."""
    return _resolve(read_tree(path, assignments), path)[1]


def read_outcome(path: Path, assignments: list[str], key: str = "experiment", *, needs: Sequence[str] = ()) -> Outcome:
    """Return what a config file's recipe builds, for recipes that name other experiments by a key. UserError names
    the experiment that has the key, also if the file's recipe lacks a key that it `needs`."""
    above = _outer_file()
    try:
        path = _find_file(path)
        tree = read_tree(path, assignments)
        lacking = [field for field in needs if field not in _load_recipe(tree.get("recipe"), path).Config.model_fields]
        if lacking:
            raise UserError(
                f"{path}: recipe: {tree['recipe']}: it has no {listing(lacking)}; accepted: one that has",
                key="recipe",
                code="unsupported-recipe",
            )
        recipe, config, _ = _resolve(tree, path)
        return _build(recipe, config, path)
    except NoSmallScale:
        raise
    except UserError as error:
        raise (error.within(f"{above}: {key}") if above else error) from None


def build_outcome(tree: dict[str, Any]) -> Outcome:
    """Return what the recipe that a tree of keys names builds, for recipes that write such trees."""
    recipe, config = _validate(tree, Path(f"(made for {tree['recipe']})"))
    outcome: Outcome = recipe.build(config)
    return outcome


def _resolve(
    tree: dict[str, Any], path: Path, earlier: Callable[[], dict[str, Any] | None] = lambda: None
) -> tuple[ModuleType, Any, Sequence[Default]]:
    """Return the recipe's module, the config, and the defaults that the recipe filled in.

    A recipe fills in with `resolve(config, previous)`, where `previous` is the resolved config of an earlier run, or
    None.
    """
    recipe, config = _validate(tree, path)
    if not hasattr(recipe, "resolve"):
        return recipe, config, ()
    previous = earlier()
    try:
        config, defaults = recipe.resolve(config, previous)
    except UserError as error:
        raise error.within(str(path)) from None
    return recipe, config, defaults


def _read_earlier(run: Path, store: str | None) -> dict[str, Any] | None:
    """Read the resolved config of an earlier run."""
    if (run / CONFIG).exists():
        return read_yaml(run / CONFIG)
    return None if store is None else open_store(store).kept_config(run.name)


def _validate(tree: dict[str, Any], path: Path) -> tuple[ModuleType, Any]:
    """Return the module of the recipe that a tree names, and the config."""
    tree = {key: value for key, value in tree.items() if key not in ("tune", KEY, *KEYS)}  # which are not the recipe's
    recipe = _load_recipe(tree.get("recipe"), path)
    return recipe, parse(recipe.Config, tree, where=str(path))


def _build(recipe: ModuleType, config: Any, path: Path) -> Outcome:
    above = _being_built.get()
    if path.resolve() in map(Path.resolve, above):
        raise UserError(
            f"{path}: the experiment builds on itself, by way of {listing(above)}", key=str(path), code="circular"
        )
    token = _being_built.set((*above, path))
    try:
        with counted():
            outcome = recipe.build(config)
            if not isinstance(outcome, Outcome):
                kind = type(outcome).__name__
                raise ValueError(f"recipe: {recipe.__name__}.build returned {kind}; accepted: an Outcome")
            if isinstance(config, CollectionConfig):  # else several collections or experiments, and no system leads
                outcome = selection.selected(outcome, config)
    except ValueError as error:
        key, code = (error.key, error.code) if isinstance(error, Invalid) else (None, "invalid")
        raise UserError(f"{path}: {error}", key=key or leading_key(str(error)) or str(path), code=code) from None
    finally:
        _being_built.reset(token)
    return outcome


def is_named_by_another() -> bool:
    """Check whether the experiment that is being read is one that another experiment names."""
    return _outer_file() is not None


def _outer_file() -> Path | None:
    """Return the experiment that is being built and names others. None if there is none."""
    return next(reversed(_being_built.get()), None)


_being_built: ContextVar[tuple[Path, ...]] = ContextVar("being_built", default=())
"""The experiments that build on each other, the outermost first."""


def _load_recipe(name: Any, path: Path) -> ModuleType:
    """Load a recipe's module: one of `workflows/recipes`, or any other by its dotted path."""
    if name in recipe_names():
        return importlib.import_module(f"sparring.workflows.recipes.{name}")
    parts = name.split(".") if isinstance(name, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        value = "missing" if name is None else repr(name)
        raise UserError(
            f"{path}: recipe: {value}; accepted: {listing(recipe_names())}, or a module's dotted path",
            key="recipe",
            code="unknown-recipe",
        )
    try:
        module = modules.load(name)
    except ImportError as error:
        looked = f"; {modules.LOOKED_IN}" if isinstance(error, ModuleNotFoundError) else ""
        raise UserError(
            f"{path}: recipe: {name!r} cannot be imported: {error}{looked}", key="recipe", code="unknown-recipe"
        ) from error
    lacking = [part for part in ("Config", "build") if not hasattr(module, part)]
    if lacking:
        raise UserError(
            f"{path}: recipe: the module {name!r} has no {listing(lacking)}; a recipe has Config and build",
            key="recipe",
            code="unsupported-recipe",
        )
    if not (isinstance(module.Config, type) and issubclass(module.Config, Config)):
        raise UserError(
            f"{path}: recipe: {name}.Config is no config; accepted: a class of sparring.components.config.Config",
            key="recipe",
            code="unsupported-recipe",
        )
    return module
