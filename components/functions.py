"""Functions named in configs. They are checked by reading their source, without importing their modules."""

import ast
import math
from functools import cache
from pathlib import Path
from traceback import extract_tb
from typing import Any, ClassVar

from pydantic import Field, ValidationInfo, field_validator, model_validator

from sparring.components import modules
from sparring.components.config import Config, Invalid, UserError, did_you_mean, listing


class FunctionRef(Config):
    """A function given by its short name or its dotted path, with options that are checked against its signature.

    The signature is read from the source file. Checking a config therefore does not import the function's module.
    """

    takes: ClassVar[tuple[str, ...] | None] = None
    """Names of the positional arguments. If None, they are not checked."""
    may_take: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments without a default that the function may have."""
    built_in: ClassVar[str | None] = None
    """The package or module of ours whose functions have short names. If None, there are no short names."""

    function: str
    """Short name of a built-in function, for example `cross_entropy`, or dotted path of your own, for example
    `my_package.losses.focal`. If two modules define the name, write the module too, for example `simlm.released`."""
    options: dict[str, Any] = Field(default={}, validate_default=True)
    """Keyword-only arguments of the function. Omitted ones have the function's defaults, which are identity too."""

    @model_validator(mode="before")
    @classmethod
    def _has_options_in_their_place(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("function"), str):
            return value
        for key in value.keys() - cls.model_fields.keys():
            try:
                options = keyword_options(cls.path(value["function"]))
            except ValueError:  # already reported
                return value
            if key in options:
                raise Invalid(
                    f"{key}: this is an option of {value['function']}. Write `options: {{{key}: ...}}`.",
                    "misplaced-option",
                )
        return value

    @field_validator("function")
    @classmethod
    def _exists(cls, name: str) -> str:
        path = cls.path(name)
        keyword_options(path)
        if cls.takes is not None:
            _check_signature(path, cls.takes, cls.may_take)
        return path

    @classmethod
    def path(cls, name: str) -> str:
        """Return the dotted path of the built-in function with a short name. Return a dotted path unchanged.

        ValueError if there is no such built-in function, or if two modules define it.
        """
        if cls.built_in is None:
            return modules.canonical(name)
        functions = built_in(cls.built_in, cls.takes)
        paths = [path for path in functions if path.endswith(f".{name}")]
        if len(paths) > 1:
            raise Invalid(
                f"got {name!r}, but {len(paths)} functions have this name. Use {' or '.join(map(_qualified, paths))}.",
                "ambiguous-function",
            )
        if paths or "." in name:
            return paths[0] if paths else modules.canonical(name)
        accepted = sorted({path.rpartition(".")[2] for path in functions})
        raise Invalid(
            f"there is no built-in function {name!r}. Use {listing(accepted)}, or MODULE.FUNCTION for your own"
            f"{did_you_mean(name, accepted) or '.'}",
            "unknown-function",
        )

    @field_validator("options")
    @classmethod
    def _binds(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "function" not in info.data:  # already reported
            return options
        function = info.data["function"]
        defaults = keyword_options(function)
        for name, value in options.items():
            if name not in defaults:
                raise Invalid(
                    f"{function} has no option {name!r}. Its options are {listing(defaults)}.", "unknown-option"
                )
            if not _like(value, defaults[name]):
                raise Invalid(f"{function}: {name} is {value!r}. Use a value like {defaults[name]!r}.", "wrong-type")
            if isinstance(value, float) and not math.isfinite(value) and _is_finite(defaults[name]):
                raise Invalid(f"{function}: {name} is {value!r}. Use a finite number.", "not-finite")
            if name.endswith("temperature") and isinstance(value, (int, float)) and value <= 0:
                raise Invalid(f"{function}: {name} is {value!r}. Use a number above 0.", "too-small")
        plain = {name: value for name, value in defaults.items() if isinstance(value, (bool, int, float, str))}
        passed = {name: float(value) if isinstance(defaults[name], float) else value for name, value in options.items()}
        return plain | passed

    def resolve(self) -> Any:
        """Import the function."""
        module, _, name = self.function.rpartition(".")
        return getattr(modules.load(module), name)

    def called(self, *arguments: Any, **further: Any) -> Any:
        """Call the function with its options. RuntimeError names the function and the line if it fails."""
        function = self.resolve()
        try:
            return function(*arguments, **self.options, **further)
        except UserError:
            raise
        except Exception as error:
            file = getattr(getattr(function, "__code__", None), "co_filename", "")
            lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == file]
            where = f" at {file}:{lines[-1]}" if lines else ""
            message = f"{self.function} failed{where}: {type(error).__name__}: {' '.join(str(error).split())}"
            raise RuntimeError(message) from error


