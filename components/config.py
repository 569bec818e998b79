"""Configs: frozen pydantic models, read from YAML, in which unknown keys are errors."""

import ast
import copy
import importlib
import os
import re
from collections import ChainMap
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from components import modules

VALUES = 100_000
"""Most values of a YAML file."""
LINE = 1_200
"""Most characters of a line of a message."""


class UserError(Exception):
    """A mistake of the user. The message is one line that names the file, line or key; the exit status is 2.

    Where it quotes a file, or a file's name, it may hold anything: what a terminal would obey is escaped, and what is
    too long to read is cut in its middle.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(map(_plain, lines)))


def _plain(line: str) -> str:
    if not line.isprintable():
        line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)
    return line if len(line) <= LINE else f"{line[: LINE // 2]} ... {line[-LINE // 3 :]}"


class Config(BaseModel):
    """Base of every config: unknown keys are errors, and the docstring below a field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def files(self) -> dict[str, Path]:
        """The files outside the store that a step with this config reads, by name, whether or not they exist."""
        return {}

    def missing(self) -> list[str]:
        """What a step with this config reads and cannot find: files, or packages."""
        # unlike Path.exists, this takes a name that is longer than names can be
        return [str(path) for path in self.files().values() if not os.path.exists(path)]

    def installed(self) -> dict[str, str]:
        """The versions of the installed packages whose files a step with this config reads, by name."""
        return {}


C = TypeVar("C", bound=BaseModel)


class FunctionRef(Config):
    """A function named by its dotted path, with options that are checked against its signature.

    The signature is read from the source file, so that checking a config does not import the function's module.
    """

    takes: ClassVar[tuple[str, ...] | None] = None
    """What the function is given by position; None where that is not checked."""

    function: str
    """Dotted path, for example `components.losses.listwise.cross_entropy`."""
    options: dict[str, Any] = Field(default={}, validate_default=True)
    """Keyword-only arguments of the function. Those left out have the function's defaults, which are identity too."""

    @field_validator("function")
    @classmethod
    def _exists(cls, path: str) -> str:
        keyword_options(path)
        if cls.takes is not None:
            _check_signature(path, cls.takes)
        return path

    @field_validator("options")
    @classmethod
    def _binds(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "function" not in info.data:  # which is the mistake then
            return options
        function = info.data["function"]
        defaults = keyword_options(function)
        for name, value in options.items():
            if name not in defaults:
                raise ValueError(f"{function} has no option {name!r}; accepted: {listing(defaults)}")
            if not _like(value, defaults[name]):
                raise ValueError(f"{function}: {name} is {value!r}; accepted: a value like {defaults[name]!r}")
        plain = {name: value for name, value in defaults.items() if isinstance(value, (bool, int, float, str))}
        given = {name: float(value) if isinstance(defaults[name], float) else value for name, value in options.items()}
        return plain | given

    def resolve(self) -> Any:
        """The function itself."""
        module, _, name = self.function.rpartition(".")
        return getattr(importlib.import_module(module), name)


def keyword_options(path: str) -> dict[str, Any]:
    """Names and defaults of the keyword-only parameters that have a default, of the function at a dotted path.

    A default that is not a literal is given as None. ValueError if there is no such function.
    """
    arguments = _function(path).args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: _literal(default) for argument, default in pairs if default}


def _check_signature(path: str, takes: tuple[str, ...]) -> None:
    """ValueError unless a function takes so many arguments by position, and all others by keyword, with a default."""
    arguments = _function(path).args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    accepted = f"accepted: {', '.join(takes)}, and behind a `*` options with a default"
    if len(positional) != len(takes):
        raise ValueError(f"{path} takes {', '.join(positional) or 'nothing'}; {accepted}")
    if bare := [argument.arg for argument, default in pairs if default is None]:
        raise ValueError(f"{path}: {listing(bare)}: no default; {accepted}")


