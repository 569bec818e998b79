"""Tokens: tokenised once, stored as columns, put together and padded when a model wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from components.config import UserError

if TYPE_CHECKING:
    from torch import Tensor


TOKENIZER = "tokenizer.json"
"""The file in a token store that holds the digest of the tokenizer that made it."""


def document_text(title: str, text: str) -> str:
    """What a model reads of a document: its title, a space, its text."""
    return f"{title} {text}".strip()


class Tokens:
    """Token ids of many texts, without special tokens, memory-mapped: `ids[offsets[i]:offsets[i + 1]]` is text i."""

    def __init__(self, folder: Path, name: str) -> None:
        self.ids = np.load(folder / f"{name}.ids.npy", mmap_mode="r")
        self.offsets = np.load(folder / f"{name}.offsets.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self) -> np.ndarray:
        """Tokens of each text."""
        return np.diff(self.offsets)


class TokenStore:
    """A collection's tokens as one model reads them: queries, documents, and the special tokens around them.

    UserError where the tokens were made with another tokenizer than the model's.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        from components.pretrained import load_tokenizer  # brings in transformers

        made = json.loads((folder / TOKENIZER).read_text())
        if made != fingerprint_of(model):
            raise UserError(
                f"{folder}: these tokens were made with another tokenizer ({made}) than that of {model} "
                f"({fingerprint_of(model)}); tokenise the collection for this model"
            )
        self.template = Template.of(load_tokenizer(model))
        self.queries, self.documents = Tokens(folder, "queries"), Tokens(folder, "documents")


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
    def of(cls, tokenizer: Any) -> Template:
        """Read off how a Hugging Face tokenizer wraps a text and a pair."""
        one = tokenizer("a", return_special_tokens_mask=True)
        two = tokenizer("a", "a", return_special_tokens_mask=True, return_token_type_ids=True)
        single = _runs(one["input_ids"], one["special_tokens_mask"])
        pair = _runs(two["input_ids"], two["special_tokens_mask"])
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

    def single(self, ids: np.ndarray, limit: int) -> list[int]:
        """One text with its special tokens, at most `limit` tokens in all."""
        room = max(0, limit - len(self.before) - len(self.after))
        return [*self.before, *ids[:room].tolist(), *self.after]

    def pair(self, first: np.ndarray, second: np.ndarray, limit: int) -> tuple[list[int], list[int]]:
        """A pair with its special tokens and segment ids; what is too long is cut from the longer of the two."""
        room = max(0, limit - len(self.pair_before) - len(self.pair_between) - len(self.pair_after))
        a, b = longest_first(len(first), len(second), room)
        ids = [*self.pair_before, *first[:a].tolist(), *self.pair_between, *second[:b].tolist(), *self.pair_after]
        types = [self.first_segment] * (len(self.pair_before) + a)
        types += self.between_segments + [self.second_segment] * (b + len(self.pair_after))
        return ids, types


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of each of two texts stays: the longer is cut first, then both alike (Hugging Face's rule)."""
    if first + second <= room:
        return first, second
    short = min(first, second)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return (long, short) if first > second else (short, long)


def _runs(ids: list[int], special: list[int]) -> list[list[int]]:
    """The runs of special tokens around and between the texts."""
    runs: list[list[int]] = [[]]
    for token, is_special in zip(ids, special, strict=True):
        if is_special:
            runs[-1].append(token)
        elif runs[-1] or len(runs) == 1:
            runs.append([])
    return runs


def pad(sequences: list[list[int]], value: int, *, multiple: int = 8) -> tuple[Tensor, Tensor]:
    """`(N, L)` ids and their `(N, L)` mask, L the longest length rounded up."""
    import torch

    longest = max(1, max(map(len, sequences)))
    width = -(-longest // multiple) * multiple
    ids = np.full((len(sequences), width), value, dtype=np.int64)
    mask = np.zeros((len(sequences), width), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


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


def texts(sequences: list[list[int]], template: Template) -> Batch:
    """A batch of single texts."""
    ids, mask = pad(sequences, template.pad)
    return Batch(ids, mask)


def pairs(sequences: list[tuple[list[int], list[int]]], template: Template) -> Batch:
    """A batch of pairs of texts, with segments where the model takes them."""
    ids, mask = pad([ids for ids, _ in sequences], template.pad)
    segments = pad([types for _, types in sequences], 0)[0] if template.segments else None
    return Batch(ids, mask, segments)


def token_batches(lengths: np.ndarray, limit: int) -> list[np.ndarray]:
    """Positions grouped into batches of similar length of at most `limit` tokens each, padding counted.

    Longest first, so that what does not fit in memory fails at once; ties keep their order.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    batches, start = [], 0
    while start < len(order):
        width = -(-max(1, int(lengths[order[start]])) // 8) * 8
        count = max(1, limit // width)
        batches.append(order[start : start + count])
        start += count
    return batches


def tokenizer_file(model: Path) -> Path:
    """Where a saved model's tokenizer is: beside it; of two towers, beside the query's."""
    beside = model / "tokenizer.json"
    return beside if beside.exists() else model / "query" / "tokenizer.json"


def fingerprint_of(model: Path) -> str:
    """A digest of what a saved model's tokenizer does to text, so that tokens are never read with another's model."""
    import hashlib

    rules = json.loads(tokenizer_file(model).read_text())
    rules.pop("truncation", None)
    rules.pop("padding", None)
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]
