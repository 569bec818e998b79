"""Masks over whole words, drawn for a batch of texts at once."""

from __future__ import annotations

import numpy as np


def word_masks(starts: np.ndarray, text: np.ndarray, draws: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Choose whole words to mask: (N, L). Each text gets `budget` masked tokens, or slightly fewer.

    `starts` (N, L) is True where a word begins, and `text` (N, L) is True at tokens of the text. `budget` (N,) is the
    number of tokens to mask. Words are chosen in the order of the random number in `draws` (N, L) at their first token.
    As in SimLM's public code, a word with more tokens than the remaining budget is skipped. If a text begins inside a
    word, the partial word counts as a word.

    >>> starts = np.array([[True, False, True, True]])
    >>> draws = np.array([[0.1, 0.9, 0.5, 0.2]])
    >>> word_masks(starts, np.ones((1, 4), bool), draws, np.array([2])).astype(int)
    array([[1, 1, 0, 0]])
    >>> word_masks(starts, np.ones((1, 4), bool), draws, np.array([1])).astype(int)
    array([[0, 0, 0, 1]])
    """
    rows, width = np.arange(len(text)), text.shape[1]
    first = text & (starts | ~np.pad(text, ((0, 0), (1, 0)))[:, :-1])
    word = np.cumsum(first, 1) * text  # number of the word from 1, and 0 outside of the text
    sizes = np.zeros((len(text), width + 1), np.int64)
    np.add.at(sizes, (rows[:, None], word), 1)
    keys = np.full((len(text), width + 1), np.inf)
    row, column = np.nonzero(first)
    keys[row, word[row, column]] = draws[row, column]
    order = np.argsort(keys, axis=1, kind="stable")[:, : int(word.max(initial=0))]
    masked, remaining = np.zeros_like(sizes, bool), np.array(budget)
    for column in order.T:  # the next word of each text
        size = sizes[rows, column]
        fits = (size <= remaining) & (column > 0)
        masked[rows, column] |= fits
        remaining -= size * fits
    masked[:, 0] = False
    return masked[rows[:, None], word]


def nested_word_masks(
    starts: np.ndarray,
    text: np.ndarray,
    draws: tuple[np.ndarray, np.ndarray],
    lengths: np.ndarray,
    rates: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray]:
    """Draw two masks (N, L), of which the second contains the first (Wang et al., 2023, section 3.1).

    `rates` are the masks' shares of `lengths` (N,), the number of tokens that each text counts for. As in the public
    code, the second mask is the union of the first and an independent mask. The independent mask's rate is chosen so
    that the union has the second rate.
    """
    inner, outer = rates
    further = (outer - inner) / (1 - inner) if outer > inner else 0.0
    first, second = (
        word_masks(starts, text, drawn, np.rint(lengths * rate).astype(np.int64))
        for drawn, rate in zip(draws, (inner, further), strict=True)
    )
    return first, first | second
