"""Which systems of the recipes can be exported. Nothing runs."""

from __future__ import annotations

import pytest

from sparring.components.config import UserError
from sparring.workflows.experiments import loading
from sparring.workflows.systems import deployable
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.rows import Outcome
from tests.support.tiny import ROOT


def outcome(config: str, *sets: str) -> Outcome:
    return loading.read_outcome(ROOT / "configs" / config, list(sets))


def exportable(config: str, *sets: str) -> dict[str, list[str]]:
    """The stages of each system that can be exported."""
    stages = {}
    for name, system in outcome(config, *sets).ranked.items():
        try:
            stages[name] = list(deployable.of_folder(system).stages)
        except UserError:
            continue
    return stages


def test_every_system_of_ar2_can_be_exported() -> None:
    of_ar2 = exportable("demo.yaml")
    both, ranked = ["lexical", "dense", "fusion"], ["dense", "lexical", "ranker"]
    assert of_ar2 == {
        "BM25": ["lexical"],
        **{name: ["dense"] for name in ("start model", "warm retriever", "retriever 1")},
        **{f"BM25 + start model, {method}": both for method in ("reciprocal", "interpolated")},
        **{f"BM25 + {name}, interpolated": both for name in ("warm retriever", "retriever 1")},
        **dict.fromkeys(("warm ranker over warm retriever", "ranker over retriever 1"), ranked),
        "warm ranker over BM25 + warm retriever": [*both, "ranker"],
        "ranker over BM25 + retriever 1": [*both, "ranker"],
    }
    assert list(of_ar2) == list(outcome("demo.yaml").ranked)
    without = exportable("demo.yaml", "ranker.prior=null")
    assert without["ranker over retriever 1"] == ["dense", "ranker"]
    assert without["ranker over BM25 + retriever 1"] == [*both, "ranker"]
    assert exportable("ar2/docstrings.yaml")["control: ance"] == ["dense"]


def test_systems_of_expansions_and_readers_can_be_exported() -> None:
    generators = outcome("ear/squad.yaml").ranked["first expansion"].system
    assert isinstance(generators, Fused)
    expansions = ["lexical", "expansion", *(f"expansion {number}" for number in range(2, 1 + len(generators.systems)))]
    of_ear = exportable("ear/squad.yaml")
    assert of_ear["BM25"] == ["lexical"]
    assert of_ear["BM25 + dense"] == ["lexical", "dense", "fusion"]
    assert of_ear["EAR-RD"] == of_ear["first expansion"] == [*expansions, "fusion"]
    assert of_ear["EAR-RD + dense"] == [*expansions, "fusion", "dense", "fusion 2"]
    assert "best query" not in of_ear
    with_reader = exportable("ear/squad-reader.yaml")
    assert with_reader["BM25 + reader k=5"] == ["lexical", "reader"]
    assert with_reader["first expansion + reader k=1"] == ["lexical", "expansion", "reader"]


def test_what_cannot_be_deployed_of_expansions_is_named() -> None:
    ranked = outcome("ear/squad.yaml", "rerankers.ri.template=released").ranked
    with pytest.raises(UserError, match=r"'EAR-RI' cannot be deployed: .* template: released, which `example\.py`"):
        deployable.of_folder(ranked["EAR-RI"])
    assert "expansion" in deployable.Deployment.of_row(ranked["EAR-RI"]).stages
    with pytest.raises(UserError, match=r"cannot be deployed: its ranking is of expansions that the judgements choose"):
        deployable.Deployment.of_row(ranked["best query"])


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("demo.yaml", "ranker over retriever 1"),
        ("dpr/scifact.yaml", "retriever"),
        ("coder/docstrings.yaml", "CODER"),
        ("zeroshot.yaml", "retriever"),
    ],
)
def test_the_system_that_is_exported_where_none_is_named(config: str, name: str) -> None:
    assert deployable.last(outcome(config)).name == name


def test_of_several_seeds_it_is_the_last_one_s() -> None:
    assert deployable.chosen(outcome("demo.yaml", "seeds=[1,2]"), "retriever 1").seed == 2
