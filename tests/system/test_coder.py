"""CODER from end to end: every system of Zerveas et al. (2023) on a toy collection, inline and through Ray."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import DIGESTS, LOCK, RECORD
from tests.support import tiny
from tests.support.asking import asked
from tests.support.tiny import Place
from tests.system.test_end_to_end import UNTRAINED, copy_of_beginning, systems


@pytest.fixture(scope="module")
def trained(played: Place, beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run."""
    place = tiny.place(tmp_path_factory.mktemp("coder"), tiny.coder(beir, encoder))
    copy_of_beginning(played, place)
    assert place("run") == 0
    return place


def test_every_system_of_the_paper_is_measured_and_compared(trained: Place) -> None:
    base, coder = "warm retriever", "CODER"
    kinds = ["", " by neighbours", " by neighbours, chosen"]
    assert systems(trained) == [
        "BM25",
        *UNTRAINED,
        *(base + kind for kind in kinds),
        *(coder + kind for kind in kinds),
        *(f"{base} + {coder}{kind}" for kind in kinds),
    ]
    compared = {(comparison["system"], comparison["baseline"]) for comparison in trained.metrics()["comparisons"]}
    assert {(coder, base), (f"{base} by neighbours", base), (f"{base} + {coder}", coder)} <= compared
    wanted = loading.read(trained.config, [], trained.runs).wanted
    assert {path.name for path in trained.store.iterdir()} == {node.name for node in graph(wanted)}
    for label in ("CODER by neighbours", "CODER by neighbours, chosen", "labels 1"):
        names = {path.name for path in trained.artifact(label).iterdir()} - {RECORD, DIGESTS, LOCK}
        assert names <= {"ranking.parquet", "groups.parquet", "chosen.json", "trials.json"}


def test_the_space_before_and_after_is_looked_at(trained: Place) -> None:
    """Of what was found by vectors: reranked and fused rankings have no space of their own."""
    analyses = {
        step["label"]: json.loads((trained.artifact(step["label"]) / "analysis.json").read_text())
        for step in trained.metrics()["steps"]
        if step["function"] == "analyse"
    }
    assert list(analyses) == ["start model analysis", "warm retriever analysis", "CODER analysis"]
    _, before, after = analyses.values()
    assert before["queries"] == after["queries"] == 4
    assert before["alignment"] != after["alignment"]


