"""Names say what they hold: no pronoun, preposition, question word or bare participle stands for a value."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.tiny import ROOT

BANNED = {
    # pronouns
    *("one", "ones", "other", "others", "own", "ours", "theirs", "each", "several", "here", "there"),
    # questions and prepositions
    *("what", "how", "why", "of", "at", "about", "beside"),
    # participles
    *("given", "made", "found", "told", "asked", "known", "said", "got", "gone", "left", "needed", "foreseen"),
    # ordinary words as terms
    *("drawing", "opening", "smaller", "masters"),
}
"""Use a noun instead: row, node, record, query, shard, text, label.

`where` is numpy's name of a mask, `pool` Ray's and `study` Optuna's word: these are allowed. Functions are verb phrases
or constructors (`Template.of`), and are not checked.
"""

CONTRACT = {"components/needs.py", "components/scores.py"}
"""Modules whose fields are the keywords of a user's losses."""


@cache
def trees() -> dict[str, ast.Module]:
    """Parse every module, by its path."""
    folders = ("components", "workflows", "tests", "docs")
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


@cache
def fixtures() -> set[str]:
    """Names of pytest's fixtures. These are functions, and a test's arguments repeat their names."""
    functions = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {node.name for node in functions if any("fixture" in ast.unparse(mark) for mark in node.decorator_list)}


@cache
def configs() -> set[str]:
    """Names of classes that derive from `Config`. Their fields are keys of YAML files, which keep their names."""
    classes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = {"Config"}
    while more := {node.name for node in classes if names & set(map(last_name, node.bases))} - names:
        names |= more
    return names


def last_name(base: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return ast.unparse(base).rpartition(".")[2]


def bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a module binds below a node, with its line, but for fields of configs."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name, node.lineno
        case ast.arg(arg=name) if name not in fixtures():
            yield name, node.lineno
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
            yield name, node.lineno
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.ClassDef) and node.name in configs() and isinstance(child, ast.AnnAssign):
            continue
        yield from bound(child)


def banned(path: str) -> list[str]:
    """Describe the banned names of a module."""
    names = [*bound(trees()[path]), (Path(path).stem, 1)]
    return [f"{path}:{line}: {name}" for name, line in names if name.strip("_") in BANNED]


def test_names_say_what_they_hold() -> None:
    paths = [path for path in trees() if path not in CONTRACT]
    assert [line for path in paths for line in banned(path)] == []