@cache
def built_in(place: str, takes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the dotted paths of the public functions with such arguments in a package or module of ours."""
    root = Path(__file__).parents[1]
    file = root.joinpath(*place.split("."))
    return tuple(
        ".".join((*source.relative_to(root).with_suffix("").parts, node.name))
        for source in sorted(file.glob("*.py")) or [file.with_suffix(".py")]
        for node in modules.syntax(source).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and takes in (None, tuple(argument.arg for argument in node.args.args))
    )


def _qualified(path: str) -> str:
    """Return the last two parts of a dotted path: the short name with its module."""
    return ".".join(path.split(".")[-2:])


def _is_finite(value: Any) -> bool:
    return not isinstance(value, (int, float)) or math.isfinite(value)


def keyword_options(path: str) -> dict[str, Any]:
    """Return the names and defaults of a function's optional keyword-only parameters, read from its source.

    A default that is not a literal becomes None. ValueError if there is no such function.
    """
    arguments = _function(path).args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: _literal(default) for argument, default in pairs if default}


def decorated(path: str, decorator: str) -> dict[str, Any]:
    """Return the keyword arguments of a decorator, read from the source of the function at a dotted path.

    Without the decorator, return none. ValueError if an argument is not a literal.
    """
    for node in _function(path).decorator_list:
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == decorator:
            try:
                return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            except ValueError:
                raise ValueError(
                    f"{path}: the arguments of @{decorator}(...) must be literals, such as True or a string."
                ) from None
    return {}


def names(path: str, *attributes: str) -> bool:
    """Return True if a function, or another function of its module that it uses, reads one of these attributes."""
    functions = _functions(path)
    waiting, seen = [path.rpartition(".")[2]], set()
    while waiting:
        if (name := waiting.pop()) not in functions or name in seen:
            continue
        seen.add(name)
        for node in ast.walk(functions[name]):
            if isinstance(node, ast.Attribute) and node.attr in attributes:
                return True
            if isinstance(node, ast.Name):
                waiting.append(node.id)
    return False


def _check_signature(path: str, takes: tuple[str, ...], may_take: tuple[str, ...]) -> None:
    """Raise ValueError unless a function has these positional parameters, and all its other ones are optional."""
    arguments = _function(path).args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    accepted = f"It must take {', '.join(takes)}, and after a `*` only options with a default."
    if len(positional) != len(takes):
        raise Invalid(f"{path} takes {', '.join(positional) or 'nothing'}. {accepted}", "wrong-signature")
    if bare := [argument.arg for argument, default in pairs if default is None and argument.arg not in may_take]:
        raise Invalid(f"{path} has options without a default: {listing(bare)}. {accepted}", "wrong-signature")


def _function(path: str) -> ast.FunctionDef:
    """Return the syntax of the function at a dotted path."""
    return _functions(path)[path.rpartition(".")[2]]


def _functions(path: str) -> dict[str, ast.FunctionDef]:
    """Return the syntax of the function at a dotted path and of all functions of its module, by name."""
    module, _, name = path.rpartition(".")
    if not module:
        raise Invalid(f"got {path!r}, which does not name a module. Write MODULE.FUNCTION.", "unknown-module")
    file = modules.file_of(module)
    if file is None:
        raise Invalid(f"there is no module {module!r} for the function {path!r}; {modules.LOOKED_IN}", "unknown-module")
    if not modules.is_ours(module) and (lacking := modules.absent(file)):
        line, package = lacking[0]
        raise Invalid(f"{file}:{line}: imports {package}, which is not installed. Install it.", "missing-package")
    functions = {node.name: node for node in modules.syntax(file).body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        public = sorted(function for function in functions if not function.startswith("_"))
        raise Invalid(f"{module} has no function {name!r}. Its functions are {listing(public)}.", "unknown-function")
    return functions


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _like(value: Any, default: Any) -> bool:
    """Return True if a value has the type of a default. An integer may replace a float."""
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return default is None or type(value) is type(default)
