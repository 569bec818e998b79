"""YAML files of keys and values: reading, merging, changing and writing. Errors name the line of a mistake."""

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
"""Largest number of values in a YAML file."""


def read_text(path: Path) -> str:
    """Return the text of a file. UserError if there is no such file or it is not UTF-8."""
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
    """Return the mapping in a YAML file. UserError names the file and line of a mistake."""
    try:
        tree = _loaded(read_text(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        spaces = "; indent YAML with spaces" if "\\t" in str(error.problem) else ""
        raise UserError(f"{path}:{line}: not YAML: {error.problem}{spaces}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        raise UserError(f"{path}: the file is empty. Write keys and values.")
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected keys and values, got {type(tree).__name__}")
    return tree


def read_based(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the mapping in a YAML file, merged over the mapping of its base.

    The key `base` names the file of the base, relative to this file. UserError if a file is its own base.
    """
    if path.resolve() in above:
        raise UserError(f"{path}: base: the file is its own base, by way of {listing(above)}")
    tree = read_yaml(path)
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: base: got {base!r}. Use the path of a file, relative to this one.")
    below = path.parent / base
    if not below.exists():
        siblings = [os.path.relpath(file, path.parent) for file in below.parent.glob("*.yaml")]
        raise UserError(
            f"{path}: base: {below}: there is no such file{did_you_mean(base, siblings)}", code="missing-file"
        )
    return merged(tree, read_based(below, (*above, path.resolve())))


def merged(over: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of `base`, replaced and extended by those of `over`. Mappings are merged key by key.

    Lists and values replace those of the base. So do mappings whose `format` or `function` differs from the base's.
    """
    if any(key in over and over[key] != base.get(key) for key in ("format", "function")):
        return over
    both = dict(base)
    for key, value in over.items():
        below = base.get(key)
        both[key] = merged(value, below) if isinstance(value, dict) and isinstance(below, dict) else value
    return both


class _Strict(yaml.SafeLoader):
    """Loader for YAML in which a repeated key is an error, and 1e-5 is a number.

    PyYAML itself uses the last of repeated keys, and reads 1e-5 as a string.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Plain(yaml.SafeDumper):
    """Writer of YAML for `_Strict`: a text that looks like 1e-5 is quoted.

    Repeated values are written again instead of as an alias, because people and hubs expect that.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _loader in (_Strict, _Plain):
    _loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def yaml_text(tree: Mapping[str, Any]) -> str:
    """Return a tree of keys as YAML. `read_yaml` reads it as the same tree.

    >>> print(yaml_text({"digest": "12e4", "rate": 1e-05}), end="")
    digest: '12e4'
    rate: 1.0e-05
    """
    return yaml.dump(tree, Dumper=_Plain, sort_keys=False, allow_unicode=True)


def yaml_line(value: Any) -> str:
    """Return any value as YAML on one line.

    >>> yaml_line({"sha256": {"a.csv": "12e4"}})
    "{sha256: {a.csv: '12e4'}}"
    """
    text = yaml.dump(
        value, Dumper=_Plain, sort_keys=False, allow_unicode=True, default_flow_style=True, width=float("inf")
    )
    return text.removesuffix("\n").removesuffix("\n...")  # the end mark of a YAML text with a single value


def _loaded(text: str) -> Any:
    """Return the value of a YAML text, as a copy that the caller may change.

    YAMLError also if it is nested too deeply, if a number is too long, or if aliases contain themselves or make more
    values than fit in memory.
    """
    return copy.deepcopy(_value(text))


@lru_cache(maxsize=128)  # experiments that are compared share a file or a base
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
    """Count the values of a node, including those of an alias each time it is used. YAMLError if there are too many."""
    if id(node) not in sizes:
        sizes[id(node)] = None
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inside = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        sizes[id(node)] = 1 + sum(_size(child, sizes) for child in inside)
    size = sizes[id(node)]
    if size is None or size > VALUES:
        problem = "an alias that contains itself" if size is None else f"more than {VALUES:,} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return size


def set_once(assignments: list[str]) -> list[str]:
    """Return the assignments unchanged. ValueError names a key with two different values."""
    values: dict[str, str] = {}
    for assignment in assignments:
        path, _, value = assignment.partition("=")
        if values.setdefault(path, value) != value:
            raise ValueError(f"{path} is set twice, to {values[path]} and to {value}. Use one value.")
    return assignments


Assignments = Annotated[list[str], AfterValidator(set_once)]
"""Type of a config's field for assignments `key.path=value`, as in `--set`."""


def override(tree: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Return a copy of the tree with the assignments `key.path=value`. Values are YAML. UserError names a wrong one."""
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
    """Set the key at `key.path` of a tree. UserError, which begins with `where`, if there cannot be such a key."""
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
    """Return the child at a position of a list or at a key. Create a missing key."""
    if isinstance(node, list):
        if key not in map(str, range(len(node))):  # int() refuses some digits, and takes others than 0 to 9
            raise UserError(f"{where}: {key!r} is not a position in a list of {len(node)}")
        return node[int(key)]
    if node.get(key) is None:
        node[key] = {}
    return node[key]
