"""A template puts tokens together as the tokenizers themselves do."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.components.data.batches import Batch
from sparring.components.data.template import Template, longest_first
from sparring.components.data.tokens import Tokens
from tests.support import toy

TOKENIZERS = {"bert": toy.bert_tokenizer(), "roberta": toy.roberta_tokenizer()}


TEMPLATES = {name: Template.of(tokenizer) for name, tokenizer in TOKENIZERS.items()}


KIND = pytest.mark.parametrize("kind", list(TOKENIZERS))


TEXT = st.text(alphabet=string.ascii_lowercase + " .7", max_size=40)


def tokens_of(kind: str, *texts: str) -> Tokens:
    """Ids without special tokens, as the token store holds them."""
    return Tokens.of(TOKENIZERS[kind](text, add_special_tokens=False)["input_ids"] for text in texts)


def unpadded(values: torch.Tensor, batch: Batch) -> list[list[int]]:
    """Each row as far as its mask holds."""
    return [row[mask.bool()].tolist() for row, mask in zip(values, batch.mask, strict=True)]


@KIND
@given(texts=st.lists(TEXT, min_size=1, max_size=4), limit=st.integers(3, 50))
@settings(max_examples=60, deadline=None)
def test_texts_are_wrapped_and_cut_as_the_tokenizer_does(kind: str, texts: list[str], limit: int) -> None:
    wanted = TOKENIZERS[kind](texts, truncation=True, max_length=limit)["input_ids"]
    rows = np.arange(len(texts))[::-1]
    tokens, template = tokens_of(kind, *texts), TEMPLATES[kind]
    batch = template.texts(tokens, rows, limit)
    assert unpadded(batch.ids, batch) == wanted[::-1]
    assert template.lengths(tokens, rows, limit).tolist() == [len(ids) for ids in wanted[::-1]]
    assert batch.segments is None


@KIND
@given(written=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4), limit=st.integers(6, 60))
@settings(max_examples=120, deadline=None)
def test_pairs_are_wrapped_and_cut_as_the_tokenizer_does(kind: str, written: list[Any], limit: int) -> None:
    """With the segments, and longest first: which end is cut by how much."""
    firsts, seconds = (list(side) for side in zip(*written, strict=True))
    wanted = TOKENIZERS[kind](firsts, seconds, truncation="longest_first", max_length=limit, return_token_type_ids=True)
    sides, rows = (tokens_of(kind, *firsts), tokens_of(kind, *seconds)), np.arange(len(written))[:, None].repeat(2, 1)
    batch = TEMPLATES[kind].pairs(*sides, rows, limit)
    assert unpadded(batch.ids, batch) == wanted["input_ids"]
    assert TEMPLATES[kind].pair_lengths(*sides, rows, limit).tolist() == [len(ids) for ids in wanted["input_ids"]]
    if batch.segments is not None:
        assert unpadded(batch.segments, batch) == wanted["token_type_ids"]
    assert (batch.segments is not None) == TEMPLATES[kind].segments


@given(first=st.integers(0, 60), second=st.integers(0, 60), room=st.integers(0, 60))
def test_what_stays_of_a_pair_fits_and_wastes_no_room(first: int, second: int, room: int) -> None:
    a, b = (int(kept) for kept in longest_first(np.asarray(first), np.asarray(second), room))
    assert 0 <= a <= first
    assert 0 <= b <= second
    assert a + b == min(first + second, room)


@pytest.mark.parametrize("limit", [9, 12, 64])
def test_several_texts_are_ended_each_and_cut_at_the_end(limit: int) -> None:
    """`[CLS] a [SEP] b [SEP] c [SEP]` by hand, all of one segment."""
    tokens = Tokens.of([[10, 11], [20, 21, 22], [], [40, 41, 42, 43, 44, 45]])
    rows = np.array([[0, 1, 3], [2, 0, 1]])
    template = TEMPLATES["bert"]
    batch = template.sequences(tokens, rows, limit)
    (cls,), (sep,) = template.before, template.after
    room = limit - 4
    for row, ids in zip(rows.tolist(), unpadded(batch.ids, batch), strict=True):
        budget, wanted = room, [cls]
        for text in row:
            kept = tokens[text][: max(0, budget)].tolist()
            budget -= len(kept)
            wanted += [*kept, sep]
        assert ids == wanted
    assert template.sequence_lengths(tokens, rows, limit).tolist() == batch.mask.sum(1).tolist()
    assert int(batch.mask.sum(1).max()) <= limit
    assert batch.segments is None


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [
        (3, 4, 10, (3, 4)),
        (3, 20, 10, (3, 7)),
        (20, 3, 10, (7, 3)),
        (9, 9, 10, (5, 5)),
        (20, 9, 11, (6, 5)),
        (9, 20, 11, (5, 6)),
    ],
)
def test_the_longer_of_a_pair_is_cut_first(first: int, second: int, room: int, kept: tuple[int, int]) -> None:
    assert longest_first(np.asarray(first), np.asarray(second), room) == kept


def test_templates_of_two_families() -> None:
    bert, roberta = TEMPLATES["bert"], TEMPLATES["roberta"]
    cls, sep = TOKENIZERS["bert"].cls_token_id, TOKENIZERS["bert"].sep_token_id
    assert (bert.before, bert.after, bert.pair_between) == ([cls], [sep], [sep])
    assert (bert.first_segment, bert.between_segments, bert.second_segment, bert.segments) == (0, [0], 1, True)
    assert (roberta.before, roberta.after, roberta.pair_between) == ([0], [2], [2, 2])
    assert (roberta.pad, roberta.segments) == (1, False)
    assert roberta.second_segment == 0


def test_a_tokenizer_whose_single_letter_falls_to_pieces_has_the_same_template() -> None:
    """Some put a piece of their own before each word."""

    def piecewise(first: str, second: str | None = None, **_: Any) -> dict[str, list[int]]:
        ids = [101, 7, 8, 102] + ([7, 8, 102] if second is not None else [])
        types = [0, 0, 0, 0] + ([1, 1, 1] if second is not None else [])
        return {"input_ids": ids, "special_tokens_mask": [int(i > 100) for i in ids], "token_type_ids": types}

    piecewise.pad_token_id, piecewise.mask_token_id = 0, None  # type: ignore[attr-defined]
    piecewise.model_input_names = ["input_ids", "token_type_ids"]  # type: ignore[attr-defined]
    template = Template.of(piecewise)
    assert (template.before, template.after) == ([101], [102])
    batch = template.pairs(Tokens.of([[5, 6]]), Tokens.of([[7]]), np.array([[0, 0]]), 10)
    assert batch.segments is not None
    assert unpadded(batch.ids, batch) == [[101, 5, 6, 102, 7, 102]]
    assert unpadded(batch.segments, batch) == [[0, 0, 0, 0, 1, 1]]


def test_a_tokenizer_that_reads_no_pairs_is_refused() -> None:
    def alone(*_: str, **__: Any) -> dict[str, list[int]]:
        return {"input_ids": [7], "special_tokens_mask": [0], "token_type_ids": [0]}

    with pytest.raises(ValueError, match="must put special tokens only before, between"):
        Template.of(alone)


def test_padding_keeps_every_token_and_masks_the_rest() -> None:
    bare = TEMPLATES["bert"]._replace(before=[], after=[], pad=99)
    tokens = Tokens.of([[5, 6, 7], [], [1] * 9, [1] * 8])
    batch = bare.texts(tokens, np.array([0, 1, 2]), 20)
    assert batch.ids.shape == batch.mask.shape == (3, 16)
    assert batch.ids[0].tolist() == [5, 6, 7] + [99] * 13
    assert batch.mask.sum(-1).tolist() == [3, 0, 9]
    assert bare.texts(tokens, np.array([3]), 20).ids.shape == (1, 8)
    assert bare.texts(tokens, np.array([1]), 20).ids.shape == (1, 8)


def test_a_pair_is_padded_with_the_models_own_token_and_no_segment() -> None:
    for kind in TEMPLATES:
        batch = TEMPLATES[kind].pairs(*[Tokens.of([[7]])] * 2, np.array([[0, 0]]), 30)
        assert batch.ids[0, -1] == TOKENIZERS[kind].pad_token_id
        assert batch.segments is None or batch.segments[0, -1] == 0


def test_a_tokenizer_without_special_tokens() -> None:
    """GPT-2's has nothing before or after a text, nor between those of a pair."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import GPT2Tokenizer

    vocab = {piece: i for i, piece in enumerate(["<|endoftext|>", *sorted(ByteLevel.alphabet())])}
    template = Template.of(GPT2Tokenizer(vocab=vocab, merges=[]), pairs=False)
    assert (template.before, template.after, template.mask) == ([], [], None)
    assert template.texts(Tokens.of([[5, 6]]), np.array([0]), 8).ids[0, :2].tolist() == [5, 6]
    template = Template.of(GPT2Tokenizer(vocab=vocab, merges=[]))
    assert (template.pair_before, template.pair_between, template.pair_after) == ([], [], [])
    pair = template.pairs(Tokens.of([[5, 6]]), Tokens.of([[7]]), np.array([[0, 0]]), 8)
    assert unpadded(pair.ids, pair) == [[5, 6, 7]]


