"""The documentation of installed packages: what becomes a pair, what does not, and that it is always the same."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.components.sources import docstrings
from sparring.components.sources.docstrings import Source, harvest, manifest, split_of, version_of
from sparring.components.sources.near_duplicates import Shingles
from sparring.components.sources.python_files import divide, is_prose, is_query
from sparring.components.sources.records import Bad

BODY = """

    The result is what comes out when the {thing} is taken from the table and put into the box that
    was made for it, which is then closed with a key and carried to the room where all such boxes are kept.
"""

Package = Callable[..., str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Makes an importable package of files, and gives its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    docstrings._harvest.cache_clear()

    def make(**files: str) -> str:
        folder = tmp_path / "boxes"
        folder.mkdir()
        (folder / "__init__.py").write_text("raise AssertionError('imported')\n")
        for name, text in files.items():
            path = folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return "boxes"

    return make


def function(name: str, sentence: str, body: str = BODY, *, arguments: str = "") -> str:
    """A function with a docstring."""
    return f'def {name}({arguments}):\n    """{sentence}{body}    """\n\n'


def names(package: str) -> list[str]:
    """What is kept of a package."""
    return [result.name for result in harvest(Source(format="docstrings", packages=[package]))]


def test_a_pair_is_a_first_sentence_and_the_rest(package: Package) -> None:
    code = function("shut", "Close the box of apples.", BODY.format(thing="apple"), arguments="box: Box, *, key=1")
    creaks = " It creaks, and then some more of the pears are seen to fall out of it, as if there was a hole in it.\n"
    method = function("open", "Open the box of pears.", creaks).replace("\n", "\n    ")
    source = Source(format="docstrings", packages=[package(lid=code, box=f"class Box:\n    {method}")])
    opened, shut = source.read_documents()
    assert not isinstance(opened, Bad)
    assert not isinstance(shut, Bad)
    assert (opened.doc_id, opened.title) == ("boxes.box.Box.open", "boxes.box.Box.open")
    assert opened.text.startswith("def open()\nIt creaks, and then")
    assert shut.text.startswith("def shut(box: Box, *, key=1)\nThe result is what comes out")
    assert "Close the box" not in shut.text
    assert shut.place.endswith("boxes/lid.py:1")
    assert [query[:2] for query in source.read_queries()] == [
        ("q:boxes.box.Box.open", "Open the box of pears."),
        ("q:boxes.lid.shut", "Close the box of apples."),
    ]
    judged = [record[:3] for record in source.read_qrels()]
    assert judged == [("q:boxes.box.Box.open", "boxes.box.Box.open", 1), ("q:boxes.lid.shut", "boxes.lid.shut", 1)]
    assert "boxes" not in sys.modules


def test_versions_of_packages_can_be_declared(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are identity where they are declared, and otherwise facts, of which a changed one is noticed."""
    name = package(lid=function("shut", "Close the box of apples."))
    monkeypatch.setattr(docstrings, "version_of", {name: "1.2", "stdlib": "3.11.9"}.__getitem__)
    source = Source(format="docstrings", packages=[name, "stdlib", "not_installed_anywhere"])
    assert source.installed() == {name: "1.2", "stdlib": "3.11.9"}
    assert "versions" not in source.model_dump(mode="json")
    declared = Source(format="docstrings", packages=[name], versions={name: "1.2"})
    assert declared.model_dump(mode="json")["versions"] == {name: "1.2"}
    assert len(list(harvest(declared))) == 1
    with pytest.raises(UserError, match=r"versions: boxes is 1\.2, but the source declares 1\.3"):
        harvest(Source(format="docstrings", packages=[name], versions={name: "1.3"}))
    with pytest.raises(ValueError, match="versions: 'numpy' is not one of the packages"):
        Source(format="docstrings", packages=[name], versions={"numpy": "2"})


def test_what_makes_no_pair(package: Package) -> None:
    same = BODY.format(thing="plum")
    code = "".join(
        [
            function("kept", "Put the plum into its box.", same),
            function("repeated", "Put the  plum into its box.", BODY.format(thing="completely different cherry " * 20)),
            function("nearly", "Put the plums into its box.", same),
            function("short", "Close it.", BODY.format(thing="first")),
            function("empty", "Close the box and then leave.", "\n"),
            function("_private", "Look into the box of others.", BODY.format(thing="second " * 9)),
            function("template", "Put the %(thing)s into its box.", BODY.format(thing="third " * 9)),
            function("code", "Show the numbers of the boxes.", "\n\n    x = [1, 2, 3, 4, 5]\n" * 20),
            function("kept", "Define the very same name twice.", BODY.format(thing="fourth " * 9)),
            "def undocumented():\n    pass\n",
        ]
    )
    tested = function("tested", "Test the box with a plum.", BODY.format(thing="fifth " * 9))
    result = package(a=code, tests__b=tested, test_c=tested, _vendor__d=tested, broken="def (:\n    '''x'''\n")
    assert names(result) == ["boxes.a.kept"]


def test_definitions_behind_a_condition_count(package: Package) -> None:
    inner = function("here", "Define it only on some systems.", BODY.format(thing="nut")).replace("\n", "\n    ")
    assert names(package(a=f"if True:\n    {inner}")) == ["boxes.a.here"]


