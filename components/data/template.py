"""Batches of texts, of pairs and of longer sequences, with special tokens where a tokenizer puts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparring.components.data.batches import Batch, Part, concatenate
from sparring.components.data.tokens import Tokens

if TYPE_CHECKING:
    from torch import Tensor


class Template(NamedTuple):
    """The special tokens that a tokenizer puts around one text or a pair of texts, and their segments."""

    before: list[int]
    after: list[int]
    pair_before: list[int]
    pair_between: list[int]
    pair_after: list[int]
    first_segment: int
    second_segment: int
    between_segments: list[int]
    pad: int
    """The id of the padding token."""
    mask: int | None
    """The id of the mask token; None for a tokenizer without one."""
    segments: bool
    """Whether the model takes segment (token type) ids."""

    @classmethod
    def of(cls, tokenizer: Any, *, pairs: bool = True) -> Template:
        """Read the template of a Hugging Face tokenizer from its output for one text and for a pair.

        With `pairs=False` the pair's template stays empty. A tokenizer without a token between the texts of a pair gets
        an empty `pair_between`: callers that read pairs must check.
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
                f"the tokenizer does not put special tokens around texts as expected: {single_text['input_ids']} "
                f"for one text, {two_texts['input_ids']} for a pair"
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
        """Return the lengths (N,) of the rows of `texts`."""
        return self._text_lengths(tokens, rows, limit) + len(self.before) + len(self.after)

    def texts(self, tokens: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Texts with their special tokens, cut to `limit` tokens in all: `[CLS] a [SEP]`."""
        text = Part(tokens.ids, tokens.offsets[rows], self._text_lengths(tokens, rows, limit))
        before, after = Part.same(self.before, len(rows)), Part.same(self.after, len(rows))
        return concatenate([before, text, after], self.pad, segments=False)

    def text_positions(self, batch: Batch) -> Tensor:
        """Return where a batch of `texts` holds tokens of a text (N, L): False for special tokens and padding."""
        import torch

        position = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        end = batch.mask.sum(-1, keepdim=True) - len(self.after)
        return (position >= len(self.before)) & (position < end)

    def pair_lengths(self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """Return the lengths (N,) of the rows of `pairs`."""
        a, b = self._pair_lengths(first, second, rows, limit)
        return a + b + len(self.pair_before) + len(self.pair_between) + len(self.pair_after)

    def pairs(self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Pairs of texts, `(N, 2)` rows, with their special tokens: `[CLS] a [SEP] b [SEP]`, and with segments where
        the model takes them. A pair of more than `limit` tokens loses tokens of the longer text first.
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
        """Return the lengths (N,) of the rows of `sequences`."""
        special = len(self.before) + rows.shape[1] * len(self.after)
        return self._sequence_lengths(tokens, rows, limit).sum(1) + special

    def sequences(self, tokens: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Several texts in one sequence, `(N, P)` rows: `[CLS] a [SEP] b [SEP] c [SEP]`, all of one segment.

        A sequence of more than `limit` tokens loses those at its end, but keeps every special token.
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
    """Return the lengths to which pairs of texts are cut, so that both together have at most `budget` tokens.

    The longer text is cut to the length of the shorter, then both are cut equally: Hugging Face's `longest_first`.
    """
    short = np.minimum(first, second)
    long = np.maximum(short, budget - short)
    both = short + long > budget
    short, long = np.where(both, budget // 2, short), np.where(both, budget - budget // 2, long)
    fits = first + second <= budget
    a, b = np.where(first > second, long, short), np.where(first > second, short, long)
    return np.where(fits, first, a), np.where(fits, second, b)


def _special_runs(ids: list[int], special: list[int], lengths: list[int]) -> list[list[int]]:
    """Return the runs of special tokens before, between and after texts of these lengths.

    The run between two texts may be empty.
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
