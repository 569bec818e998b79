"""The documentation's reference, made from the code: commands, the keys of every recipe and of the cluster profile,
losses, licences. MkDocs calls the hooks at the end of this file."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cluster import licences  # noqa: E402
from sparring.components.config import Config  # noqa: E402
from sparring.components.sources import base  # noqa: E402
from sparring.workflows import command_line as command_line  # noqa: E402
from sparring.workflows.distributed.cluster import Cluster  # noqa: E402
from sparring.workflows.experiments import loading  # noqa: E402

PARTS = "parts"
"""The page of the classes that several recipes have keys of."""


def pages() -> dict[str, str]:
    """Every page by its place."""
    result = {"commands.md": commands(), "losses.md": losses(), "formats.md": formats(), "licences.md": licences.page()}
    recipes = {name: importlib.import_module(f"sparring.workflows.recipes.{name}") for name in loading.recipe_names()}
    reached = {name: list(dict.fromkeys(_reached(module.Config))) for name, module in recipes.items()}
    shared = {
        cls for classes in reached.values() for cls in classes if sum(cls in value for value in reached.values()) > 1
    }
    for name, module in recipes.items():
        itself = [item for item in reached[name] if item not in shared or item is module.Config]
        result[f"configs/{name}.md"] = _page(f"Recipe {name}", inspect.getdoc(module) or "", itself, shared)
    details = "Keys that several recipes have, by the class that has them."
    result[f"configs/{PARTS}.md"] = _page(
        "Shared parts", details, sorted(shared, key=lambda single: single.__name__), shared
    )
    details = "What a run runs on: a YAML file that `--cluster` names. Numbers of workers are those of all machines."
    result["profile.md"] = _page("Cluster profile", details, list(_reached(Cluster)), set())
    return result


def commands() -> str:
    """Every command with its help and its arguments."""
    lines = [
        "# Commands",
        "",
        "`sparring COMMAND` in any folder, or `python -m workflows COMMAND` in the repository's.",
        "",
    ]
    top = command_line.parser()
    subparsers = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    lines += _arguments(action for action in top._actions if action is not subparsers)
    for name, parser in subparsers.choices.items():
        usage = " ".join(parser.format_usage().replace(command_line.program(), "sparring").split())
        lines += [f"## {name}", "", parser.description or "", "", "```", usage.removeprefix("usage: "), "```", ""]
        lines += _arguments(parser._actions)
    return "\n".join(lines)


def _arguments(actions: Any) -> list[str]:
    rows = []
    for action in actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        name = ", ".join(action.option_strings) or action.metavar or action.dest
        value = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
        rows.append(f"| `{name}{value}` | {_cell((action.help or '') % {**vars(action), 'prog': 'sparring'})} |")
    return ["| argument | meaning |", "|---|---|", *rows, ""] if rows else []


def losses() -> str:
    """Every loss with its options and its docstring."""
    lines = [
        "# Losses",
        "",
        "A config names a loss by its short name: `{function: kl, over: group}`. If two modules define a name, write",
        "the module too: `{function: simlm.released}`.",
        "",
    ]
    for file in sorted((ROOT / "components" / "losses").glob("*.py")):
        tree = ast.parse(file.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
        if file.stem in ("__init__", "masking") or not functions:
            continue
        lines += [f"## {file.stem}", "", ast.get_docstring(tree) or "", ""]
        for function in functions:
            call = f"{function.name}({ast.unparse(function.args)})"
            lines += [
                f"### {function.name}",
                "",
                f"```python\n{call}\n```",
                "",
                _docstring(ast.get_docstring(function)),
            ]
    return "\n".join(lines)


def formats() -> str:
    """Every format that `data:` reads, with its keys."""
    lines = [
        "# Formats",
        "",
        "`data: {format: NAME, ...}` reads a collection. Each format is a file in `components/sources`.",
        "",
    ]
    modules = {name: importlib.import_module(f"sparring.components.sources.{name}") for name in base.formats()}
    sources = [module.Source for module in modules.values()]
    place = list(dict.fromkeys(item for source in sources for item in _reached(source)))
    for name, module in modules.items():
        lines += [f"## {name}", "", inspect.getdoc(module) or "", "", *_keys(module.Source, place, set())]
    for item in place:
        if item not in sources:
            lines += [f"## {item.__name__}", "", inspect.getdoc(item) or "", "", *_keys(item, place, set())]
    return "\n".join(lines).replace("(../formats.md)", "(#formats)")


def _docstring(text: str | None) -> str:
    """A docstring as Markdown: examples become code."""
    words, _, example = (text or "").partition(">>>")
    return words.strip() + (f"\n\n```python\n>>>{example.rstrip()}\n```" if example else "") + "\n"


def _page(title: str, details: str, classes: list[type[BaseModel]], shared: set[type[BaseModel]]) -> str:
    lines = [f"# {title}", "", details, ""]
    for cls in classes:
        lines += [f"## {cls.__name__}", "", inspect.getdoc(cls) or "", "", *_keys(cls, classes, shared)]
    return "\n".join(lines)


def _keys(single: type[BaseModel], here: list[type[BaseModel]], shared: set[type[BaseModel]]) -> list[str]:
    """The table of a config class; its recipe or format, which says what the other keys are, comes first."""
    fields = sorted(single.model_fields.items(), key=lambda item: item[0] not in ("recipe", "format"))
    rows = [
        f"| `{name}` | {_type(field.annotation, here, shared)} | {_default(field)} | {_about(field)} |"
        for name, field in fields
    ]
    return ["| key | value | default | what it is |", "|---|---|---|---|", *rows, ""] if rows else []


def _about(field: Any) -> str:
    """Describe a key: by its docstring, by its only value, or by the first sentence of its class's docstring."""
    if field.description:
        return _cell(field.description)
    values = typing.get_args(field.annotation)
    if typing.get_origin(field.annotation) is typing.Literal and len(values) == 1:
        return f"Always `{_yaml(values[0])}`: this value selects the keys of this table."
    if field.annotation is base.Source:
        return "The data set: the name of its format, and the keys of that format."
    texts = [text for text in map(inspect.getdoc, _classes(field.annotation)) if text]
    return _cell(texts[0].partition(". ")[0].rstrip(".") + "." if texts else "")


