"""The analysis of a trained retriever's vectors, in a whole run and in its report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.evaluation.embedding_space import EmbeddingSpaceConfig
from sparring.components.yaml_files import override, read_based
from sparring.workflows.steps.analyse import analyse
from tests.support import tiny, toy


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory, beir: Path, encoder: Path) -> tiny.Place:
    """DPR over two seeds, with its space looked at."""
    tree = tiny.dpr(beir, encoder)
    tree |= {"seeds": [1, 2], "analyse": {"map": 5, "perplexity": 3.0}}
    place = tiny.place(tmp_path_factory.mktemp("analysed"), tree)
    assert place("run") == 0
    return place


def test_each_measured_retriever_of_each_seed_is_analysed(analysed: tiny.Place) -> None:
    labels = [step["label"] for step in analysed.metrics()["steps"] if step["function"] == "analyse"]
    assert labels == ["start model analysis", "retriever (seed 1) analysis", "retriever (seed 2) analysis"]
    rows = analysed.metrics()["rows"]
    assert {"BM25", "start model", "retriever"} < {row["system"] for row in rows}
    assert all("analysis" not in row for row in rows)


def test_the_numbers_are_those_of_the_vectors(analysed: tiny.Place) -> None:
    analysis = json.loads((analysed.artifact("start model analysis") / "analysis.json").read_text())
    assert analysis["queries"] == 4
    vectors, query_folder = analysed.artifact("start vectors"), analysed.artifact("start queries (test)")
    documents = np.concatenate([np.load(path) for path in sorted(vectors.glob("documents-*.npy"))])
    queries = dict(
        zip(json.loads((query_folder / "queries.json").read_text()), np.load(query_folder / "queries.npy"), strict=True)
    )
    first = [float(np.max(documents @ queries[query])) for query in ("q0", "q6", "q12", "q18")]
    assert analysis["nearest"]["mean"] == pytest.approx(np.mean(first), abs=1e-5)
    right = [documents[i] for i in (0, 6, 12, 18)]
    distances = [np.square(queries[f"q{i}"] - vector).sum() for i, vector in zip((0, 6, 12, 18), right, strict=True)]
    assert analysis["alignment"] == pytest.approx(np.mean(distances), abs=1e-5)
    assert len(analysis["map"]["queries"]) == len(analysis["map"]["documents"]) == 4


def test_the_report_has_numbers_and_pictures(analysed: tiny.Place) -> None:
    text = (analysed.runs / "tiny/report.html").read_text()
    assert "Embedding space" in text
    assert text.count('class="chart map"') == 2  # one a system
    assert text.count("query to query, as a share of query to document") >= 1
    assert "Vectors of 4 queries" in text


def test_a_split_without_judged_queries_is_an_error(analysed: tiny.Place, tmp_path: Path) -> None:
    labels = {
        "data": "data",
        "tokens": "tokens",
        "vectors": "start vectors",
        "queries": "start queries (test)",
        "ranking": "start ranking (test)",
    }
    artifacts = {name: analysed.artifact(label) for name, label in labels.items()}
    with pytest.raises(UserError, match="no two queries of the split 'nothing' have a relevant document and a ranking"):
        analyse(tmp_path, toy.INLINE, split="nothing", config=EmbeddingSpaceConfig(), **artifacts)


def test_it_changes_no_other_step(analysed: tiny.Place) -> None:
    tree = override(read_based(analysed.config), ["analyse=null"])
    assert tree["analyse"] is None
    assert analysed("run", "--set", "analyse.map=0") == 0
    run = next(path for path in analysed.runs.iterdir() if path.name.startswith("tiny-"))
    steps = json.loads((run / "metrics.json").read_text())["steps"]
    assert {step["function"] for step in steps if step["executed"]} == {"analyse", "results"}
    assert 'class="chart map"' not in (run / "report.html").read_text()
