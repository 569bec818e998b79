"""Answer matching as DPR has it: against a plain transcription of its rules, and by examples."""

from __future__ import annotations

import sys
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from sparring.components.config import UserError
from sparring.components.data.answers import matcher, normalize


def naive(answer: str, text: str) -> bool:
    """Token lists compared at every place, as DPR's `has_answer` does."""
    rule = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)

    def tokens(string: str) -> list[str]:
        return [match.group().lower() for match in rule.finditer(unicodedata.normalize("NFD", string))]

    wanted, words = tokens(answer), tokens(text)
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def found(answers: list[str], text: str, mode: str = "tokens") -> bool:
    return matcher(answers, mode)(normalize(text, mode))  # type: ignore[arg-type]


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
        ("York", "NewYork, York", True),  # the first place is inside a word
        ("the of the", "The end of the, of the house of the", False),
        ("of the house", "of the, house of the", False),
        ("of the house", "the of the of  the\u200b house", True),
        ("\u039f\u0394\u039f\u03a3", "\u039f\u0394\u039f\u03a3.\u0391", True),  # ends its token, not the word
        ("\u039f\u03a3\u0391", "\u039f\u03c3\u0391", True),
    ],
)
def test_examples(answer: str, text: str, wanted: bool) -> None:
    assert found([answer], text) is naive(answer, text) is wanted


LETTERS = st.text(alphabet="ab ,.\u00e9e\u0301A1\u200b\n\u03a3\u03c3\u03c2", max_size=12)


@given(LETTERS, LETTERS)
def test_it_is_what_the_naive_comparison_says(answer: str, text: str) -> None:
    assert found([answer], text) == naive(answer, text)


def test_whatever_has_a_lower_case_is_the_token_that_it_was() -> None:
    """Texts are lowered as a whole, and then looked at by token."""
    capitals = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).lower() != chr(code)]
    assert len(capitals) > 1_000
    for letter in capitals:
        for text in (f"a{letter}", f"{letter}.a", f"a {letter}a", f"{letter}, {letter}"):
            for answer in (letter, f"a{letter}", f"{letter}."):
                assert found([answer], text) == naive(answer, text), (answer, text)


def test_any_of_several_answers_will_do() -> None:
    assert found(["Paris", "London"], "in london")
    assert not found(["Paris", "Rome"], "in london")
    assert not found([], "in london")


def test_patterns() -> None:
    assert found([r"19\d\d"], "in 1987", "regex")
    assert not found([r"19\d\d"], "in 2087", "regex")
    assert found([r"^second line"], "first\nSecond line", "regex")
    assert found(["caf\u00e9"], "the cafe\u0301", "regex")
    with pytest.raises(UserError, match=r"the answer '\(' is not a regular expression"):
        matcher(["("], "regex")
