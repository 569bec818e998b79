"""Masks over whole words: what a loop over the words of each text would choose, and what a mask never touches."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.components.data.word_masks import nested_word_masks, word_masks

RATES = pytest.mark.parametrize(
    "rates", [(0.15, 0.15), (0.15, 0.3), (0.3, 0.3), (0.3, 0.5), (0.4, 0.6), (0.3, 1.0)], ids=str
)


def some_texts(*, count: int = 50, width: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Where words begin, and where texts are: each behind one special token and before another, and padding."""
    rng = np.random.default_rng(seed)
    starts = rng.random((count, width)) < 0.7
    lengths = rng.integers(1, width - 1, count)
    position = np.arange(width)
    return starts, (position >= 1) & (position <= lengths[:, None])


def words_of(starts: np.ndarray, text: np.ndarray) -> list[list[int]]:
    """The places of each word of one text."""
    words: list[list[int]] = []
    for place in np.flatnonzero(text):
        if starts[place] or not words:
            words.append([])
        words[-1].append(int(place))
    return words


def naive(starts: np.ndarray, text: np.ndarray, draws: np.ndarray, budget: int) -> list[int]:
    """Words in the order of their numbers, passing over what does not fit."""
    masked: list[int] = []
    for word in sorted(words_of(starts, text), key=lambda word: draws[word[0]]):
        if len(masked) + len(word) <= budget:
            masked += word
    return sorted(masked)


def test_masks_are_those_of_a_loop_over_words() -> None:
    starts, text = some_texts()
    rng = np.random.default_rng(1)
    draws, budget = rng.random(text.shape), rng.integers(0, 30, len(text))
    masks = word_masks(starts, text, draws, budget)
    for row, mask in enumerate(masks):
        assert np.flatnonzero(mask).tolist() == naive(starts[row], text[row], draws[row], budget[row])


def test_words_are_masked_whole_and_nothing_else_is() -> None:
    starts, text = some_texts()
    masks = word_masks(starts, text, np.random.default_rng(1).random(text.shape), text.sum(1) // 2)
    assert masks.any()
    assert not masks[~text].any()
    for row, mask in enumerate(masks):
        assert all(len({bool(mask[place]) for place in word}) == 1 for word in words_of(starts[row], text[row]))


@RATES
def test_the_second_mask_contains_the_first_and_both_have_their_rates(rates: tuple[float, float]) -> None:
    """Of the length with special tokens, as in the public code; a word that does not fit leaves a token or two."""
    starts, text = some_texts(count=400, width=80)
    rng = np.random.default_rng(2)
    lengths = text.sum(1) + 2
    first, second = nested_word_masks(starts, text, (rng.random(text.shape), rng.random(text.shape)), lengths, rates)
    assert not (first & ~second).any()
    assert (first.sum(1) <= np.rint(lengths * rates[0])).all()
    for mask, rate in ((first, rates[0]), (second, rates[1])):
        expected = min(rate, text.sum() / lengths.sum())
        assert mask.sum() / lengths.sum() == pytest.approx(expected, abs=0.02)
    if rates[0] == rates[1]:
        assert np.array_equal(first, second)


def test_nothing_and_everything() -> None:
    """AutoEncoder's rates: the encoder reads the whole text, the decoder mask tokens alone."""
    starts, text = some_texts()
    draws = np.random.default_rng(3).random(text.shape)
    none, everything = nested_word_masks(starts, text, (draws, draws), text.sum(1) + 2, (0.0, 1.0))
    assert not none.any()
    assert np.array_equal(everything, text)
    same, also = nested_word_masks(starts, text, (draws, draws), text.sum(1) + 2, (1.0, 1.0))
    assert np.array_equal(same, text)
    assert np.array_equal(also, text)


def test_padding_changes_no_mask() -> None:
    starts, text = some_texts(width=40)
    draws = np.random.default_rng(4).random((len(text), 48))
    wide = [np.pad(array, ((0, 0), (0, 8))) for array in (starts, text)]
    masks = word_masks(starts, text, draws[:, :40], text.sum(1) // 3)
    assert np.array_equal(word_masks(*wide, draws, text.sum(1) // 3)[:, :40], masks)


def test_a_text_without_tokens_has_no_mask() -> None:
    nowhere = np.zeros((2, 8), bool)
    assert not word_masks(nowhere, nowhere, np.zeros((2, 8)), np.array([3, 0])).any()
