"""Answer matching: the step `answering` against Pyserini's own function.

    make bench ARGS="-k answers"

1,000 queries with the first 100 documents that BM25 finds for each; then, as after a refresh, with the first 50 of
them and 50 others. Ours is the whole step on one thread, with the reading and the writing of its files; theirs is a
loop over texts in memory. SQuAD's questions have their own answers. A docstring is asked for by three words that stand
in the relevant document one after another, and by three from some other one.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.data.tables import QUERIES, RANKING
from sparring.components.retrieval.lucene import BM25Config
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps.answers import AnswerConfig, answering
from sparring.workflows.steps.lucene import LuceneIndexConfig, lucene_index, lucene_search
from tests.benchmarks.measure import HEAD, by_turns
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]
ASKED, FOUND = 1_000, 100
INLINE = resolve_machine(Cluster(mode="inline", device="cpu"))


def test_answers(collection: tuple[str, Path], tmp_path: Path) -> None:
    name, source = collection
    data = _asked(source, tmp_path / "data")
    first, second = _rankings(data, tmp_path)
    rows = []
    for job, ranking, wanted in (("cold", first, 10), ("refresh, half of the documents new", second, 50)):
        subject, peer = _Ours(data, ranking, tmp_path), _Theirs(data, ranking)
        compared = by_turns(subject, peer)
        assert subject.hits == peer.hits
        assert 0 < sum(subject.hits) < len(subject.hits)
        rows.append(compared.row(f"answers, {job}", "Pyserini has_answers", "pairs/s", len(subject.hits), wanted))
    lines = [
        f"{ASKED:,} queries of {name} with {FOUND} documents of BM25 each; {sum(subject.hits):,} pairs are hits.",
        machine(ROOT, "pyserini"),
    ]
    write(f"Answer matching on {name}", 'make bench ARGS="-k answers"', HEAD, rows, lines)


class _Ours:
    def __init__(self, data: Path, ranking: Path, place: Path) -> None:
        self._data, self._ranking, self._place = data, ranking, place
        self._out = place

    def __call__(self) -> None:
        self._out = self._place / f"answered-{len(list(self._place.glob('answered-*')))}"
        self._out.mkdir()
        answering(self._out, INLINE, data=self._data, ranking=self._ranking, splits=["test"], config=AnswerConfig())

    @property
    def hits(self) -> list[bool]:
        return pq.read_table(self._out / "ranking.parquet")["hit"].to_pylist()


class _Theirs:
    def __init__(self, data: Path, ranking: Path) -> None:
        self._module = _peer()
        texts = _column(data / "documents.parquet", "doc_id", "text")
        answers = _column(data / "queries.parquet", "query_id", "answers")
        pairs = pq.read_table(ranking / "ranking.parquet", columns=["query_id", "doc_id"]).to_pylist()
        self._pairs = [(texts[pair["doc_id"]], answers[pair["query_id"]]) for pair in pairs]
        self.hits: list[bool] = []

    def __call__(self) -> None:
        tokenizer = self._module.SimpleTokenizer()
        self.hits = [self._module.has_answers(text, answers, tokenizer) for text, answers in self._pairs]


def _peer() -> ModuleType:
    """The file that has the function, without the package around it, which imports torch and starts Java."""
    package = importlib.util.find_spec("pyserini")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "eval" / "evaluate_dpr_retrieval.py"
    spec = importlib.util.spec_from_file_location("peer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _column(path: Path, key: str, value: str) -> dict[str, Any]:
    table = pq.read_table(path, columns=[key, value])
    return dict(zip(table[key].to_pylist(), table[value].to_pylist(), strict=True))


def _asked(source: Path, data: Path) -> Path:
    """The collection with so many queries of one split, each with answers."""
    data.mkdir()
    (data / "documents.parquet").symlink_to(source / "documents.parquet")
    rng = np.random.default_rng(0)
    texts = _column(data / "documents.parquet", "doc_id", "text")
    relevant = _column(source / "qrels.parquet", "query_id", "doc_id")
    queries = pq.read_table(source / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    chosen = [queries[row] for row in sorted(rng.permutation(len(queries))[:ASKED])]
    ids = sorted(texts)
    for query in chosen:
        passages = (texts[relevant[query["query_id"]]], texts[ids[rng.integers(len(ids))]])
        query["answers"] = query["answers"] or [_words(text, rng) for text in passages]
    pq.write_table(pa.Table.from_pylist(chosen, schema=QUERIES), data / "queries.parquet")
    return data


def _words(text: str, rng: np.random.Generator) -> str:
    words = text.split()
    start = int(rng.integers(max(1, len(words) - 2)))
    return " ".join(words[start : start + 3])


def _rankings(data: Path, place: Path) -> list[Path]:
    """BM25's first documents, and those of which the second half is replaced by what BM25 finds next."""
    index, ranking = place / "index", place / "found"
    for folder in (index, ranking):
        folder.mkdir()
    lucene_index(index, INLINE, data=data, config=LuceneIndexConfig())
    lucene_search(ranking, INLINE, data=data, index=index, splits=["test"], k=FOUND * 3 // 2, config=BM25Config())
    table = pq.read_table(ranking / "ranking.parquet")
    ranks, rankings = table["rank"].to_numpy(), []
    for number, kept in enumerate([ranks <= FOUND, (ranks <= FOUND // 2) | (ranks > FOUND)]):
        folder = place / f"ranking-{number}"
        folder.mkdir()
        pq.write_table(table.filter(pa.array(kept)).cast(RANKING), folder / "ranking.parquet")
        rankings.append(folder)
    return rankings
