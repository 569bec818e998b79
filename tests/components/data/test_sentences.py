"""Cutting a text into sentences."""

from __future__ import annotations

import pytest

from sparring.components.data.sentences import sentences


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("", []),
        ("  \n ", []),
        ("No end", ["No end"]),
        (" One. Two!\n\nThree?  Four ", ["One.", "Two!", "Three?", "Four"]),
        ('He said "no." She left (early.) Then rain.', ['He said "no."', "She left (early.)", "Then rain."]),
        ("It is 3.5 km from x.y to z.", ["It is 3.5 km from x.y to z."]),
        ("Dr. No came.", ["Dr.", "No came."]),  # an abbreviation cuts too
    ],
)
def test_a_text_is_cut_after_its_marks(text: str, cut: list[str]) -> None:
    assert sentences(text) == cut
