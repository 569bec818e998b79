"""Answer matching as DPR has it: against a plain transcription of its rules, and by examples."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from components.answers import matcher, prepared
from components.config import UserError


def naive(answer: str, text: str) -> bool:
    """Token lists compared at every place, as DPR's `has_answer` does."""
    rule = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)

    def tokens(one: str) -> list[str]:
        return [match.group().lower() for match in rule.finditer(unicodedata.normalize("NFD", one))]

    wanted, there = tokens(answer), tokens(text)
    return bool(wanted) and any(there[i : i + len(wanted)] == wanted for i in range(len(there) - len(wanted) + 1))


def found(answers: list[str], text: str, mode: str = "tokens") -> bool:
    return matcher(answers, mode)(prepared(text, mode))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "text", "wanted"),
    [
        ("New York", "He moved to new york in 1901.", True),
        ("York", "Yorkshire is large", False),  # a part of a token
        ("New York", "new, york", False),  # not one after another
        ("U.S.", "the U. S. army", True),  # spaces between tokens do not matter
        ("Beyonc\u00e9", "Beyonce\u0301 sang", True),  # composed and decomposed
        ("Beyonce", "Beyonc\u00e9 sang", False),
        ("1,000", "about 1,000 men", True),
        ("1000", "about 1,000 men", False),
        ("\u00c9COLE", "une \u00e9cole", True),
        ("", "anything", False),
        (" \u200b", "anything \u200b", False),
        ("a", "", False),
    ],
)
def test_examples(answer: str, text: str, wanted: bool) -> None:
    assert found([answer], text) is naive(answer, text) is wanted


LETTERS = st.text(alphabet="ab ,.\u00e9e\u0301A1\u200b\n", max_size=12)


@given(LETTERS, LETTERS)
def test_it_is_what_the_naive_comparison_says(answer: str, text: str) -> None:
    assert found([answer], text) == naive(answer, text)


def test_any_of_several_answers_will_do() -> None:
    assert found(["Paris", "London"], "in london")
    assert not found(["Paris", "Rome"], "in london")
    assert not found([], "in london")


def test_patterns() -> None:
    assert found([r"19\d\d"], "in 1987", "regex")
    assert not found([r"19\d\d"], "in 2087", "regex")
    assert found([r"^second line"], "first\nSecond line", "regex")
    assert found(["caf\u00e9"], "the cafe\u0301", "regex")
    with pytest.raises(UserError, match=r"answer '\(': no regular expression"):
        matcher(["("], "regex")