def _type(annotation: Any, here: list[type[BaseModel]], shared: set[type[BaseModel]]) -> str:
    """An annotation in words, with links to the classes in it."""
    if annotation is type(None):
        return "null"
    if annotation is base.Source:
        return "[a format](../formats.md) and its keys"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        page = "" if annotation in here else f"{PARTS}.md" if annotation in shared else ""
        return f"[{annotation.__name__}]({page}#{annotation.__name__.lower()})"
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return " or ".join(f"`{_yaml(value)}`" for value in inside)
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(inside[0], here, shared)
    if typing.get_origin(annotation) in (list, tuple, set):
        return f"list of {_type(inside[0], here, shared)}" if inside else "list"
    if typing.get_origin(annotation) is dict:
        return f"{_type(inside[1], here, shared)} by name"
    if inside:
        return " or ".join(_type(item, here, shared) for item in inside)
    names = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`true` or `false`",
        Path: "path",
        Any: "any value",
    }
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: Any) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return "its own defaults" if value.model_fields_set == set() else f"`{value.model_dump(exclude_unset=True)}`"
    return "" if value is PydanticUndefined else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
    )


def _cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|")


def _reached(single: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A config class and those that its keys have, each before those inside it."""
    waiting, seen = [single], set()
    while waiting:
        now = waiting.pop(0)
        if now in seen:
            continue
        seen.add(now)
        yield now
        for field in now.model_fields.values():
            waiting += _classes(field.annotation)


def _classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation] if annotation not in (Config, base.Source) else []
    return [cls for inside in typing.get_args(annotation) for cls in _classes(inside)]


def on_config(config: Any) -> Any:
    """List the generated pages under "Reference", before the pages that `mkdocs.yml` has there."""
    configs = [f"reference/{place}" for place in pages() if place.startswith("configs/")]
    output = [
        "reference/commands.md",
        {"Configs": configs},
        "reference/profile.md",
        "reference/formats.md",
        "reference/losses.md",
        "reference/licences.md",
    ]
    config.nav = [{"Reference": output + entry["Reference"]} if "Reference" in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the made pages."""
    for place, text in pages().items():
        files.append(File.generated(config, f"reference/{place}", content=text))
    return files