def _function(path: str) -> ast.FunctionDef:
    """The source of the function at a dotted path."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} names no module; accepted: MODULE.FUNCTION, such as my_package.losses.{path}")
    file = modules.file_of(module)
    if file is None:
        raise ValueError(f"no module {module!r} for the function {path!r}; looked for where you are, in PYTHONPATH and "
                         "among the installed packages")  # fmt: skip
    functions = {node.name: node for node in modules.syntax(file).body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        public = sorted(function for function in functions if not function.startswith("_"))
        raise ValueError(f"{module} has no function {name!r}; accepted: {listing(public)}")
    return functions[name]


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _like(value: Any, default: Any) -> bool:
    """Whether a value has the type of a default; an integer is accepted for a float."""
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return default is None or type(value) is type(default)


def listing(names: Any) -> str:
    """Names joined by commas, for an error message; in quotes where one has a comma itself.

    >>> listing(["BM25", "start model"]), listing(["BM25", "BM25 + start model, interpolated"])
    ('BM25, start model', "'BM25', 'BM25 + start model, interpolated'")
    """
    told = [str(name) for name in names]
    return ", ".join(map(repr, told) if any("," in name for name in told) else told) or "(none)"


def distinct(values: list[Any]) -> list[Any]:
    """The same list, as a validator of a config's field; ValueError names a value that stands twice."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} stands twice")
    return values