@KIND
def test_texts_are_batched_from_arrays_of_token_ids(kind: str) -> None:
    """As a crop or a masked text is: ids that stand in no token store."""
    template = TEMPLATES[kind]
    tokens = Tokens.of([np.array([11, 12, 13], np.uint16), np.array([14], np.uint16)])
    batch = template.texts(tokens, np.array([1, 0]), 12)
    rows = [[*template.before, 14, *template.after], [*template.before, 11, 12, 13, *template.after]]
    assert unpadded(batch.ids, batch) == rows


@KIND
@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4), limit=st.integers(2, 16))
@settings(max_examples=40, deadline=None)
def test_text_positions_are_neither_special_nor_padding(kind: str, lengths: list[int], limit: int) -> None:
    """Every token of the texts that were kept, in order, and nothing else; even one whose id is a special token's."""
    template = TEMPLATES[kind]
    ids = iter(range(100, 1000))
    texts = [[next(ids) for _ in range(length)] for length in lengths]
    if texts[0]:
        texts[0][0] = template.after[0]
    batch = template.texts(Tokens.of(texts), np.arange(len(texts)), limit)
    positions = template.text_positions(batch)
    assert positions.shape == batch.ids.shape
    kept = [row[mask].tolist() for row, mask in zip(batch.ids, positions, strict=True)]
    assert kept == [text[: max(0, limit - 2)] for text in texts]


def test_a_template_knows_the_mask_token_if_there_is_one() -> None:
    assert [TEMPLATES[kind].mask for kind in TOKENIZERS] == [TOKENIZERS[kind].mask_token_id for kind in TOKENIZERS]
    assert TEMPLATES["bert"].mask is not None
