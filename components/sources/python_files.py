"""Docstrings of installed packages, which are read from their files without importing them."""

import ast
import gc
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sparring.components import modules

OTHER_CODE = {"tests", "test", "testing", "_testing", "conftest", "site-packages", "dist-packages", "__pycache__"}
"""Folders and files to skip: tests, and other packages inside the standard library's folder."""
VENDORED = {"_vendor", "vendor", "externals", "extern", "_vendored", "thirdparty", "third_party", "vendored_packages"}
"""Folders to skip: copies of other packages."""

COMMON = (
    "a an and are as at be been but by can for from has have if in into is it its may not of on or that the their then"
    " there these this to was when where which will with"
)
"""Words that occur in every few sentences of English text."""
STOP_WORDS = frozenset(COMMON.split())


class Docstring(NamedTuple):
    """A documented function, method or class."""

    name: str
    module: str
    signature: str
    sentence: str
    rest: str
    place: str


def root(package: str) -> Path | None:
    """Return the folder of an installed package, or the file of a module. Return None if it has no Python source."""
    if package == "stdlib":
        return Path(sysconfig.get_paths()["stdlib"])
    if not package.isidentifier():
        return None
    path = modules.file_of(package)
    return path.parent if path is not None and path.name == "__init__.py" else path


def read_docstrings(package: str, *, query_words: int, text_words: int) -> Iterator[Docstring]:
    """Yield every docstring of a package that is English prose and long enough, in the order of files and lines."""
    start = root(package)
    assert start is not None, package
    for path in sorted(start.rglob("*.py")) if start.is_dir() else [start]:
        inside = path.relative_to(start if start.is_dir() else start.parent).with_suffix("").parts
        if (OTHER_CODE | VENDORED) & set(inside) or inside[-1].startswith("test_"):
            continue
        parts = [part for part in inside if part != "__init__"]
        prefix = [] if package == "stdlib" or not start.is_dir() else [package]
        module = ".".join([*prefix, *parts])
        for name, node, text in _documented(path):
            sentence, rest = divide(text)
            if is_query(sentence, query_words) and is_prose(rest, text_words):
                try:
                    signature = _signature(node)
                except RecursionError:  # a default value that is nested too deeply
                    continue
                yield Docstring(f"{module}.{name}", module, signature, sentence, rest, f"{path}:{node.lineno}")


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _documented(path: Path) -> Iterator[tuple[str, Definition, str]]:
    """Yield the qualified name, definition and docstring of each public definition with a docstring in a file."""
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source:
        return
    with _quick_parsing():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):  # templates, and files for other versions of Python
            return
        except (RecursionError, MemoryError):  # nested too deeply
            return
    waiting: list[tuple[str, ast.stmt]] = [("", node) for node in reversed(tree.body)]
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, (ast.If, ast.Try)):
            waiting += [(prefix, child) for child in reversed(node.body)]
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        text = ast.get_docstring(node, clean=False)
        if text:
            yield prefix + node.name, node, text
        if isinstance(node, ast.ClassDef):
            waiting += [(f"{prefix}{node.name}.", child) for child in reversed(node.body)]


@contextmanager
def _quick_parsing() -> Iterator[None]:
    """Ignore warnings, and turn off the garbage collector: it takes a fifth of the time, and trees have no cycles."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()


def divide(docstring: str) -> tuple[str, str]:
    """Split a docstring into its first sentence, on one line, and the rest."""
    first, _, rest = inspect.cleandoc(docstring).partition("\n\n")
    first = " ".join(first.split())
    end = re.search(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\betc)(?<!\bcf)(?<!\.\.)[.!?](?=\s+[^a-z\s])", first)
    if end:
        rest = f"{first[end.end() :].strip()}\n\n{rest}"
        first = first[: end.end()]
    return first, rest.strip()


def is_query(sentence: str, min_words: int) -> bool:
    """Return True if a first sentence can be a query: long enough, prose, and without templates or mark-up."""
    if re.search(r">>>|\.\. |^[:@|*=-]|%\(|\{|::|https?:", sentence) or len(sentence) > 400:
        return False
    words = re.findall(r"[A-Za-z][A-Za-z'-]+", sentence)
    return len(words) >= min_words and sentence.isascii() and 2 * len(words) > len(sentence.split())


def is_prose(text: str, min_words: int) -> bool:
    """Return True if a text is English prose: mostly ASCII, enough words, and at least a tenth of them stop words."""
    words = re.findall(r"[a-z]+", text.lower())
    if len(words) < min_words or sum(map(str.isascii, text)) < 0.95 * len(text):
        return False
    return sum(word in STOP_WORDS for word in words) >= 0.1 * len(words)


def _signature(node: Definition) -> str:
    """Return a definition's first line, without decorators."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {node.name}({ast.unparse(node.args)}){returns}"
