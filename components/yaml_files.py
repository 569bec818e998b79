"""YAML files of keys and values: read, with the line of a mistake; merged over their base; changed; written."""

import copy
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator

from sparring.components.config import UserError, did_you_mean, listing

VALUES = 100_000
"""Most values of a YAML file."""


def read_text(path: Path) -> str:
    """The text of a file; UserError if there is no such file or it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file", code="missing-file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a file", code="not-a-file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})", code="not-utf8") from None
    except (OSError, ValueError) as error:  # such as a name that no file can have
        raise UserError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}", code="unreadable-file"
        ) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; UserError names the file and line of what is wrong."""
    try:
        tree = _loaded(read_text(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        spaces = "; YAML is indented by spaces" if "\\t" in str(error.problem) else ""
        raise UserError(f"{path}:{line}: not YAML: {error.problem}{spaces}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        raise UserError(f"{path}: the file is empty; accepted: keys and values")
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected keys and values, got {type(tree).__name__}")
    return tree


def read_based(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read the mapping in a YAML file, merged over that of its base: the file that its key `base` names, relative to
    it.

    UserError if a file is its own base.
    """
    if path.resolve() in above:
        raise UserError(f"{path}: base: the file is its own base, by way of {listing(above)}")
    tree = read_yaml(path)
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: base: expected the name of a file beside this one, got {base!r}")
    below = path.parent / base
    if not below.exists():
        siblings = [os.path.relpath(file, path.parent) for file in below.parent.glob("*.yaml")]
        raise UserError(
            f"{path}: base: {below}: there is no such file{did_you_mean(base, siblings)}", code="missing-file"
        )
    return merged(tree, read_based(below, (*above, path.resolve())))


def merged(over: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """A mapping over another, key by key. A list, a value, and a mapping with another `format` or `function` than the
    base's replace those of the base."""
    if any(key in over and over[key] != base.get(key) for key in ("format", "function")):
        return over
    both = dict(base)
    for key, value in over.items():
        below = base.get(key)
        both[key] = merged(value, below) if isinstance(value, dict) and isinstance(below, dict) else value
    return both


class _Strict(yaml.SafeLoader):
    """YAML in which a repeated key is an error and 1e-5 a number. PyYAML itself takes the last key, and a string."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Plain(yaml.SafeDumper):
    """Writes what `_Strict` reads: a text that looks like 1e-5 is quoted. What stands twice is written twice, as people
    and hubs read it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _loader in (_Strict, _Plain):
    _loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def yaml_text(tree: Mapping[str, Any]) -> str:
    """A tree of keys as YAML that `read_yaml` reads as the same tree.

    >>> print(yaml_text({"digest": "12e4", "rate": 1e-05}), end="")
    digest: '12e4'
    rate: 1.0e-05
    """
    return yaml.dump(tree, Dumper=_Plain, sort_keys=False, allow_unicode=True)


def yaml_line(value: Any) -> str:
    """The same of any value, on one line.

    >>> yaml_line({"sha256": {"a.csv": "12e4"}})
    "{sha256: {a.csv: '12e4'}}"
    """
    text = yaml.dump(
        value, Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=True, width=float("inf")
    )
    return text.removesuffix("\n").removesuffix("\n...")  # which ends a text that is a value alone


def _loaded(text: str) -> Any:
    """The value of a YAML text, one's own to change. YAMLError for one that is nested too deeply too, for a number too
    long to read, and for aliases that hold themselves or repeat each other into more than fits in memory."""
    return copy.deepcopy(_value(text))


@lru_cache(maxsize=128)  # experiments that are compared have one file, or one base
def _value(text: str) -> Any:
    try:
        loader = _Strict(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from None


def _size(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Count the values of a node, those of aliases as often as they are named. YAMLError if there are too many."""
    if id(node) not in sizes:
        sizes[id(node)] = None
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inside = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in inside)
    size = sizes[id(node)]
    if size is None or size > VALUES:
        problem = "an alias that holds itself" if size is None else f"more than {VALUES:,} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return size


def set_once(assignments: list[str]) -> list[str]:
    """The same assignments, as a validator of a list of them; ValueError names a key that is given two values."""
    values: dict[str, str] = {}
    for assignment in assignments:
        path, _, value = assignment.partition("=")
        if values.setdefault(path, value) != value:
            raise ValueError(f"{path} is set twice, to {values[path]} and to {value}; accepted: one value")
    return assignments


Assignments = Annotated[list[str], AfterValidator(set_once)]
"""`key.path=value`, as `--set` has it: the type of a config's field."""


def override(tree: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A copy of the tree with assignments `key.path=value` applied. Values are YAML; UserError names a wrong one."""
    tree = copy.deepcopy(tree)
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        path = path.strip()
        if not equals or not path:
            raise UserError(f"--set {assignment}: expected key.path=value")
        try:
            new = _loaded(value)
        except yaml.YAMLError as error:
            raise UserError(f"--set {assignment}: not YAML: {' '.join(str(error).split())}") from None
        assign(tree, path, new, where=f"--set {assignment}")
    return tree


def assign(tree: dict[str, Any], path: str, value: Any, *, where: str) -> None:
    """Set the key at `key.path` of a tree. UserError, which begins with `where`, if the key cannot have a value."""
    node: Any = tree
    *parents, last = path.split(".")
    for parent in parents:
        node = _child(node, parent, where)
        if not isinstance(node, (dict, list)):
            raise UserError(f"{where}: {parent!r} holds a value, not keys")
    if isinstance(node, list):
        _child(node, last, where)
        node[int(last)] = value
    else:
        node[last] = value


def _child(node: Any, key: str, where: str) -> Any:
    """Return the child at a key, made if it is missing, or at a position of a list."""
    if isinstance(node, list):
        if key not in map(str, range(len(node))):  # int() refuses some digits, and takes others than 0 to 9
            raise UserError(f"{where}: {key!r} is not a position in a list of {len(node)}")
        return node[int(key)]
    if node.get(key) is None:
        node[key] = {}
    return node[key]