def test_a_file_is_never_divided_and_the_manifest_holds_every_word(package: Package, tmp_path: Path) -> None:
    fruits = ["apple", "pear", "plum", "cherry", "grape", "melon", "lemon", "fig"]

    def file(n: int) -> str:
        bodies = {thing: BODY.format(thing=f"{thing} {n} " * 20) for thing in fruits}
        return "".join(function(thing, f"Close box {n} of {thing} well.", body) for thing, body in bodies.items())

    files = {f"file_{n}": file(n) for n in range(40)}
    source = Source(format="docstrings", packages=[package(**files)])
    by_file: dict[str, set[str]] = {}
    for query in source.read_queries():
        assert not isinstance(query, Bad)
        by_file.setdefault(query.place.partition(":")[0], set()).add(query.split)
    assert len(by_file) == 40
    assert all(len(splits) == 1 for splits in by_file.values())
    before = manifest(source)
    docstrings._harvest.cache_clear()
    assert manifest(source) == before
    path = tmp_path / "boxes" / "file_7.py"
    path.write_text(path.read_text().replace("which is then closed", "which is never closed", 1))
    docstrings._harvest.cache_clear()
    assert manifest(source) != before


def test_splits_are_eight_one_and_one_tenths() -> None:
    splits = [split_of(f"package.module_{n}") for n in range(5000)]
    assert splits.count("train") / 5000 == pytest.approx(0.8, abs=0.02)
    assert splits.count("dev") / 5000 == pytest.approx(0.1, abs=0.02)
    assert splits.count("test") / 5000 == pytest.approx(0.1, abs=0.02)


def test_a_file_that_is_nested_too_deeply_is_skipped(package: Package) -> None:
    """Python cannot parse one of them, and cannot write the other's signature."""
    deep = function("deep", "Close the box of apples.", BODY.format(thing="apple"), arguments="x=" + "-" * 900 + "1")
    parsed = "x = " + "(" * 5_000 + ")" * 5_000 + "\n" + function("lost", "Close the lid of pears.")
    fine = function("shut", "Close the box of quinces.", BODY.format(thing="quince"))
    assert names(package(deep=deep, parsed=parsed, shut=fine))[-1] == "boxes.shut.shut"


def test_packages_that_are_not_there_are_named() -> None:
    with pytest.raises(UserError, match="the package nonesuch, the package no/such is not installed"):
        harvest(Source(format="docstrings", packages=["stdlib", "nonesuch", "no/such"]))


def test_versions() -> None:
    assert version_of("numpy") == importlib.import_module("numpy").__version__
    assert version_of("stdlib") == ".".join(map(str, sys.version_info[:3]))


def test_numpy_has_hundreds_of_clean_pairs() -> None:
    source = Source(format="docstrings", packages=["numpy"])
    documents = list(source.read_documents())
    queries = list(source.read_queries())
    assert len(documents) == len(queries) > 500
    assert not any(isinstance(record, Bad) for record in [*documents, *queries])
    assert len({record[1] for record in queries}) == len(queries)


@pytest.mark.parametrize(
    ("docstring", "sentence", "rest"),
    [
        ("Return it.\n\n    More.", "Return it.", "More."),
        ("Return\n    all of it. Then more,\n    and more.", "Return all of it.", "Then more, and more."),
        ("Without a stop\n\nMore. Much more.", "Without a stop", "More. Much more."),
        ("Names, e.g. Ada or Bob. More.", "Names, e.g. Ada or Bob.", "More."),
        ("Version 1.5 of it. More.", "Version 1.5 of it.", "More."),
        ("Is it? More.", "Is it?", "More."),
    ],
)
def test_first_sentences(docstring: str, sentence: str, rest: str) -> None:
    assert divide(docstring) == (sentence, rest)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Return the sum of two numbers.", True),
        ("Return the sum.", False),
        (">>> add the two numbers here", False),
        (".. deprecated:: since the last version", False),
        ("Gib die Größe der Zahlen zurück.", False),
        ("1 + 2 - 3 * 4 / 5 = one two three four", False),
    ],
)
def test_what_can_be_asked(sentence: str, expected: bool) -> None:
    assert is_query(sentence, 4) is expected


def test_prose_is_english_and_long_enough() -> None:
    english = "This is the text of a page that can be read by all of us."
    assert is_prose(english, 15)
    assert not is_prose(english, 16)
    assert not is_prose("Dies ist der Text einer Seite und wir alle mögen ihn sehr gern haben wollen dürfen.", 5)
    assert not is_prose("x y z int float array shape dtype axis order copy device None True False", 5)


def test_near_duplicates_share_their_runs_of_words() -> None:
    words = [f"word{n}" for n in range(100)]
    shingles = Shingles(0.8)
    assert not shingles.near(" ".join(words))
    assert shingles.near(" ".join(words))
    assert shingles.near(" ".join([*words[:50], "other", *words[51:]]))  # 93 of 101 runs in common
    assert not shingles.near(" ".join(w if n % 10 else "other" for n, w in enumerate(words)))  # 60 of some 130
    assert not shingles.near(" ".join(reversed(words)))
    assert not shingles.near("two words")
    assert shingles.near("two words")
