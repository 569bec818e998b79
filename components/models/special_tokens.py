"""Changes to the special tokens that a tokenizer puts around texts.

The changes are made in the tokenizer itself. The token store, the template of special tokens and every library that
loads an exported model then agree, and no token is added twice or forgotten.
"""

from __future__ import annotations

from typing import Any

from tokenizers.normalizers import Prepend, Sequence
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from sparring.components.config import UserError
from sparring.components.data.template import Template
from sparring.components.models.configs import PAIR


def pad_with_any(tokenizer: Any) -> None:
    """Give a tokenizer without a padding token, such as Llama's or Mistral's, the end-of-text token for padding.

    RepLLaMA's code does the same. The choice has no effect, because padding is masked.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)


def pad_unlike_the_end(tokenizer: Any) -> None:
    """Give a tokenizer another padding token if its pairs end with the present one.

    transformers' classifiers of decoders score the last token that differs from the padding token.
    """
    after = Template.of(tokenizer).pair_after
    if after[-1:] == [tokenizer.pad_token_id]:
        tokens = [tokenizer.bos_token, tokenizer.unk_token, *tokenizer.convert_ids_to_tokens([0, 1])]
        tokenizer.pad_token = next(token for token in tokens if token not in (None, tokenizer.pad_token))


def ended_by(tokenizer: Any, token: str) -> Any:
    """Return the tokenizer with a token after every text. If it adds this token already, return it unchanged."""
    number, current = token_id(tokenizer, token, key="end_token"), Template.of(tokenizer)
    if current.after[-1:] == [number]:
        return tokenizer
    after = [*current.after, number]
    return _with_around(
        tokenizer, current.before, after, (current.pair_before, current.pair_between, [*current.pair_after, number])
    )


def reading_pairs_by(tokenizer: Any, template: str) -> Any:
    """Return the tokenizer with `template` for pairs. Tokens that it puts before every text come before the template.

    The tokens are those of the filled template, except that no token crosses the end of a text. If the tokenizer treats
    a space before a word as part of the word, this also holds for a text after a space in the template.
    """
    current = Template.of(tokenizer)
    before, _, rest = template.partition("{query}")
    between, _, after = rest.partition("{document}")

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def behind_a_word(text: str) -> list[int]:
        word = ids("a")
        joined = ids("a" + text)
        return joined[len(word) :] if joined[: len(word)] == word else ids(text)

    marks_words, spaced = behind_a_word(" a") == ids("a"), before.endswith(" ") and between.endswith(" ")
    if marks_words or spaced:
        before, between = before.removesuffix(" "), between.removesuffix(" ")
    pair = ([*current.before, *ids(before)], behind_a_word(between), behind_a_word(after))
    if spaced and not marks_words:
        backend = tokenizer.backend_tokenizer
        first = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = Sequence([*first, Prepend(" ")])
    return _with_around(tokenizer, current.before, current.after, pair)


def token_id(tokenizer: Any, token: str, *, key: str) -> int:
    """Return the id of a token. If the vocabulary does not have it, raise UserError, which names the config's `key`."""
    number = tokenizer.get_vocab().get(token)
    if number is None:
        parts = tokenizer.convert_ids_to_tokens(tokenizer(token, add_special_tokens=False)["input_ids"])
        raise UserError(
            f"{key}: {token!r} is not a single token of the model's vocabulary, but {' '.join(parts)}. Write a token "
            "in the vocabulary's spelling.",
            code="not-one-token",
        )
    return int(number)


def check_pairs(tokenizer: Any, model: str, limit: int) -> None:
    """Raise UserError if a tokenizer does not separate the texts of a pair, or if `limit` leaves no room for them."""
    current = Template.of(tokenizer)
    if not current.pair_between:
        raise UserError(
            f"template: the tokenizer of {model} puts nothing between the texts of a pair. Set a template such as "
            f"{PAIR!r}."
        )
    special = len(current.pair_before) + len(current.pair_between) + len(current.pair_after)
    if limit < special + 2:
        raise UserError(
            f"pair_tokens: got {limit}, but {special} special tokens are around the texts of a pair. Use at least "
            f"{special + 2}."
        )


def _with_around(
    tokenizer: Any, before: list[int], after: list[int], pair: tuple[list[int], list[int], list[int]]
) -> Any:
    """Return a tokenizer with these tokens before and after a text, and before, between and after a pair.

    The result is a `PreTrainedTokenizerFast`, which uses its file unchanged. Classes of models (Qwen's, Llama's)
    replace parts of the file when they load it.
    """
    runs = {"before": before, "after": after, **dict(zip(("first", "between", "last"), pair, strict=True))}
    special = [
        {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)} for name, ids in runs.items() if ids
    ]

    def rule(*parts: str) -> list[str]:
        return [part for part in parts if part[0] == "$" or runs[part.partition(":")[0]]]

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=rule("before:0", "$A:0", "after:0"),
        pair=rule("first:0", "$A:0", "between:0", "$B:1", "last:1"),
        special_tokens=special,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        model_input_names=tokenizer.model_input_names,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )
