"""SQuAD's measures, by hand."""

from __future__ import annotations

import pytest

from sparring.components.evaluation.exact_match import best_over_answers, exact_match, f1, normalised


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  U.S. Army!", "us army"),
        ("a an the", ""),
        ("theatre and another", "theatre and another"),
        ("the-end", "theend"),
        ("It's 1,974.", "its 1974"),
        ("Aa«b»", "aa«b»"),  # ASCII punctuation alone goes, and an article is a whole word
    ],
)
def test_what_makes_no_difference(text: str, wanted: str) -> None:
    """Punctuation goes before articles do: of `the-end` no article is left to go."""
    assert normalised(text) == wanted


def test_exact_match_and_f1_by_hand() -> None:
    assert exact_match("the Denver Broncos.", "Denver broncos") == 1
    assert exact_match("Broncos", "Denver Broncos") == 0
    # Precision 2/4, recall 2/3.
    assert f1("Denver Broncos of Colorado", "Denver Denver Broncos") == pytest.approx(2 * 0.5 * (2 / 3) / (0.5 + 2 / 3))
    assert f1("x x", "x") == pytest.approx(2 / 3)
    assert f1("one", "two") == 0
    assert f1("", "two") == 0
    assert f1("the", "a") == 0  # both empty: the first script of SQuAD gives no point for sharing nothing


def test_the_best_of_the_right_answers_counts() -> None:
    assert best_over_answers(
        f1, "Santa Clara", ["California", "Santa Clara, California", "the Clara"]
    ) == pytest.approx(0.8)
    assert best_over_answers(exact_match, "Santa Clara", ["California", "santa clara"]) == 1
    assert best_over_answers(exact_match, "", []) == 0
