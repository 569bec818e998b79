"""Tokens: tokenised once, stored as columns, put together and padded when a model wants them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from components.config import UserError
from components.model_configs import OWN

if TYPE_CHECKING:
    from torch import Tensor


TOKENIZER = "tokenizer.json"
"""The file in a token store that holds the digest of the tokenizer that made it."""


def document_text(title: str, text: str) -> str:
    """What a model reads of a document: its title, a space, its text."""
    return f"{title} {text}".strip()


class Tokens:
    """Token ids of many texts, without special tokens: `ids[offsets[i]:offsets[i + 1]]` is text i."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def open(cls, folder: Path, name: str) -> Self:
        """Those of a token store, memory-mapped."""
        return cls(*(np.load(folder / f"{name}.{part}.npy", mmap_mode="r") for part in ("ids", "offsets")))

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]]) -> Self:
        """Those of a few texts."""
        arrays = [np.asarray(text, np.int64) for text in texts]
        return cls(np.concatenate([np.empty(0, np.int64), *arrays]), np.cumsum([0, *map(len, arrays)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Tokens of some texts, or of each."""
        return np.diff(self.offsets) if rows is None else self.offsets[rows + 1] - self.offsets[rows]


class TokenStore:
    """A collection's tokens as one model reads them: queries, documents, and the special tokens around them.

    UserError where the tokens were made with another tokenizer than the model's.
    """

    def __init__(self, folder: Path, model: Path, *, pairs: bool = True) -> None:
        from components.pretrained import load_tokenizer  # brings in transformers

        made = json.loads((folder / TOKENIZER).read_text())
        if made != fingerprint_of(model):
            raise UserError(
                f"{folder}: these tokens were made with another tokenizer ({made}) than that of {model} "
                f"({fingerprint_of(model)}); tokenise the collection for this model"
            )
        self.template = Template.of(load_tokenizer(model), pairs=pairs)
        self.queries, self.documents = Tokens.open(folder, "queries"), Tokens.open(folder, "documents")


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
    segments: bool
    """Whether the model takes segment (token type) ids."""

    @classmethod
    def of(cls, tokenizer: Any, *, pairs: bool = True) -> Template:
        """Read off how a Hugging Face tokenizer wraps a text and a pair, where pairs are to be read."""
        one = tokenizer("a", return_special_tokens_mask=True)
        two = tokenizer("a", "a", return_special_tokens_mask=True, return_token_type_ids=True)
        single = _runs(one["input_ids"], one["special_tokens_mask"])
        pair = _runs(two["input_ids"], two["special_tokens_mask"]) if pairs else [[], [], []]
        if len(single) != 2 or len(pair) != 3:
            raise ValueError(f"a tokenizer that wraps texts in an unknown way: {one['input_ids']}, {two['input_ids']}")
        types = two["token_type_ids"]
        first = len(pair[0])
        second = len(types) - len(pair[2]) - 1
        special = [kind for kind, is_special in zip(types, two["special_tokens_mask"], strict=True) if is_special]
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
            segments="token_type_ids" in tokenizer.model_input_names,
        )

    def lengths(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """(N,) how long some texts are with their special tokens, at most `limit`."""
        return self._kept(tokens, rows, limit) + len(self.before) + len(self.after)

    def texts(self, tokens: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Some texts with their special tokens, at most `limit` tokens each."""
        text = _Part(tokens.ids, tokens.offsets[rows], self._kept(tokens, rows, limit))
        return _batch([_special(self.before, rows), text, _special(self.after, rows)], self.pad, segments=False)

    def several(self, tokens: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Several texts one after another, `(N, P)` rows, each ended as one text is: `[CLS] a [SEP] b [SEP] c [SEP]`.

        They are all of one segment. What is too long is cut at the end.
        """
        parts = [_special(self.before, rows)]
        for column, kept in zip(rows.T, self._kept_of_several(tokens, rows, limit).T, strict=True):
            parts += [_Part(tokens.ids, tokens.offsets[column], kept), _special(self.after, rows)]
        return _batch(parts, self.pad, segments=False)

    def several_lengths(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """(N,) how long they are, at most `limit`."""
        special = len(self.before) + rows.shape[1] * len(self.after)
        return self._kept_of_several(tokens, rows, limit).sum(1) + special

    def _kept_of_several(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        lengths = np.stack([tokens.lengths(column) for column in rows.T], 1)
        room = max(0, limit - len(self.before) - rows.shape[1] * len(self.after))
        return np.clip(room - (lengths.cumsum(1) - lengths), 0, lengths)

    def pair_lengths(self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        """(N,) how long some pairs are with their special tokens, at most `limit`."""
        a, b = self._kept_of_pairs(first, second, rows, limit)
        return a + b + len(self.pair_before) + len(self.pair_between) + len(self.pair_after)

    def pairs(self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int) -> Batch:
        """Pairs of texts, `(N, 2)` rows, with special tokens and, where the model takes them, segments.

        What is too long is cut from the longer of the two.
        """
        a, b = self._kept_of_pairs(first, second, rows, limit)
        parts = [
            _special(self.pair_before, rows, self.first_segment),
            _Part(first.ids, first.offsets[rows[:, 0]], a, self.first_segment),
            _special(self.pair_between, rows, self.between_segments),
            _Part(second.ids, second.offsets[rows[:, 1]], b, self.second_segment),
            _special(self.pair_after, rows, self.second_segment),
        ]
        return _batch(parts, self.pad, segments=self.segments)

    def _kept(self, tokens: Tokens, rows: np.ndarray, limit: int) -> np.ndarray:
        return np.minimum(tokens.lengths(rows), max(0, limit - len(self.before) - len(self.after)))

    def _kept_of_pairs(
        self, first: Tokens, second: Tokens, rows: np.ndarray, limit: int
    ) -> tuple[np.ndarray, np.ndarray]:
        room = max(0, limit - len(self.pair_before) - len(self.pair_between) - len(self.pair_after))
        return longest_first(first.lengths(rows[:, 0]), second.lengths(rows[:, 1]), room)


def longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """How much of each of two texts stays: the longer is cut first, then both alike (Hugging Face's rule)."""
    short = np.minimum(first, second)
    long = np.maximum(short, room - short)
    both = short + long > room
    short, long = np.where(both, room // 2, short), np.where(both, room - room // 2, long)
    fits = first + second <= room
    a, b = np.where(first > second, long, short), np.where(first > second, short, long)
    return np.where(fits, first, a), np.where(fits, second, b)


def _runs(ids: list[int], special: list[int]) -> list[list[int]]:
    """The runs of special tokens around and between the texts."""
    runs: list[list[int]] = [[]]
    for token, is_special in zip(ids, special, strict=True):
        if is_special:
            runs[-1].append(token)
        elif runs[-1] or len(runs) == 1:
            runs.append([])
    return runs


class Batch(NamedTuple):
    """Padded texts as a model takes them."""

    ids: Tensor
    mask: Tensor
    segments: Tensor | None = None


B = TypeVar("B", bound=tuple)


def to_device(batch: B, device: Any) -> B:
    """A batch with every tensor in it, and in the batches in it, on a device."""
    moved: list[Any] = [
        to_device(part, device) if isinstance(part, tuple) else part.to(device, non_blocking=True)
        if part is not None else None
        for part in batch
    ]  # fmt: skip
    return type(batch)(*moved)


class _Part(NamedTuple):
    """One part of each of N sequences: a run of `values` from its start."""

    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    segment: int | list[int] = 0
    """Of all its tokens, or one for each where all sequences have the same."""


def _special(tokens: list[int], rows: np.ndarray, segment: int | list[int] = 0) -> _Part:
    """The same tokens in each sequence."""
    count = len(rows)
    return _Part(np.asarray(tokens, np.int64), np.zeros(count, np.int64), np.full(count, len(tokens)), segment)


def whole_eights(length: int) -> int:
    """The width of a batch whose longest text is so long: processors like multiples of 8."""
    return -(-max(1, length) // 8) * 8


def _batch(parts: list[_Part], padding: int, *, segments: bool) -> Batch:
    """The parts one after another, padded to the longest."""
    import torch

    lengths = np.sum([part.lengths for part in parts], axis=0)
    width = whole_eights(int(lengths.max(initial=0)))
    ids = np.full((len(lengths), width), padding, np.int64)
    types = np.zeros_like(ids) if segments else None
    at = np.arange(len(lengths)) * width
    for part in parts:
        where = _spans(at, part.lengths)
        ids.reshape(-1)[where] = part.values[_spans(part.starts, part.lengths)]
        if types is not None:
            types.reshape(-1)[where] = np.resize(part.segment, len(where))
        at = at + part.lengths
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    kinds = torch.from_numpy(types) if types is not None else None
    return Batch(torch.from_numpy(ids), torch.from_numpy(mask), kinds)


def _spans(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Every position of some runs, one run after another."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def token_batches(lengths: np.ndarray, limit: int) -> list[np.ndarray]:
    """Positions grouped into batches of similar length of at most `limit` tokens each, padding counted.

    Longest first, so that what does not fit in memory fails at once; ties keep their order.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    batches, start = [], 0
    while start < len(order):
        width = whole_eights(int(lengths[order[start]]))
        count = max(1, limit // width)
        batches.append(order[start : start + count])
        start += count
    return batches


def tokenizer_file(model: Path) -> Path:
    """Where a saved model's tokenizer is: beside it; of two towers, beside the query's."""
    beside = model / "tokenizer.json"
    return beside if beside.exists() else model / "query" / "tokenizer.json"


def prompts_of(model: Path) -> dict[str, str]:
    """What stands before each query and each document that a saved model reads; of all but retrievers nothing."""
    saved = json.loads((model / OWN).read_text()) if (model / OWN).exists() else {}
    return {"queries": saved.get("query_prompt", ""), "documents": saved.get("document_prompt", "")}


def fingerprint_of(model: Path) -> str:
    """A digest of what a saved model's tokenizer does to text, and of the prompts before it, so that tokens are never
    read with another's model."""
    import hashlib

    rules = json.loads(tokenizer_file(model).read_text()) | {"prompts": prompts_of(model)}
    rules.pop("truncation", None)
    rules.pop("padding", None)
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]
