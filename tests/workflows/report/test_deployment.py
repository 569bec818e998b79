"""What a run of `adapt` ends with, in words."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING
from sparring.workflows import ROOT
from sparring.workflows.report.deployment import sentence


def verdict(*, trained: bool = True, against: dict[str, Any] | None = None, **other: Any) -> str:
    """The sentence of a fusion that was chosen on dev, and of an untrained one beside it."""
    made: dict[str, Any] = {
        "system": "fusion", "split": "test", "measure": "RR@10", "value": 0.947, "low": 0.92, "high": 1.01,
        "queries": 157, "chosen_on": "the 89 queries of dev", "by": "dev",
        "there": {"fusion": 0.98, "start fusion": 0.966},
        "against": {"system": "fusion", "baseline": "start fusion", "difference": -0.006, "p": 0.38, "p_holm": 1.0,
                    "test": THIS_TRAINING, **(against or {})},
        "updates": [20, 1500],
        "bm25": None, "judgements": 0, "milliseconds": 22.94, "bytes": {"models": 91_000_000, "indexes": 2**18},
        **other,
    }  # fmt: skip
    return sentence(made, anything_trained=trained)


def test_it_says_what_was_chosen_by_and_that_more_is_not_shown() -> None:
    """No interval goes beyond what the measure can be."""
    assert verdict() == (
        "Deploy fusion or start fusion, of which fusion was chosen on the 89 queries of dev (.980 there): it has RR@10 "
        ".947 (95 % interval .920 to 1.000) on the 157 queries of test; -.006 against start fusion, the best untrained "
        "system, .966 on dev (p = .38, corrected 1.00, this training), no clear difference "
        '(`--system "start fusion"` with export and search takes start fusion); a query took 22.9 ms here, many at '
        "once; it needs 262 kB of indexes and vectors and 91.0 MB of models. What may help: "
        "Where training does not pay, in docs/pages/guides/results.md of Sparring."
    )


@pytest.mark.parametrize(
    ("against", "says"),
    [
        ({"difference": 0.05, "p_holm": 0.01, "test": THE_METHOD}, "corrected .010, the method); a query took"),
        (
            {"difference": -0.05, "p_holm": 0.01},
            "Deploy start fusion: fusion, chosen on the 89 queries of dev (.980 there), has RR@10 .947",
        ),
        ({"difference": -0.05, "p_holm": 0.01}, 'this training), worse (`--system "start fusion"` with'),
        (
            {"system": "ranker", "difference": 0.05},
            "; these trainings, of 20 to 1,500 updates, are not shown to pay: ranker has +.050 against",
        ),
        ({"system": "ranker", "difference": 0.05, "p_holm": 0.01}, "; ranker, which costs more, has +.050 against"),
    ],
)
def test_what_follows_depends_on_the_difference(against: dict[str, Any], says: str) -> None:
    assert says in verdict(against=against)


@pytest.mark.parametrize(
    ("against", "trained", "helps"),
    [
        ({"difference": 0.05, "p_holm": 0.01}, True, False),
        ({"difference": 0.05, "p_holm": 0.2}, True, True),
        ({"difference": -0.05, "p_holm": 0.01}, True, True),
        ({"system": "ranker", "difference": 0.05, "p_holm": 0.01}, True, True),
        ({}, False, False),
    ],
)
def test_where_training_does_not_pay_it_says_where_to_read_on(
    against: dict[str, Any], trained: bool, helps: bool
) -> None:
    guide = (ROOT / "docs/pages/guides/results.md").read_text()
    help = ". What may help: Where training does not pay, in docs/pages/guides/results.md of Sparring."
    assert verdict(against=against, trained=trained).endswith(help) is helps
    assert "\n## Where training does not pay\n" in guide


def test_a_part_of_a_collection_is_called_that() -> None:
    """What is measured over the documents that have a judgement is higher than what a user will see."""
    said = "157 queries of test, over 207 of 1,940 documents, which is easier than over all; -.006 against"
    assert said in verdict(documents=207, of_documents=1940)
    assert "over" not in verdict(documents=207, of_documents=None)


def test_bm25_is_named_where_nothing_else_names_it() -> None:
    """What most people search with today."""
    assert "; BM25 alone has .912; a query took" in verdict(bm25=0.912)
    assert "alone" not in verdict(bm25=0.912, against={"baseline": "BM25"})
    assert "alone" not in verdict(bm25=0.912, system="BM25")


def test_without_trainings_none_are_blamed() -> None:
    said = verdict(trained=False, against={"system": "start model", "difference": 0.05}, queries=1)
    assert "; what costs more is not shown to pay: start model has +.050 against start fusion" in said
    assert " on the 1 query of test;" in said


def test_a_dearer_system_may_have_been_better_there() -> None:
    there = {"ranker": 0.99, "fusion": 0.98, "start fusion": 0.966}
    assert "(.980 there; ranker has .990, too little more for what it costs)" in verdict(there=there)


def test_why_nothing_was_trained() -> None:
    """The collection has no queries to train on, or the config says so."""
    assert "nothing was trained; that needs judged queries in a split `train`" in verdict(trained=False)
    says = "nothing was trained, as the config says `train: false`: the split `train` has 1,740 judgements;"
    assert says in verdict(trained=False, judgements=1740)


def test_what_bm25_needs_is_its_index() -> None:
    assert verdict(bytes={"models": 0, "indexes": 2**20}).count("it needs 1.0 MB of indexes and vectors. What") == 1
