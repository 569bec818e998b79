"""The verdict of a run, in words and numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring.components.evaluation.averages import AVERAGE
from sparring.components.evaluation.result_table import BETTER, UNCLEAR, WORSE
from sparring.components.evaluation.selection import leading, replaced_at, selected
from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING, sample_factor
from sparring.workflows import ROOT
from sparring.workflows.report.conclusion import verdict_of
from sparring.workflows.report.verdict import Budget, Comparison, Verdict, in_prose, latency

START = "BM25 + start model, interpolated"
COMPARISON = Comparison(
    system=START,
    baseline="BM25",
    system_value=0.671,
    baseline_value=0.661,
    difference=0.010,
    low=-0.012,
    high=0.032,
    p=0.09,
    p_holm=0.37,
    test=THIS_TRAINING,
    outcome=UNCLEAR,
    queries=202,
    sample_factor=15.3,
    baseline_is_cheaper=True,
)
VERDICT = Verdict(
    system=START,
    deploy=START,
    chosen=START,
    collection="c",
    split="test",
    measure="RR@10",
    value=0.671,
    low=0.612,
    high=0.730,
    queries=202,
    comparison=COMPARISON,
    milliseconds=22.94,
    baseline_milliseconds=9.06,
    bytes={"models": 91_000_000, "indexes": 262_144},
    selected_on="dev",
    selection_queries=124,
    selection_values={START: 0.820, "BM25": 0.816},
)


def compared(**changes: Any) -> Verdict:
    """The verdict with another comparison."""
    return replace(VERDICT, comparison=replace(COMPARISON, **changes))


def test_verdict_names_system_value_alternative_cost_and_next_step() -> None:
    assert VERDICT.sentences == [
        "Deploy BM25 + start model (interpolated). RR@10 .671 [.612, .730] on 202 test queries.",
        "That is not clearly better than BM25 alone (.661, p = .37), which is cheaper.",
        "With many queries at once, a query took 23 ms in this run, and 9.1 ms with BM25. It needs 91.0 MB of models "
        "and 262 kB of indexes and vectors.",
        "A difference of this size would be clear with about 3,100 queries in all.",
    ]
    assert str(VERDICT) == " ".join(VERDICT.sentences)


def test_verdict_survives_json() -> None:
    assert Verdict.read(VERDICT.json) == VERDICT
    assert VERDICT.json["sentences"] == VERDICT.sentences
    assert Verdict.read(replace(VERDICT, comparison=None).json).comparison is None


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (BETTER, "BM25 + start model (interpolated) is clearly better than our engine (.600, p < .001)."),
        (UNCLEAR, "The difference from our engine (.600, p < .001) is not clear."),
        (WORSE, "Keep our engine: it is clearly better (.600, p < .001)."),
    ],
)
def test_verdict_compares_with_the_engine_in_use(outcome: str, sentence: str) -> None:
    engine = replace(COMPARISON, baseline="our engine", baseline_value=0.6, p_holm=0.0001, outcome=outcome)
    verdict = replace(VERDICT, imported=[engine])
    assert verdict.sentences[2] == sentence
    assert Verdict.read(verdict.json) == verdict


BUDGET = Budget(
    limits={"p95_ms": 50.0},
    excluded={"ranker": [{"limit": "p95_ms", "value": 120.4, "most": 50.0}]},
    without="ranker",
    gain=0.031,
    kept=True,
    nearest=None,
)


@pytest.mark.parametrize(
    ("outcome", "difference", "words"),
    [(BETTER, 0.04, "clearly better"), (UNCLEAR, 0.01, "not clearly better"), (WORSE, -0.04, "clearly worse")],
)
def test_verdict_says_what_the_budget_excludes_and_what_that_would_gain(
    outcome: str, difference: float, words: str
) -> None:
    entry = replace(
        COMPARISON, system="ranker", baseline=START, outcome=outcome, system_value=0.7, difference=difference
    )
    verdict = replace(VERDICT, budget=replace(BUDGET, comparison=entry))
    assert verdict.sentences[2] == (
        f"The budget excludes ranker (p95 120 ms > 50 ms). That is {words} than BM25 + start model (interpolated) "
        f"(.700, p = .37): the difference is {difference:+.3f} [-0.012, +0.032]."
    )
    written = verdict.json
    assert Verdict.read(written) == Verdict.read(written) == verdict
    assert replace(VERDICT, budget=BUDGET).sentences[2] == (
        "The budget excludes ranker (p95 120 ms > 50 ms). It has 0.031 more on dev."
    )


def test_a_contender_beyond_the_budget_is_not_kept() -> None:
    engine = replace(COMPARISON, baseline="ranker", baseline_value=0.7, p_holm=0.0001, outcome=WORSE)
    budget = replace(BUDGET, without=None, gain=None)
    assert replace(VERDICT, budget=budget, imported=[engine]).sentences[2] == (
        "ranker is clearly better (.700, p < .001), but beyond the budget (p95 120 ms > 50 ms)."
    )
    both = replace(VERDICT, budget=BUDGET, imported=[engine]).sentences
    assert [sentence for sentence in both if "ranker" in sentence] == [
        "The budget excludes ranker (p95 120 ms > 50 ms). It has 0.031 more on dev."
    ]


def test_other_excluded_systems_are_a_detail() -> None:
    budget = replace(BUDGET, without=None, gain=None)
    assert replace(VERDICT, budget=budget).sentences == VERDICT.sentences
    assert "Beyond the budget: ranker (p95 120 ms > 50 ms)." in replace(VERDICT, budget=budget).details


def test_verdict_deploys_nothing_beyond_the_budget() -> None:
    over = {"limit": "memory_gb", "value": 4.2, "most": 4.0}
    budget = replace(
        BUDGET, excluded={**BUDGET.excluded, START: [over]}, without=None, gain=None, kept=False, nearest=START
    )
    verdict = replace(VERDICT, deploy=None, chosen=None, comparison=None, budget=budget)
    assert verdict.sentences[0] == (
        "No system is within the budget. The nearest is BM25 + start model (interpolated; memory 4.2 GB > 4 GB): "
        "RR@10 .671 [.612, .730] on 202 test queries."
    )


def test_verdict_has_the_latency_of_queries_that_were_asked_alone() -> None:
    needs = {"queries": 200, "p50_ms": 8.24, "p95_ms": 12.5, "p99_ms": 31.0, "memory_gb": 1.3, "disk_gb": 0.2}
    assert replace(VERDICT, needs=needs).sentences[2] == (
        "Of 200 queries, asked one after another, half took at most 8.2 ms, 95 % at most 12 ms and 99 % at most 31 ms, "
        "in a process of 1.3 GB. It needs 91.0 MB of models and 262 kB of indexes and vectors."
    )


def test_clearly_better_system_needs_no_next_step() -> None:
    verdict = compared(outcome=BETTER, p_holm=0.0001, sample_factor=None, only_system_trained=True)
    assert (
        verdict.sentences[1]
        == "That is clearly better than BM25 alone (.661, p < .001), the best system without training."
    )
    assert len(verdict.sentences) == 3


def test_clearly_worse_choice_is_not_deployed() -> None:
    """The selection queries chose a system that the measured queries refute."""
    comparison = replace(COMPARISON, outcome=WORSE, difference=-0.05, p_holm=0.01, sample_factor=None)
    verdict = replace(VERDICT, system="BM25", deploy="BM25", comparison=comparison, value=0.721)
    assert verdict.sentences[:2] == [
        "Deploy BM25. RR@10 .721 [.612, .730] on 202 test queries.",
        "BM25 + start model (interpolated), chosen on dev, is clearly worse (.671, p = .010).",
    ]
    assert 'To search with BM25 or export it, add `--system "BM25"`.' in verdict.details


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"only_system_trained": True},
            "Training did not clearly help: ranker has .671 (p = .37).",
        ),
        ({"outcome": BETTER, "p_holm": 0.01}, "ranker is clearly better (.671, p = .010), but costs more."),
        ({"outcome": WORSE, "p_holm": 0.01}, "ranker is clearly worse (.671, p = .010)."),
        ({}, "ranker is not clearly better (.671, p = .37) and costs more."),
        (
            {"baseline": "fusion", "only_system_trained": True},
            "Training did not clearly help: ranker has .671, and fusion, the best without training, .661 (p = .37).",
        ),
    ],
)
def test_cheaper_system_is_compared_with_the_one_that_was_not_chosen(changes: dict[str, Any], sentence: str) -> None:
    verdict = replace(compared(system="ranker", **changes), system="BM25", deploy="BM25", chosen="BM25")
    assert verdict.sentences[1] == sentence


def test_merits_of_the_baseline_are_named() -> None:
    def merits(**changes: bool) -> str:
        return compared(**changes).sentences[1].partition("p = .37)")[2]

    assert merits(baseline_is_cheaper=True, only_system_trained=True) == ", which is cheaper and needs no training."
    assert merits(baseline_is_cheaper=False, only_system_trained=True) == ", which needs no training."
    assert merits(baseline_is_cheaper=False) == "."
    interpolated = compared(system="ranker", baseline="BM25 + start model, interpolated", baseline_is_cheaper=False)
    unchosen = replace(interpolated, system="ranker", deploy="ranker")
    assert unchosen.sentences[1] == (
        "That is not clearly better than BM25 + start model (interpolated; .661, p = .37)."
    )


def test_next_step_counts_trainings_if_the_test_does() -> None:
    assert compared(test=THE_METHOD, sample_factor=3.96).sentences[-1] == (
        "A difference of this size would be clear with about 4 times as many queries and trainings."
    )
    assert compared(sample_factor=2000.0).sentences[-1] == (
        "A difference this small would take more than 100 times as many queries to become clear."
    )
    assert not compared(sample_factor=None).sentences[-1].startswith("A difference")


def test_sample_factor_grows_with_the_interval_and_the_family() -> None:
    assert sample_factor(0.01, -0.01, 0.03, 1) == pytest.approx(((1.96 + 0.8416) / 1.96 * 2) ** 2, rel=1e-3)
    assert sample_factor(-0.01, -0.03, 0.01, 1) == sample_factor(0.01, -0.01, 0.03, 1)
    many, few = sample_factor(0.01, -0.01, 0.03, 20), sample_factor(0.01, -0.01, 0.03, 1)
    assert many is not None
    assert few is not None
    assert many > few
    assert sample_factor(0.0, -0.01, 0.01, 1) is None
    assert sample_factor(0.1, None, None, 1) is None


def test_recipes_that_choose_no_system_compare_two() -> None:
    verdict = replace(compared(system="ranker", baseline="retriever"), system="ranker", deploy=None, chosen=None)
    assert verdict.sentences[0] == "ranker has RR@10 .671 [.612, .730] on 202 test queries."
    assert verdict.sentences[1] == "That is not clearly better than retriever (.661, p = .37), which is cheaper."
    trained = replace(verdict, comparison=replace(verdict.comparison, only_system_trained=True))
    assert (
        trained.sentences[0]
        == "The best trained system on the dev queries is ranker. RR@10 .671 [.612, .730] on 202 test queries."
    )
    assert trained.details == ["The compared systems were chosen on the 124 dev queries."]


def test_averages_and_parts_of_collections_are_named() -> None:
    """A measure over the documents that have a judgement is higher than what a user will see."""
    average = replace(VERDICT, collections=4, split="all", queries=1200)
    assert average.sentences[0].endswith("[.612, .730] on average over 4 collections with 1,200 queries.")
    part = replace(VERDICT, documents=207, of_documents=1940, queries=1)
    assert part.sentences[0].endswith(" on 1 test query, searching 207 of 1,940 documents (easier than all).")


def test_a_single_query_has_no_interval() -> None:
    assert replace(VERDICT, low=None, high=None).sentences[0].endswith("RR@10 .671 on 202 test queries.")


def test_details_say_how_the_system_was_chosen() -> None:
    assert VERDICT.details[0] == (
        "BM25 + start model (interpolated) was chosen on the 124 dev queries, where it has RR@10 .820, and BM25 .816."
    )
    dearer = replace(VERDICT, selection_values={"ranker": 0.83, START: 0.82})
    assert dearer.details[0].endswith(" ranker has .830 there, too little more for what it costs.")
    unselected = replace(VERDICT, deploy=None, why_unselected="every system was trained")
    assert unselected.details == ["No separate queries chose these systems: every system was trained."]


def test_details_name_bm25_if_the_verdict_does_not() -> None:
    """BM25 is what most people search with today."""
    assert "BM25 alone has .600." in replace(compared(baseline="start model"), bm25=0.6).details
    assert not any("BM25 alone" in line for line in replace(VERDICT, bm25=0.6).details)


def test_details_say_why_nothing_was_trained() -> None:
    """The collection has no queries to train on, or the config says so."""
    assert any(line.startswith("Nothing was trained: training needs a few hundred") for line in VERDICT.details)
    line = "Nothing was trained, because the config says `train: false`. The split `train` has 1,740 judgements."
    assert line in replace(VERDICT, judgements=1740).details


@pytest.mark.parametrize(("outcome", "helps"), [(BETTER, False), (UNCLEAR, True), (WORSE, True)])
def test_details_point_to_the_guide_if_training_does_not_pay(outcome: str, helps: bool) -> None:
    verdict = replace(compared(outcome=outcome), anything_trained=True, updates=[20, 1500])
    title = "Where training does not pay"
    assert any(title in line for line in verdict.details) is helps
    assert ("The trainings had 20 to 1,500 updates." in verdict.details) is helps
    assert f"\n## {title}\n" in (ROOT / "docs/pages/guides/results.md").read_text()


def test_names_and_latencies_fit_into_sentences() -> None:
    assert in_prose("start model") == "start model"
    assert [latency(number) for number in (0.421, 2.34, 12.6, 1234.0)] == ["0.42 ms", "2.3 ms", "13 ms", "1.2 s"]


def test_values_are_those_on_the_queries_of_both() -> None:
    """A ranker over a sample of the queries, and its baseline's mean on that sample."""

    def row(system: str, value: float, queries: int) -> dict[str, Any]:
        place = {"collection": "c", "split": "test", "measure": "RR@10"}
        return {**place, "system": system, "value": value, "queries": queries, "seed": 1, "round": None}

    rows = [row("BM25", 0.4, 100), row("ranker", 0.712, 50)]
    shared = {"system": "ranker", "baseline": "BM25", "collection": "c", "split": "test", "seeds": [1], "queries": 50}
    numbers = {"measure": "RR@10", "difference": 0.057, "low": 0.01, "high": 0.1}
    entries = [
        {**shared, **numbers, "p": p, "p_holm": p, "test": test}
        for test, p in ((THIS_TRAINING, 0.0001), (THE_METHOD, 0.02))
    ]
    other_judgements = [{**entry, "collection": "d", "difference": -0.5} for entry in entries]
    metrics = {
        "rows": rows,
        "means": [{**row, "low": row["value"] - 0.1, "high": row["value"] + 0.3} for row in rows],
        "comparisons": entries + other_judgements,
        "leading": {**leading(None, [{"system": "ranker", "baseline": "BM25"}]), "measure": "RR@10"},
    }
    verdict = verdict_of(metrics)
    assert verdict is not None
    assert verdict.sentences == [
        "ranker has RR@10 .712 [.612, 1.000] on 50 test queries.",
        "That is clearly better than BM25 (.655, p = .020).",
    ]
    metrics["leading"] = leading("a reason", [{"system": "ranker", "baseline": "BM25"}])
    unselected = verdict_of(metrics)
    assert unselected is not None
    assert unselected.details == ["No separate queries chose these systems: a reason."]
    assert verdict_of({**metrics, "leading": leading("a reason", [])}) is None
    worse = [{**entry, "difference": -0.057} for entry in entries]
    metrics |= {"comparisons": worse, "leading": {**metrics["leading"], "deploy": "ranker", "selected_on": "dev"}}
    refuted = verdict_of(metrics)
    assert refuted is not None
    assert (refuted.deploy, refuted.chosen, refuted.system, refuted.value) == ("BM25", "ranker", "BM25", 0.4)