def read_text(path: Path) -> str:
    """The text of a file; UserError if there is no such file or it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except (OSError, ValueError) as error:  # such as a name that no file can have
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; UserError names the file and line of what is wrong."""
    try:
        tree = _loaded(read_text(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}:{line}: not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected keys and values, got {type(tree).__name__}")
    return tree


def read_based(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The mapping in a YAML file, merged over that of its base: the file that its key `base` names, relative to it.

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
    return merged(tree, read_based(path.parent / base, (*above, path.resolve())))


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
    """Writes what `_Strict` reads: a text that looks like 1e-5 is quoted."""


for _own in (_Strict, _Plain):
    _own.add_implicit_resolver(
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
    )  # fmt: skip
    return text.removesuffix("\n").removesuffix("\n...")  # which ends a text that is a value alone


def _loaded(text: str) -> Any:
    """The value of a YAML text. YAMLError for one that is nested too deeply too, for a number too long to read, and for
    aliases that hold themselves or repeat each other into more than fits in memory."""
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


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """How many values a node has, those of aliases as often as they are named; YAMLError where they are too many."""
    if id(node) not in known:
        known[id(node)] = None
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inside = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(one, known) for one in inside)
    size = known[id(node)]
    if size is None or size > VALUES:
        problem = "an alias that holds itself" if size is None else f"more than {VALUES:,} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return size


def override(tree: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A copy of the tree with assignments `key.path=value` applied. Values are YAML; UserError names a wrong one."""
    tree = copy.deepcopy(tree)
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals or not path:
            raise UserError(f"--set {assignment}: expected key.path=value")
        try:
            new = _loaded(value)
        except yaml.YAMLError as error:
            raise UserError(f"--set {assignment}: not YAML: {' '.join(str(error).split())}") from None
        assign(tree, path, new, where=f"--set {assignment}")
    return tree


def assign(tree: dict[str, Any], path: str, value: Any, *, where: str) -> None:
    """Give the key at `key.path` of a tree a value. UserError, which begins with `where`, if it cannot have one."""
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
    """The child at a key, which is made if there is none, or at a position of a list."""
    if isinstance(node, list):
        if key not in map(str, range(len(node))):  # int() refuses some digits, and takes others than 0 to 9
            raise UserError(f"{where}: {key!r} is not a position in a list of {len(node)}")
        return node[int(key)]
    if node.get(key) is None:
        node[key] = {}
    return node[key]


def parse(cls: type[C], tree: dict[str, Any], *, where: str) -> C:
    """Validate a tree as a config. UserError names `where`, the key of the first mistake and what is accepted."""
    try:
        return cls.model_validate(tree)
    except RecursionError:
        raise UserError(f"{where}: nested too deeply") from None
    except UnicodeEncodeError as error:  # an escaped half of a character
        raise UserError(f"{where}: text that is not UTF-8: {error.object[:80]!r}") from None
    except ValidationError as error:
        mistakes = error.errors()
        # Unknown keys first: with a misspelt key, the right one is missing too.
        first = next((one for one in mistakes if one["type"] == "extra_forbidden"), mistakes[0])
        place = without_classes(cls, first["loc"])
        if first["type"] == "extra_forbidden":
            accepted = fields_at(cls, first["loc"][:-1])
            near = [_keys_below(one, place[:-1]) for one in _classes(cls, first["loc"][:-1])[:1]]
            said = unknown(place[-1], accepted, ChainMap(*near, _keys_below(cls)))
            raise UserError(f"{where}: {'.'.join(map(str, place))}: {said}") from None
        off = any(one["loc"][:-1] == first["loc"][:-1] and one["msg"] == "Input should be False" for one in mistakes)
        raise UserError(f"{where}: {mistake(first, place, off=off)}") from None


def unknown(key: Any, accepted: list[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """What is wrong with a key that a config does not have. `elsewhere` are keys of its other places, with their whole
    names.

    >>> unknown("pair_token", ["model", "pair_tokens"])
    'unknown key; accepted: model, pair_tokens; did you mean pair_tokens?'
    >>> unknown("query_token", ["model"], {"query_tokens": "model.query_tokens"})
    'unknown key; accepted: model; did you mean model.query_tokens?'
    """
    named = {**(elsewhere or {}), **{one: one for one in accepted}}
    near = "".join(f"; did you mean {named[one]}?" for one in get_close_matches(str(key), named, 1))
    return f"unknown key; accepted: {listing(accepted)}{near}"


def mistake(found: Mapping[str, Any], place: tuple[Any, ...], *, off: bool = False) -> str:
    """A mistake that pydantic has found at a place, in words: the key, what is wrong, and what was got. `off` says that
    false may stand there too."""
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] in ("model_type", "dict_type"):
        message = "expected keys and values" + (", or false" if off else "")
    got = "" if found["type"] in ("missing", "value_error") else f", got {found['input']!r}"
    return f"{'.'.join(map(str, place)) or '(top level)'}: {message}{got}"


def without_classes(cls: Any, location: tuple[Any, ...]) -> tuple[Any, ...]:
    """A location as a config has it: without the classes that pydantic names where a key takes several kinds."""
    named = [part for at, part in enumerate(location) if part in {one.__name__ for one in _classes(cls, location[:at])}]
    return tuple(part for part in location if part not in named)


def fields_at(cls: Any, location: tuple[Any, ...]) -> list[str]:
    """Field names of the config class at a location: keys, list positions and union tags, as pydantic reports them."""
    classes = _classes(cls, location)
    return list(classes[0].model_fields) if classes else []


def _classes(cls: Any, location: tuple[Any, ...]) -> list[type[BaseModel]]:
    """The config classes that may stand at a location."""
    classes = [cls]
    for part in location:
        tagged = [one for one in classes if part == one.__name__ or _is_tag(part, one)]
        fields = [one.model_fields[part] for one in classes if part in one.model_fields]
        if len(classes) > 1 and tagged:
            classes = tagged
        elif fields:
            classes = _config_classes(fields[0].annotation)
    return classes


def _keys_below(cls: type[BaseModel], place: tuple[Any, ...] = ()) -> dict[str, str]:
    """All keys of a config at a place and of its parts: each with its dotted name, of several the shortest. Those of
    lists' parts are left out, as their names have a position."""
    found: dict[str, str] = {}
    Place = tuple[str, type[BaseModel], tuple[type[BaseModel], ...]]
    places: list[Place] = [("".join(f"{part}." for part in place), cls, (cls,))]
    for before, one, above in places:  # which grows: the classes of a level come before those below
        for name, field in one.model_fields.items():
            found.setdefault(name, f"{before}{name}")
            parts = [part for part in _config_classes(field.annotation, lists=False) if part not in above]
            places += [(f"{before}{name}.", part, (*above, part)) for part in parts]
    return found


def _is_tag(part: Any, cls: type[BaseModel]) -> bool:
    """Whether a part of a location is the tag that selects this class of a union."""
    return any(part in get_args(field.annotation) for field in cls.model_fields.values())


def _config_classes(annotation: Any, *, lists: bool = True) -> list[type[BaseModel]]:
    """The config classes in an annotation such as `list[X] | None`; without `lists` those of its lists are left out."""
    if get_origin(annotation) is list and not lists:
        return []
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for argument in get_args(annotation) for cls in _config_classes(argument, lists=lists)]
