"""Which systems are candidates, and which of them were trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.workflows import ROOT
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import Step, graph


def read(config: str, *sets: str) -> loading.Experiment:
    return loading.read(ROOT / "configs" / config, list(sets), Path("runs"))


UNDECIDED = ["gate=false", "ranker.prior=null"]
"""Without what is decided on the split that systems are selected on."""


def candidates(config: str, *sets: str) -> dict[str, bool]:
    """The systems that are selected among, and whether each was trained."""
    chosen = read(config, *sets).outcome.results.inputs["selection"]
    assert isinstance(chosen, Step)
    return {item["system"]: item["trained"] for item in chosen.inputs["systems"]}


def test_every_system_is_a_candidate_of_its_kind() -> None:
    result = candidates("demo.yaml")
    fusions = ["BM25 + start model, reciprocal", "BM25 + start model, interpolated"]
    assert [name for name, trained in result.items() if not trained] == ["BM25", "start model", *fusions]
    assert [name for name, trained in result.items() if trained] == [
        "warm retriever",
        "warm ranker over warm retriever",
        "BM25 + warm retriever, interpolated",
        "warm ranker over BM25 + warm retriever",
        "retriever 1",
        "ranker over retriever 1",
        "BM25 + retriever 1, interpolated",
        "ranker over BM25 + retriever 1",
    ]
    controls = {"control: in-batch", "control: ance"}
    assert candidates("ar2/docstrings.yaml").keys() - {"retriever 2", "ranker over retriever 2"} > controls


def test_of_a_start_model_that_is_cut_the_whole_one_is_a_candidate() -> None:
    result = candidates("demo.yaml", "retriever.model.layers=3", "ranker.model.layers=3")
    fusions = ["BM25 + whole start model, reciprocal", "BM25 + whole start model, interpolated"]
    assert [name for name, trained in result.items() if not trained] == [
        "BM25",
        "start model",
        "whole start model",
        *fusions,
    ]


@pytest.mark.parametrize("config", ["coder/docstrings.yaml", "coder/cranfield.yaml", "dpr/scifact.yaml"])
def test_what_no_training_made_is_untrained(config: str) -> None:
    result = candidates(config)
    assert {"BM25", "start model"} <= result.keys()
    assert any("reciprocal" in name for name in result)
    assert all(trained == name.startswith(("warm", "CODER", "retriever")) for name, trained in result.items())


def test_an_oracle_is_measured_and_never_selected() -> None:
    names = {system.name for system in read("ear/docstrings.yaml").outcome.rows}
    result = candidates("ear/docstrings.yaml")
    assert names - result.keys() == {"best query"}
    assert not result["first expansion"]
    assert result["EAR-RD"]


def test_selecting_trains_nothing_and_encodes_no_document_again() -> None:
    for config in ("demo.yaml", "coder/docstrings.yaml", "dpr/scifact.yaml", "ear/squad-gar.yaml"):
        undecided = UNDECIDED if config == "demo.yaml" else []
        more, less = (graph(read(config, *undecided, *sets).wanted) for sets in ([], ["evaluate.select=null"]))
        kept = {node.fingerprint for node in less}
        anew = {node.function.__name__ for node in more if node.fingerprint not in kept}
        assert {"select", "encode_queries", "fit_fusion", "fuse"} <= anew
        assert not anew & {"train", "encode_documents", "build_index", "mine", "contexts", "smooth", "lucene_index"}


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (["evaluate.select=null"], "evaluate.select names no split"),
        (["evaluate.measures=[Answer@5]"], "no measure of evaluate.measures is by judgements"),
    ],
)
def test_without_a_split_or_a_measure_nothing_is_selected(sets: list[str], reason: str) -> None:
    """Nor are weights of fusions chosen."""
    outcome = read("demo.yaml", *UNDECIDED, *sets).outcome
    assert outcome.results.inputs["selection"] == f"{reason}, so weights of fusions are the defaults too"
    assert not [node for node in graph([outcome.results]) if node.function.__name__ in ("fit_fusion", "select")]
    assert {system.name for system in outcome.rows} > {"BM25 + start model, reciprocal"}


def test_nothing_is_selected_on_the_measured_split() -> None:
    outcome = read("demo.yaml", "evaluate.split=dev").outcome
    assert outcome.results.inputs["selection"] == "evaluate.select is the measured split"
    fused = {row.name: row.ranking for row in outcome.rows if row.name.startswith("BM25 + ")}
    assert {ranking.function.__name__ for ranking in fused.values() if ranking is not None} == {"fit_fusion"}
    assert not [node for node in graph([outcome.results]) if node.function.__name__ == "select"]