def test_contenders_are_compared_with_the_system_unless_they_are_its_baseline() -> None:
    place = {"collection": "c", "split": "test", "measure": "RR@10"}

    def compared(baseline: str, difference: float, system: str = "retriever") -> dict[str, Any]:
        numbers = {"difference": difference, "low": difference - 0.02, "high": difference + 0.02, "queries": 50}
        pair = {"system": system, "baseline": baseline, "seeds": [1], "test": THIS_TRAINING}
        return {**place, **pair, **numbers, "p": 0.001, "p_holm": 0.001}

    values = {"retriever": 0.6, "ours": 0.5, "vendor": 0.7, "BM25": 0.4}
    rows = [{**place, "system": name, "value": value, "queries": 50, "seed": 1} for name, value in values.items()]
    lead = {**leading(None, [{"system": "retriever", "baseline": "ours"}]), "deploy": "retriever"}
    metrics = {
        "rows": rows,
        "means": [{**row, "low": row["value"] - 0.1, "high": row["value"] + 0.1} for row in rows],
        "comparisons": [compared("ours", 0.1), compared("vendor", -0.1), compared("BM25", 0.2)],
        "leading": {**lead, "measure": "RR@10", "selected_on": "dev", "queries": 9},
    }
    systems: Any = [
        SimpleNamespace(name=name, trained=name == "retriever", contender=name in ("ours", "vendor"), system=None)
        for name in values
    ]
    verdict = verdict_of(metrics, systems)
    assert verdict is not None
    assert verdict.sentences[1:3] == [
        "That is clearly better than ours (.500, p = .001), the best system without training.",
        "Keep vendor: it is clearly better (.700, p = .001).",
    ]
    assert [entry.baseline for entry in verdict.imported] == ["vendor"]
    # The main comparison may have the contender as its system.
    metrics["comparisons"].append(compared("retriever", -0.1, system="ours"))
    metrics["leading"] = {**metrics["leading"], "system": "ours", "baseline": "retriever"}
    turned = verdict_of(metrics, systems)
    assert turned is not None
    assert turned.comparison is not None
    assert turned.comparison.system == "ours"
    assert [entry.baseline for entry in turned.imported] == ["vendor"]


