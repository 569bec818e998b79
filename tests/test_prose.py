"""English that a machine can check: short sentences and paragraphs, plain openings, code lines that fit a page."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.tiny import ROOT

SENTENCE_WORDS = 30
PARAGRAPH_WORDS = 80
CODE_CHARACTERS = 76
OPENINGS = ("What", "Where", "Of", "Who", "Whether")
"""Words that open a question. A statement names its subject first."""
DOCSTRING_OPENINGS = (*OPENINGS, "How")
EXPORTED = "components/models/maxsim.py"
"""Exported rankers carry this file and are recognised by its bytes, so its words stay as they are."""


def pages() -> list[Path]:
    """List the files of prose, without results pages, which are generated from records."""
    documentation = sorted((ROOT / "docs" / "pages").rglob("*.md"))
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for page in documentation if page.parent.name != "results"),
    ]


def name(path: Path) -> str:
    """Return a path as the repository writes it."""
    return path.relative_to(ROOT).as_posix()


def parts(text: str) -> tuple[list[str], list[str]]:
    """Divide Markdown into the lines of its code blocks and its paragraphs, tables left out.

    >>> parts("A *b*.\\n\\n- c\\n- d\\n\\n```\\nrun\\n```\\n")
    (['run'], ['A b.', 'c', 'd'])
    """
    text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.S | re.M)
    code: list[str] = []
    for block in re.findall(r"^[ \t]*```.*?\n(.*?)^[ \t]*```", text, re.M | re.S):
        code += block.splitlines()
    text = re.sub(r"^[ \t]*```.*?^[ \t]*```[ \t]*$", "\n", text, flags=re.M | re.S)
    text = re.sub(r"^(#|\||<|!\[|\?\?\?|!!!).*$", "\n", text, flags=re.M)
    text = re.sub(r"^[ \t]*([-*]|\d+\.) ", "\n\n", text, flags=re.M)
    paragraphs = [plain(" ".join(paragraph.split())) for paragraph in re.split(r"\n[ \t]*\n", text)]
    return code, [paragraph for paragraph in paragraphs if paragraph]


def capitalised(code: re.Match[str]) -> str:
    """Return a piece of code as a word that may begin a sentence and ends none."""
    return code[1][:1].upper() + code[1][1:].replace(".", "_").replace("?", "_")


def plain(text: str) -> str:
    """Return a paragraph without Markdown. A link or a piece of code counts as the words that a reader sees.

    >>> plain("See **[the guide](a.md#b)** and `x. y`.")
    'See the guide and X_ y.'
    """
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)(\{[^}]*\})?", r"\1", text)
    text = re.sub(r"`([^`]*)`", capitalised, text)
    return re.sub(r"\*+|</?\w+[^>]*>", "", text).strip()


def sentences(paragraph: str) -> list[str]:
    """Divide a paragraph into sentences.

    >>> sentences('Run it, e.g. now. (It ends.) A rate of .5 holds.')
    ['Run it, e.g. now.', '(It ends.)', 'A rate of .5 holds.']
    """
    return re.split(r"(?<=[.!?:])\s+(?=[(\"'`]?[A-Z0-9])|(?<=[.!?][)\"])\s+", paragraph)


def opens_with(sentence: str, words: tuple[str, ...]) -> bool:
    """Tell whether a statement opens with one of the words."""
    return bool(re.match(rf"[(\"']?({'|'.join(words)})\b", sentence)) and not sentence.rstrip(")\"'").endswith("?")


def prose_faults(text: str) -> list[str]:
    """Describe each fault of a page."""
    code, paragraphs = parts(text)
    faults = [f"code line of {len(line)} characters: {line}" for line in code if len(line) > CODE_CHARACTERS]
    for paragraph in paragraphs:
        if (count := len(paragraph.split())) > PARAGRAPH_WORDS:
            faults.append(f"paragraph of {count} words: {paragraph[:60]}...")
        for sentence in sentences(paragraph):
            if (count := len(sentence.split())) > SENTENCE_WORDS:
                faults.append(f"sentence of {count} words: {sentence}")
            if opens_with(sentence, OPENINGS):
                faults.append(f"opening: {sentence}")
    return faults


def package(path: Path) -> str:
    """Return the folder below `components` or `workflows` that a module belongs to."""
    return "/".join(path.relative_to(ROOT).parts[:2])


def documented(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings, those of fields among them, and every `description=`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
        if isinstance(node, ast.keyword) and node.arg == "description" and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def code_faults() -> dict[str, list[str]]:
    """List the docstrings that open with a question word, by package."""
    faults: dict[str, list[str]] = {}
    for root in ("components", "workflows"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for text in () if name(path) == EXPORTED else documented(ast.parse(path.read_text())):
                line = text.strip().partition("\n")[0]
                if opens_with(line, DOCSTRING_OPENINGS):
                    faults.setdefault(package(path), []).append(f"{name(path)}: {line}")
    return faults


def all_faults() -> dict[str, list[str]]:
    """List all faults, by file of prose and by package."""
    return {name(path): prose_faults(path.read_text()) for path in pages()} | code_faults()


def test_prose_is_plain() -> None:
    assert {place: faults for place, faults in all_faults().items() if faults} == {}


def test_docstrings_can_be_written_as_utf_8() -> None:
    """Python 3.13.0 refuses to compile a docstring with an unpaired surrogate."""
    for root in ("components", "workflows"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for text in documented(ast.parse(path.read_text())):
                assert text == text.encode(errors="replace").decode(), path


def test_faults_are_found() -> None:
    page = f"# Title\n\nWhat is run is kept. What is it? {'Word ' * 31}end.\n\n```\n{'x' * 77}\n```\n"
    assert Counter(fault.split()[0] for fault in prose_faults(page)) == {"code": 1, "opening:": 1, "sentence": 1}
    assert prose_faults(f"{'Two words. ' * 41}") != []
    assert list(documented(ast.parse('def f():\n    """What it does."""\n'))) == ["What it does."]
