"""Files, syntax and digests of Python modules that configs name by dotted paths. Only `load` imports them."""

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

PACKAGE = "sparring"
"""The package of this module. The versions of steps identify what its code computes."""
OURS = ("components", "workflows")
"""Its subpackages. In configs and identities, names of modules begin here, as in `components.losses.listwise`."""
FOLDER = "SPARRING_MODULES"
"""Environment variable that tells the processes of a run the folder with the modules that its config names."""

INSTALLED = ("site-packages", "dist-packages")
"""Names of folders that contain installed packages."""
STANDARD = Path(ast.__file__).parent
"""The folder of Python's standard library."""

LOOKED_IN = "looked among the installed packages, in PYTHONPATH and in the current folder"
"""Places in which a module was not found."""


def canonical(name: str) -> str:
    """Return the dotted path of a module or a function as written in configs and identities.

    >>> canonical("sparring.components.losses.listwise"), canonical("my_package.losses")
    ('components.losses.listwise', 'my_package.losses')
    """
    inside = name.removeprefix(f"{PACKAGE}.")
    return inside if inside.partition(".")[0] in OURS else name


def imported_as(name: str) -> str:
    """Return the name by which Python imports a module.

    >>> imported_as("components.losses.listwise"), imported_as("my_package.losses")
    ('sparring.components.losses.listwise', 'my_package.losses')
    """
    return f"{PACKAGE}.{name}" if name.partition(".")[0] in OURS else name


def is_ours(name: str) -> bool:
    """Return True if a dotted path leads into this package."""
    return imported_as(name).partition(".")[0] == PACKAGE


def load(name: str) -> ModuleType:
    """Import the module at a dotted path. ImportError if there is none."""
    name = imported_as(name)
    _find(name.partition(".")[0])
    return importlib.import_module(name)


def own_folder() -> str | None:
    """Return the folder with the modules that a config names, or None before one of them was looked for."""
    return os.environ.get(FOLDER)


def add_own_folder() -> None:
    """Append the folder with the modules that a config names to the end of this process's path."""
    folder = own_folder()
    if folder and folder not in sys.path:
        sys.path.append(folder)


def _find(top: str) -> importlib.machinery.ModuleSpec | None:
    """Return the specification of a top-level module or package without importing it.

    The current folder is not on the path, so that none of its files can replace a library. If a config names a module
    that is only there, the current folder is appended to the path.
    """
    spec = importlib.util.find_spec(top)
    if spec is None and own_folder() is None and (Path(f"{top}.py").is_file() or Path(top).is_dir()):
        os.environ[FOLDER] = os.getcwd()
    if spec is None and own_folder() is not None:
        add_own_folder()
        spec = importlib.util.find_spec(top)
    return spec


def file_of(module: str) -> Path | None:
    """Return the Python file of a module, or None if there is no such module or it is not a Python file."""
    top, *inside = imported_as(module).split(".")
    if not all(part.isidentifier() for part in (top, *inside)):
        return None
    try:
        spec = _find(top)
    except ValueError:  # a module without a place, such as `__main__`
        return None
    if spec is None:
        return None
    places = [Path(folder, *inside) for folder in spec.submodule_search_locations or ()]
    files = [file for place in places for file in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
    if not inside:
        files = [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []
    return next((file for file in files if file.is_file()), None)


def syntax(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file. ValueError with file and line if it is not Python."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: not Python: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def absent(path: Path) -> list[tuple[int, str]]:
    """Return the lines and names of packages that a Python file imports, but that are not installed.

    Imports inside functions and conditions do not count.
    """
    named = [
        (node.lineno, name)
        for node in syntax(path).body
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    ]
    packages = [(line, name.partition(".")[0]) for line, name in named]
    return [(line, package) for line, package in packages if importlib.util.find_spec(package) is None]


def digest(module: str) -> str | None:
    """Return the SHA-256 of a module's source and of the modules that it imports. Return None for a module of ours.

    Imports count if they are from the module's own package, or from packages next to it that are not installed.
    Comments, layout, modules imported by a computed name, and files read as data do not count.
    """
    package = module.partition(".")[0]
    if is_ours(module) or file_of(module) is None:
        return None
    folder = _folder_of(package)
    sources: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = file_of(name)
        top = name.partition(".")[0]
        if name in sources or path is None or is_ours(top) or (top != package and _folder_of(top) != folder):
            continue
        status = path.stat()
        sources[name], imported = _source(name, path, status.st_mtime_ns, status.st_size)
        waiting += imported
    return hashlib.sha256("".join(f"{name}\n{sources[name]}\n" for name in sorted(sources)).encode()).hexdigest()


def _folder_of(package: str) -> Path | str:
    """Return the folder that contains a package or a top-level module, or its name if it is installed there."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    file = file_of(package)
    if not places and file is None:
        return package
    folder = Path(places[0]).parent if places else file.parent  # type: ignore[union-attr]
    return package if folder.name in INSTALLED or folder == STANDARD else folder


@lru_cache(maxsize=4096)
def _source(name: str, path: Path, time: int, size: int) -> tuple[str, tuple[str, ...]]:
    """Return a module's source without comments, and the modules and packages that it may import."""
    tree, names = syntax(path), [name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    containing = (
        ".".join(imported.split(".")[:end]) for imported in names for end in range(1, imported.count(".") + 2)
    )
    return ast.unparse(tree), tuple(dict.fromkeys(containing))