def test_an_early_verdict_says_what_is_missing_and_what_would_replace_the_system() -> None:
    assert VERDICT.early == []
    chosen = replace(VERDICT, chosen="BM25", selected_on="dev", moment="before training", measure="RR@10")
    early = replace(chosen, missing=["retriever", *"abcd"], dearer=0.0123)
    assert early.early == [
        "This verdict is early (before training). Not measured yet: retriever, a, b, c and 1 more.",
        "A system that costs more than BM25 must have about .012 more RR@10 on the dev queries to replace it.",
    ]
    assert replace(chosen, missing=["a"], cheaper=-0.01).early[1:] == [
        "A system that costs less replaces it with at most about .010 less."
    ]
    assert early.json["early"] == early.early


def test_a_dearer_system_must_be_better_by_a_standard_error_and_than_the_best() -> None:
    """Three queries, of which the best system may cost too much for its gain."""
    values = {"cheap": [0.4, 0.5, 0.9], "dear": [0.5, 0.4, 1.0], "poor": [0.0, 0.0, 0.1]}
    selection = selected(
        {name: [np.array(numbers)] for name, numbers in values.items()},
        dict.fromkeys(values, False),
        {"poor": 0, "cheap": 1, "dear": 2},
    )
    assert selection["deploy"] == "cheap"
    behind = {candidate["system"]: candidate for candidate in selection["candidates"]}
    error = np.median([behind[name]["behind_error"] for name in ("cheap", "poor")])
    replaced = replaced_at(selection)
    assert replaced is not None
    assert replaced.dearer == pytest.approx(max(error, behind["cheap"]["behind"]))
    assert replaced.cheaper == pytest.approx(behind["cheap"]["behind"] - error)
    assert replaced_at({"candidates": []}) is None


