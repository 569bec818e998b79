"""Batches of texts, pairs and longer sequences, with the special tokens of a tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparring.components.data.batches import Batch, Part, concatenate
from sparring.components.data.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Template(NamedTuple):
    """Special tokens that a tokenizer puts around a text or a pair of texts, and their segments."""

    before: list[int]
    after: list[int]
    pair_before: list[int]
    pair_between: list[int]
    pair_after: list[int]
    first_segment: int
    second_segment: int
    between_segments: list[int]
    pad: int
    """Id of the padding token."""
    mask: int | None
    """Id of the mask token. If None, the tokenizer has no mask token."""
    segments: bool
    """True if the model uses segment (token type) ids."""

    @classmethod
    def of(cls, tokenizer: Any, *, pairs: bool = True) -> Template:
        """Derive the template of a Hugging Face tokenizer from its output for a text and for a pair.

        With `pairs=False` the pair's template stays empty. If the tokenizer puts no token between the texts of a pair,
        `pair_between` is empty. Callers that read pairs must check this.
        """
        single_text = tokenizer("a", return_special_tokens_mask=True)
        two_texts = tokenizer("a", "a", return_special_tokens_mask=True, return_token_type_ids=True)
        count = single_text["special_tokens_mask"].count(0)
        single = _special_runs(single_text["input_ids"], single_text["special_tokens_mask"], [count])
        pair = (
            _special_runs(two_texts["input_ids"], two_texts["special_tokens_mask"], [count, count])
            if pairs
            else [[], [], []]
        )
        if len(single) != 2 or len(pair) != 3:
            raise ValueError(
                "The tokenizer must put special tokens only before, between and after texts. It returned "
                f"{single_text['input_ids']} for a text and {two_texts['input_ids']} for a pair."
            )
        types = two_texts["token_type_ids"]
        first = len(pair[0])
        second = len(types) - len(pair[2]) - 1
        special = [kind for kind, is_special in zip(types, two_texts["special_tokens_mask"], strict=True) if is_special]
        return cls(
            before=single[0],
            after=single[1],
            pair_before=pair[0],
            pair_between=pair[1],
            pair_after=pair[2],
            first_segment=types[first],
            second_segment=types[second],
            between_segments=special[first : first + len(pair[1])],
            pad=tokenizer.pad_token_id or 0,
            mask=tokenizer.mask_token_id,
            segments="token_type_ids" in tokenizer.model_input_names,
        )

    def lengths(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """Return the lengths of the rows of `texts`: (N,)."""
        return self._text_lengths(tokens, rows, limit) + len(self.before) + len(self.after)

    def texts(self, tokens: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Make a batch of texts with special tokens, cut to `limit` tokens in total: `[CLS] a [SEP]`."""
        text = Part(tokens.ids, tokens.offsets[rows], self._text_lengths(tokens, rows, limit))
        before, after = Part.same(self.before, len(rows)), Part.same(self.after, len(rows))
        return concatenate([before, text, after], self.pad, segments=False)

    def text_positions(self, batch: Batch) -> Tensor:
        """Mark the tokens of the text in a batch of `texts`: (N, L). Special tokens and padding are False."""
        import torch

        position = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        end = batch.mask.sum(-1, keepdim=True) - len(self.after)
        return (position >= len(self.before)) & (position < end)

    def pair_lengths(self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """Return the lengths of the rows of `pairs`: (N,)."""
        a, b = self._pair_lengths(first, second, rows, limit)
        return a + b + len(self.pair_before) + len(self.pair_between) + len(self.pair_after)

    def pairs(self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Make a batch of pairs with special tokens, from rows (N, 2) of texts: `[CLS] a [SEP] b [SEP]`.

        If the model uses segments, the batch has them. A pair of more than `limit` tokens loses tokens of the longer
        text first.
        """
        a, b = self._pair_lengths(first, second, rows, limit)
        parts = [
            Part.same(self.pair_before, len(rows), self.first_segment),
            Part(first.ids, first.offsets[rows[:, 0]], a, self.first_segment),
            Part.same(self.pair_between, len(rows), self.between_segments),
            Part(second.ids, second.offsets[rows[:, 1]], b, self.second_segment),
            Part.same(self.pair_after, len(rows), self.second_segment),
        ]
        return concatenate(parts, self.pad, segments=self.segments)

    def sequence_lengths(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """Return the lengths of the rows of `sequences`: (N,)."""
        special = len(self.before) + rows.shape[1] * len(self.after)
        return self._sequence_lengths(tokens, rows, limit).sum(1) + special

    def sequences(self, tokens: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Make a batch of sequences of P texts, from rows (N, P) of texts: `[CLS] a [SEP] b [SEP] c [SEP]`.

        There is a single segment. A sequence of more than `limit` tokens loses tokens at its end, but no special token.
        """
        parts = [Part.same(self.before, len(rows))]
        for column, lengths in zip(rows.T, self._sequence_lengths(tokens, rows, limit).T, strict=True):
            parts += [Part(tokens.ids, tokens.offsets[column], lengths), Part.same(self.after, len(rows))]
        return concatenate(parts, self.pad, segments=False)

    def _text_lengths(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        return np.minimum(tokens.lengths(rows), max(0, limit - len(self.before) - len(self.after)))

    def _pair_lengths(
        self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        budget = max(0, limit - len(self.pair_before) - len(self.pair_between) - len(self.pair_after))
        return longest_first(first.lengths(rows[:, 0]), second.lengths(rows[:, 1]), budget)

    def _sequence_lengths(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        lengths = np.stack([tokens.lengths(column) for column in rows.T], 1)
        budget = max(0, limit - len(self.before) - rows.shape[1] * len(self.after))
        return np.clip(budget - (lengths.cumsum(1) - lengths), 0, lengths)


def longest_first(first: np.ndarray, second: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths to which pairs of texts are cut, so that both texts have at most `budget` tokens in total.

    The longer text is cut to the length of the shorter. Then both are cut equally, as in Hugging Face's
    `longest_first`.
    """
    short = np.minimum(first, second)
    long = np.maximum(short, budget - short)
    both = short + long > budget
    short, long = np.where(both, budget // 2, short), np.where(both, budget - budget // 2, long)
    fits = first + second <= budget
    a, b = np.where(first > second, long, short), np.where(first > second, short, long)
    return np.where(fits, first, a), np.where(fits, second, b)


def _special_runs(ids: list[int], special: list[int], lengths: list[int]) -> list[list[int]]:
    """Split off the special tokens before, between and after texts of these lengths.

    The tokens between two texts may be none.
    """
    runs: list[list[int]] = [[]]
    remaining = lengths[0]
    for token, is_special in zip(ids, special, strict=True):
        if is_special:
            runs[-1].append(token)
            continue
        remaining -= 1
        if remaining == 0:
            runs.append([])
            remaining = lengths[min(len(runs), len(lengths)) - 1]
    return runs
