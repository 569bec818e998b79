"""What a run of `adapt` ends with, in words."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING
from sparring.workflows import ROOT
from sparring.workflows.report.deployment import sentences


def verdict(*, trained: bool = True, against: dict[str, Any] | None = None, **other: Any) -> list[str]:
    """The sentences of a fusion that was chosen on dev, and of an untrained one beside it."""
    made: dict[str, Any] = {
        "system": "fusion",
        "split": "test",
        "measure": "RR@10",
        "value": 0.947,
        "low": 0.92,
        "high": 1.01,
        "queries": 157,
        "chosen_on": "the 89 queries of dev",
        "by": "dev",
        "there": {"fusion": 0.98, "start fusion": 0.966},
        "against": {
            "system": "fusion",
            "baseline": "start fusion",
            "difference": -0.006,
            "p": 0.38,
            "p_holm": 1.0,
            "test": THIS_TRAINING,
            **(against or {}),
        },
        "updates": [20, 1500],
        "bm25": None,
        "judgements": 0,
        "milliseconds": 22.94,
        "bytes": {"models": 91_000_000, "indexes": 2**18},
        **other,
    }
    return sentences(made, anything_trained=trained)


def test_it_says_what_was_chosen_by_and_that_more_is_not_shown() -> None:
    """No interval goes beyond what the measure can be."""
    assert verdict() == [
        "Deploy fusion or start fusion: there is no clear difference between them. fusion has RR@10 .947 (95 % "
        "interval .920 to 1.000) on the 157 queries of test.",
        "fusion was chosen on the 89 queries of dev, where it has .980.",
        "fusion against start fusion (the best untrained system, with .966 on dev): -.006 (p = .38, corrected 1.00, "
        "this training), no clear difference.",
        'To export start fusion, or search with it, add `--system "start fusion"`.',
        "A query took 22.9 ms here, many at once.",
        "fusion needs 262 kB of indexes and vectors and 91.0 MB of models.",
        "Where training does not pay, in docs/pages/guides/results.md of Sparring, says what may help.",
    ]


@pytest.mark.parametrize(
    ("against", "at", "says"),
    [
        (
            {"difference": 0.05, "p_holm": 0.01, "test": THE_METHOD},
            0,
            "Deploy fusion. fusion has RR@10 .947 (95 % interval .920 to 1.000) on the 157 queries of test.",
        ),
        (
            {"difference": 0.05, "p_holm": 0.01, "test": THE_METHOD},
            2,
            "fusion is better than start fusion (the best untrained system, with .966 on dev): +.050 (p = .38, "
            "corrected .010, the method).",
        ),
        ({"difference": -0.05, "p_holm": 0.01}, 0, "Deploy start fusion: fusion is worse. fusion has RR@10 .947"),
        ({"difference": -0.05, "p_holm": 0.01}, 2, "fusion is worse than start fusion (the best untrained system, "),
        ({"difference": -0.05, "p_holm": 0.01}, 3, 'To export start fusion, or search with it, add `--system "start'),
        (
            {"system": "ranker", "difference": 0.05},
            2,
            "These trainings, of 20 to 1,500 updates, are not shown to pay. ranker against start fusion (the best "
            "untrained system, with .966 on dev): +.050 (p = .38, corrected 1.00, this training).",
        ),
        (
            {"system": "ranker", "difference": 0.05, "p_holm": 0.01},
            2,
            "ranker, which costs more, is better than start fusion (the best untrained system, with .966 on dev): +",
        ),
    ],
)
def test_what_follows_depends_on_the_difference(against: dict[str, Any], at: int, says: str) -> None:
    assert verdict(against=against)[at].startswith(says)


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
    help = "Where training does not pay, in docs/pages/guides/results.md of Sparring, says what may help."
    assert (help in verdict(against=against, trained=trained)) is helps
    assert "\n## Where training does not pay\n" in guide


def test_each_sentence_can_be_read_by_itself() -> None:
    """They are bullets of the report. Parts that a semicolon had divided began with `it needs` and `which`."""
    for against in ({}, {"difference": 0.05, "p_holm": 0.01}, {"difference": -0.05, "p_holm": 0.01}):
        for one in verdict(against=against, bm25=0.9):
            assert one.endswith(".")
            assert ";" not in one
            assert not one.startswith(("It ", "it ", "which ", "that ", "and "))


def test_a_part_of_a_collection_is_called_that() -> None:
    """What is measured over the documents that have a judgement is higher than what a user will see."""
    said = "157 queries of test, over 207 of 1,940 documents, which is easier than over all."
    assert verdict(documents=207, of_documents=1940)[0].endswith(said)
    assert "over" not in verdict(documents=207, of_documents=None)[0]


def test_bm25_is_named_where_nothing_else_names_it() -> None:
    """What most people search with today."""
    assert "BM25 alone has .912." in verdict(bm25=0.912)
    assert not any("alone" in one for one in verdict(bm25=0.912, against={"baseline": "BM25"}))
    assert not any("alone" in one for one in verdict(bm25=0.912, system="BM25"))


def test_without_trainings_none_are_blamed() -> None:
    said = verdict(trained=False, against={"system": "start model", "difference": 0.05}, queries=1)
    assert said[0].endswith(" on the 1 query of test.")
    assert said[2].startswith(
        "What costs more is not shown to pay. start model against start fusion (with .966 on dev): +.050 (p"
    )


def test_a_dearer_system_may_have_been_better_there() -> None:
    there = {"ranker": 0.99, "fusion": 0.98, "start fusion": 0.966}
    assert verdict(there=there)[1] == (
        "fusion was chosen on the 89 queries of dev, where it has .980. ranker has .990 there, too little more for "
        "what it costs."
    )


def test_why_nothing_was_trained() -> None:
    """The collection has no queries to train on, or the config says so."""
    says = "Nothing was trained. Training needs some hundred judged queries in a split `train`. `recipe: folds` "
    assert any(one.startswith(says) for one in verdict(trained=False))
    says = "Nothing was trained, because the config says `train: false`. The split `train` has 1,740 judgements."
    assert says in verdict(trained=False, judgements=1740)


def test_what_bm25_needs_is_its_index() -> None:
    assert "fusion needs 1.0 MB of indexes and vectors." in verdict(bytes={"models": 0, "indexes": 2**20})