def test_a_price_is_part_of_the_cost() -> None:
    ending = "indexes and vectors. The addresses charge 2.00 for 1,000 queries."
    assert replace(VERDICT, money=0.002).sentences[2].endswith(ending)
    bare = replace(VERDICT, money=0.002, milliseconds=None, bytes={})
    assert bare.sentences[2] == "The addresses charge 2.00 for 1,000 queries."


def test_rows_say_what_was_trained_and_what_a_query_costs() -> None:
    def mean(system: str, value: float, collection: str) -> dict[str, Any]:
        place = {"collection": collection, "split": "all", "measure": "RR@10", "queries": 60}
        return {**place, "system": system, "value": value, "low": value - 0.1, "high": value + 0.1, "over": ["c", "d"]}

    def entry(collection: str) -> dict[str, Any]:
        pair = {"system": "retriever", "baseline": "BM25", "collection": collection, "split": "all", "seeds": [1]}
        numbers = {"measure": "RR@10", "difference": 0.05, "low": -0.05, "high": 0.15, "queries": 60}
        return {**pair, **numbers, "p": 0.3, "p_holm": 0.3, "test": THIS_TRAINING}

    systems = [
        SimpleNamespace(name="BM25", trained=False, contender=False, system=SimpleNamespace(expense=0)),
        SimpleNamespace(name="retriever", trained=True, contender=False, system=SimpleNamespace(expense=2)),
    ]
    pair = {"system": "retriever", "baseline": "BM25"}
    means = [mean("BM25", 0.5, AVERAGE), mean("retriever", 0.55, AVERAGE), mean("retriever", 0.9, "c")]
    metrics = {
        "rows": [{**row, "seed": 1} for row in means],
        "means": means,
        "comparisons": [entry("c"), entry(AVERAGE)],
        "leading": {**leading(None, [pair]), "selected_on": "dev", "queries": 1200},
    }
    verdict = verdict_of(metrics, systems)
    assert verdict is not None
    assert verdict.sentences == [
        "The best trained system on the dev queries is retriever. RR@10 .550 [.450, .650] on average over 2 "
        "collections with 60 queries.",
        "That is not clearly better than BM25 (.500, p = .30), which is cheaper and needs no training.",
        "A difference of this size would be clear with about 490 queries in all.",
    ]
    assert verdict.details == ["The compared systems were chosen on the 1,200 dev queries."]
    assert verdict.anything_trained