def test_what_has_a_gpu(trained: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked("coder/docstrings.yaml", monkeypatch, tmp_path, trained) == {
        "tokenize": ("map", False),
        "mine": ("map", False),
        "lucene_index": ("its own", False),
        "lucene_search": ("java", False),
        "encode_documents": ("map", True),
        "encode_queries": ("map", True),
        "search": ("map", True),
        "smooth": ("map", True),
        "rerank_by_neighbours": ("map", True),
        "chosen": ("map", True),
        "train": ("train", True),
    }


def test_documents_stay_as_they_are_and_queries_do_not(trained: Place) -> None:
    base, coder = trained.artifact("warm retriever") / "model", trained.artifact("CODER 1") / "model"
    before = load_file(base / "model.safetensors")
    documents, queries = (load_file(coder / side / "model.safetensors") for side in ("document", "query"))
    assert before.keys() == documents.keys() == queries.keys()
    assert all((before[name] == documents[name]).all() for name in before)
    assert any((before[name] != queries[name]).any() for name in before)
    wanted = graph(loading.read(trained.config, [], trained.runs).wanted)
    assert [node.label for node in wanted if node.function.__name__ == "encode_documents"] == [
        "start vectors",
        "warm retriever vectors",
    ]
    assert json.loads((coder / "temperature.json").read_text())["temperature"] != 0.1


def test_the_exported_retriever_makes_the_vectors_that_were_searched(trained: Place) -> None:
    from sentence_transformers import SentenceTransformer

    data, vectors = trained.artifact("data"), trained.artifact("CODER 1 queries (test)")
    texts = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    query_ids = json.loads((vectors / "queries.json").read_text())
    model = SentenceTransformer(str(trained.artifact("CODER 1") / "model"), device="cpu", local_files_only=True)
    rows = model.encode_query([texts[query] for query in query_ids], show_progress_bar=False)
    np.testing.assert_allclose(rows, np.load(vectors / "queries.npy"), atol=1e-5)


def test_validation_tells_the_loss_beside_the_rank_from_the_start(trained: Place) -> None:
    lines = [json.loads(line) for line in (trained.artifact("CODER 1") / "metrics.jsonl").read_text().splitlines()]
    looks = {line["update"]: (line["dev loss"], line["dev RR"]) for line in lines if "dev loss" in line}
    assert list(looks) == [0, 2, 4, 6]
    assert all(loss > 0 and 0 < rank <= 1 for loss, rank in looks.values())
    record = json.loads((trained.artifact("CODER 1") / "artifact.json").read_text())
    assert record["summary"]["best"]["value"] == pytest.approx(min(loss for loss, _ in looks.values()))


def test_the_report_shows_labels_and_what_was_learned_from_them(trained: Place) -> None:
    """Shares sum to 1 where every rank is shown, and smoothed labels are on more than the relevant documents."""
    drawn = {
        picture["title"]: picture
        for picture in json.loads((trained.artifact("pictures") / "pictures.json").read_text())
    }
    report = (trained.runs / "tiny" / "report.html").read_text()
    assert len(drawn) == 4
    assert all(f"<figcaption>{title}</figcaption>" in report for title in drawn)
    for title in ("What is to be learned", "What is predicted"):
        for curve in drawn[title]["curves"].values():
            assert sum(value for _, value, _ in curve) == pytest.approx(1, abs=1e-5)
            assert [rank for rank, _, _ in curve] == list(range(1, 13))
    hard, soft = drawn["What is to be learned"]["curves"].values()
    assert hard[0][1] > soft[0][1]
    assert hard[2][1] == 0 < soft[2][1]
    summary = json.loads((trained.artifact("pictures") / "artifact.json").read_text())["summary"]
    after = {name: share for name, share in summary.items() if name.startswith("predicted")}
    assert all(0 < share < 1 for share in after.values())
    assert len(set(after.values())) == 2


def test_search_and_export(trained: Place, tmp_path: Path, said: tiny.Said) -> None:
    assert trained("search", "bara comi", "-k", "3", "--system", "CODER") == 0  # not BM25: Java would start here
    assert "3. " in said()[0]
    assert trained("export", str(tmp_path / "out")) == 0
    assert (tmp_path / "out/retriever/query").is_dir()


@pytest.mark.parametrize("documents", ["fixed", "learned"])
def test_labels_are_made_anew_at_every_refresh(
    trained: Place, beir: Path, encoder: Path, tmp_path: Path, documents: str
) -> None:
    changes = {"rounds": 2, "rerank_chosen": None, "interpolate": None, "context": {"size": 5}}
    tree = tiny.coder(beir, encoder, documents=documents, **changes)
    tree["train"]["validate_on_dev"] = None  # which could keep the model that a training begins from
    place = tiny.place(tmp_path / "again", tree)
    copy_of_beginning(trained, place)
    assert place("run") == 0
    nodes = {node.label: node for node in graph(loading.read(place.config, [], place.runs).wanted)}
    labels = nodes["labels 2"].inputs
    encoded = ["warm retriever vectors", *([] if documents == "fixed" else ["CODER 1 vectors", "CODER 2 vectors"])]
    by_models = [label for label, node in nodes.items() if node.function.__name__ == "encode_documents"]
    assert by_models == ["start vectors", *encoded]
    assert labels["vectors"].label == encoded[:2][-1]
    assert labels["queries"].label == "CODER 1 queries (train)"
    assert labels["groups"].inputs["ranking"].label == "CODER 1 ranking (train)"
    assert nodes["CODER 2"].inputs["start"] is nodes["CODER 1"]
    vectors = [np.load(place.artifact(label) / "documents-00000.npy") for label in encoded]
    assert not any((first == second).all() for first, second in itertools.pairwise(vectors))


@pytest.mark.slow  # each step by itself through Ray: tests/workflows/steps; a whole run: test_end_to_end.py
@pytest.mark.usefixtures("ray")
def test_through_ray_it_is_the_same(
    trained: Place, beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smoothing and reranking cut among two workers, one training worker: the same bits."""
    monkeypatch.setattr("sparring.workflows.commands.shared_arguments.leave", lambda: None)
    ray = {"mode": "ray", "retries": 0, "map": {"workers": 2, "threads": 1}}
    place = tiny.place(tmp_path, tiny.coder(beir, encoder), **ray)
    copy_of_beginning(
        trained,
        place,
        "start retriever",
        "tokens",
        "warm retriever groups",
        "warm retriever",
        "warm retriever vectors",
        "warm retriever queries (train)",
        "warm retriever ranking (train)",
    )
    assert place("run") == 0
    digests, expected = tiny.results(place.store), tiny.results(trained.store)
    compared = {name for name in digests.keys() & expected.keys() if not name.endswith("metrics.json")}
    assert {name.partition("-")[0] for name in compared} >= {"train", "smooth", "rerank_by_neighbours", "fuse"}
    assert {name: digests[name] for name in compared} == {name: expected[name] for name in compared}


def test_one_ranking_under_several_judgements(trained: Place, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Strictly, where only relevance 2 is right, and under labels of another collection of the same queries."""
    graded = tmp_path / "graded"
    shutil.copytree(beir, graded)
    lines = (graded / "qrels/test.tsv").read_text().splitlines()
    (graded / "qrels/test.tsv").write_text("\n".join(line for line in lines if not line.endswith("\t1")) + "\n")
    judged = {
        line.split("\t")[1] for path in (graded / "qrels").glob("*.tsv") for line in path.read_text().splitlines()
    }
    documents = (graded / "corpus.jsonl").read_text().splitlines()  # it may hold fewer than are retrieved
    kept = [line for line in documents if json.loads(line)["_id"] in judged]
    assert len(kept) < len(documents)
    (graded / "corpus.jsonl").write_text("\n".join(kept) + "\n")
    tree = tiny.coder(beir, encoder, train=None, smooth=None, interpolate=None, rerank_chosen=None)
    tree["evaluate"] = {
        "measures": ["RR@10", "nDCG@10"],
        "relevant_from": 2,
        "other_qrels": {"graded": {"format": "beir", "path": str(graded)}},
    }
    place = tiny.place(tmp_path / "place", tree)
    copy_of_beginning(trained, place)
    assert place("run") == 0
    rows = place.metrics()["rows"]
    assert {(row["collection"], row["measure"]) for row in rows} == {
        (name, measure) for name in ("toy", "graded") for measure in ("RR(rel=2)@10", "nDCG@10")
    }
    values = {(row["collection"], row["system"], row["measure"]): row["value"] for row in rows}
    for system in systems(place):  # what is left of the judgements is what is right strictly
        strict, all_right = (values[name, system, "RR(rel=2)@10"] for name in ("toy", "graded"))
        assert strict == pytest.approx(all_right)
        assert values["toy", system, "nDCG@10"] != values["graded", system, "nDCG@10"]
    assert {comparison["collection"] for comparison in place.metrics()["comparisons"]} == {"toy", "graded"}


def test_no_query_chooses_its_own_numbers(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Where they are chosen on the measured split, as all are on the split that systems are selected on."""
    tree = tiny.coder(beir, encoder)
    config = tiny.write(tmp_path / "coder.yaml", tree)
    chosen = {
        (node.inputs["split"], node.inputs["config"].split)
        for node in graph(loading.read(config, [], tmp_path).wanted)
        if node.function.__name__ == "chosen"
    }
    assert chosen == {("test", "dev"), ("dev", None)}


def test_numbers_are_chosen_by_what_counts_as_relevant_in_the_tables(beir: Path, encoder: Path, tmp_path: Path) -> None:
    tree = tiny.coder(beir, encoder)
    tree["rerank_chosen"] = {**(tree["rerank_chosen"] or {}), "measure": "RR@10"}
    config = tiny.write(tmp_path / "coder.yaml", tree)
    for level, measure in ((1, "RR@10"), (2, "RR(rel=2)@10")):
        read = loading.read(config, [f"evaluate.relevant_from={level}"], tmp_path)
        nodes = [node for node in graph(read.wanted) if node.function.__name__ == "chosen"]
        assert {node.inputs["config"].measure for node in nodes} == {measure}


@pytest.mark.parametrize(
    ("more", "said_of"),
    [
        ({"context": {"size": 50}}, "context.size: 50 candidates, but only k: 20"),
        ({"train": None, "smooth": None, "interpolate": None, "rounds": 2}, "rounds: 2: there is no `train`"),
        ({"train": None}, "smooth and interpolate need a training, and there is no `train`"),
        ({"train": tiny.training(over="batch")}, "losses: over: got 'batch', but the objective coder accepts group"),
        ({"rerank_chosen": {"mix": [0, 1]}}, "mix above 0"),
        ({"rerank_chosen": {"tau": [0.5, 3.0]}}, "rerank_chosen: tau: 0.5 to 3.0; accepted: within 0 to 1"),
        (
            {"context": {"size": 1}},
            "context.size: 1: a loss compares a document with the rest of its context; accepted: 2 or",
        ),
        ({"smooth": {"epsilon": 0.3}}, "smooth: epsilon: got 0.3, but `labels: evidence` does not use it"),
    ],
)
def test_what_does_not_fit_together_is_said_at_once(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said, more: dict[str, Any], said_of: str
) -> None:
    place = tiny.place(tmp_path, tiny.coder(beir, encoder, **more))
    assert place("plan") == 2
    assert said_of in said()[1]
