"""Languages are recognised in small collections, and not where there is nothing to recognise."""

from __future__ import annotations

import pytest

from sparring.components.sources.languages import TEXTS as MOST
from sparring.components.sources.languages import Sample, languages_of, spoken
from tests.support.languages import TEXTS


@pytest.mark.parametrize("code", TEXTS)
def test_six_sentences_of_a_language_are_recognised(code: str) -> None:
    assert [*languages_of(TEXTS[code])] == [code]


@pytest.mark.parametrize(("first", "second"), [("de", "en"), ("ja", "fr"), ("zh", "en"), ("th", "vi")])
def test_languages_of_a_mixed_collection_have_their_shares(first: str, second: str) -> None:
    result = languages_of([*TEXTS[first], *TEXTS[second][:4]])
    assert [*result] == [first, second]
    assert result[first] == pytest.approx(0.6, abs=0.05)
    assert sum(result.values()) <= 1 + 1e-6


def test_a_single_text_in_another_language_is_no_second_language() -> None:
    assert [*languages_of([*TEXTS["de"], TEXTS["fr"][0]])] == ["de"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["Haus"],
        TEXTS["de"][:1],
        [f"AB-{i:04}-XK" for i in range(500)],
        [f"{i * 7919 % 10007}" for i in range(500)],
        ["for (int i = 0; i < n; i++) { x[i] += y; }"] * 100,
        [f"{i * 0x9E3779B97F4A7C15 % 2**64:016x}" for i in range(200)],
        ["\ud800", "\x00", "\u202e"],
    ],
    ids=["none", "blank", "word", "sentence", "codes", "numbers", "program", "digests", "no text"],
)
def test_nothing_is_said_of_too_little_text_and_of_no_language(texts: list[str]) -> None:
    assert languages_of(texts) == {}


def test_a_sample_has_texts_of_all_parts_of_a_collection_and_is_the_same_again() -> None:
    samples = [Sample(), Sample()]
    for sample in samples:
        for number in range(20 * MOST):
            sample.add(f"{number}")
    first, again = (sample.texts for sample in samples)
    assert first == again
    assert len(set(first)) == MOST
    for tenth in range(10):
        assert sum(tenth == int(text) * 10 // (20 * MOST) for text in first) > MOST / 20


def test_languages_in_words() -> None:
    assert spoken({"de": 0.99}) == "German"
    assert spoken({"en": 0.5, "de": 0.3, "qqq": 0.2}) == "English (50 %), German (30 %) and language 'qqq' (20 %)"
