"""Properties of a pre-trained model that can be read from its files without loading its weights.

For example the longest text that it reads, the lengths of texts in its tokens, and whether it is a decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from sparring.components.models import hub
from sparring.components.models.configs import Pretrained, locate_model

LIMIT = 512
"""Assumed maximum number of tokens of a model whose folder does not say."""
DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout_rate",
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
)
"""Keys of dropout in Hugging Face configs. BERT and its relatives have two, T5 one, DistilBERT two, Qwen3 and Llama one
(attention only), ModernBERT and GPT-2 three."""
UNKNOWN = ("[UNK]", "<unk>")
_IDEOGRAPHIC = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_LONE_LETTER = re.compile(r"(?<!\w)(\w)(?!\w)")
_CHARACTERS = 20
"""Maximum mean number of characters per token. A text is cut at this many characters per token that a model reads."""


def longest(source: Pretrained) -> int:
    """Read the maximum number of tokens of a pre-trained model from its files. Return 512 if they are unreadable."""
    limits = (
        _json(source, "sentence_bert_config.json").get("max_seq_length"),
        _json(source, "tokenizer_config.json").get("model_max_length"),
        positions(source) or LIMIT,
    )
    return int(min([limit for limit in limits if limit], default=LIMIT))


def positions(source: Pretrained) -> int | None:
    """Return the number of positions of a model.

    Return None if its config does not say, or if the model has no position embeddings, like DeBERTa.
    """
    config = _json(source, "config.json")
    if not config.get("position_biased_input", True):
        return None
    padding = config.get("pad_token_id") or 0
    unused = padding + 1 if "roberta" in config.get("model_type", "") else 0  # positions start after the padding's
    count = config.get("max_position_embeddings")
    return None if count is None else int(count) - unused


def vocabulary(source: Pretrained) -> dict[str, int] | None:
    """Return the ids of a model's tokens, without added tokens. Return None if the tokenizer cannot be read."""
    path = _file(source, "tokenizer.json")
    return _vocabulary(path, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=8)
def _vocabulary(path: Path, _: int) -> dict[str, int]:
    """Read the vocabulary of a file with a modification time. Cached, because a graph reads it once per seed."""
    from tokenizers import Tokenizer

    vocabulary: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False)
    return vocabulary


def kind_of_tokenizer(source: Pretrained) -> str | None:
    """Return the kind of a model's tokenizer, such as WordPiece. Return None if it cannot be read."""
    kind = _json(source, "tokenizer.json").get("model", {}).get("type")
    return None if kind is None else str(kind)


def token_counter(source: Pretrained, prompt: str = "") -> Callable[[list[str]], list[int]] | None:
    """Return a function that counts the tokens of texts, including the prompt before them and special tokens.

    Return None if the tokenizer cannot be read: there is no `tokenizer.json`, or the hub cannot be reached.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(_file(source, "tokenizer.json")))
    except Exception:  # the package raises nothing narrower
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    most = _CHARACTERS * longest(source)

    def count(texts: list[str]) -> list[int]:
        return [len(encoding.ids) for encoding in tokenizer.encode_batch([(prompt + text)[:most] for text in texts])]

    return count


def share_spelled_out(source: Pretrained, texts: Sequence[str]) -> float | None:
    """Return the share of the texts' letters that a model reads as unknown, or letter by letter.

    The share is high if the vocabulary was made from texts in a different script. Chinese characters, Kana and Hangul
    count only if they are unknown, because models for these scripts also read single characters. Return None if the
    tokenizer cannot be read, or if the texts have no letters.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(_file(source, "tokenizer.json")))
    except Exception:  # the package raises nothing narrower
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    letters = spelled = 0
    for text, encoded in zip(texts, tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True):
        letters += sum(map(str.isalpha, text))
        places = set[int]()
        for token, (start, stop) in zip(encoded.tokens, encoded.offsets, strict=True):
            letter_places = [place for place in range(start, stop) if text[place].isalpha()]
            if token in UNKNOWN or (len(letter_places) == 1 and not _IDEOGRAPHIC.match(text[letter_places[0]])):
                places.update(letter_places)
        alone = {match.start(1) for match in _LONE_LETTER.finditer(text)}
        spelled += len(places - alone)
    return spelled / letters if letters else None


def has_token_types(source: Pretrained) -> bool:
    """Return True if a model has token types that mark the two texts of a pair. Return False if it cannot be read."""
    from tokenizers import Tokenizer

    tokenizer = _file(source, "tokenizer.json")
    if _json(source, "config.json").get("type_vocab_size", 0) < 2 or not tokenizer.is_file():
        return False
    return 1 in Tokenizer.from_file(str(tokenizer)).encode("a", "b").type_ids


def is_decoder(source: Pretrained) -> bool:
    """Return True if a model is a decoder without an encoder, such as a causal language model.

    Return False if the model cannot be read.
    """
    from transformers.models.auto import modeling_auto  # heavy

    config = _json(source, "config.json")
    kind = config.get("model_type")
    masked = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not masked


def has_classifier(source: Pretrained) -> bool:
    """Return True if transformers has a sequence classifier made from a model's encoder or decoder.

    Return False for encoder-decoders such as T5, and if the model cannot be read.
    """
    from transformers.models.auto import modeling_auto  # heavy

    kind = _json(source, "config.json").get("model_type")
    both = kind in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return kind in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES and not both


def lacks_dropout(source: Pretrained) -> bool:
    """Return True if all dropout rates of a model's config are 0, as in ModernBERT. Return False if it has none."""
    config = _json(source, "config.json")
    rates = [config[name] for name in DROPOUTS if name in config]
    return bool(rates) and not any(rates)


def can_be_read(source: Pretrained) -> bool:
    """Return True if a model's config is on this machine or on the hub."""
    return _file(source, "config.json").is_file()


def _json(source: Pretrained, name: str) -> dict[str, Any]:
    path = _file(source, name)
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _file(source: Pretrained, name: str) -> Path:
    """Return the path of a model's file, for a hub model in the cache. The path of a missing file does not exist."""
    folder = Path(locate_model(source.model))
    if folder.is_dir():
        return folder / name
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        kept = try_to_load_from_cache(source.model, name, revision=source.revision)
        if kept is not None:  # else the file is not cached
            return Path(kept) if isinstance(kept, str) else folder / name
        hub.go_offline_if_unreachable()
        return Path(hf_hub_download(source.model, name, revision=source.revision))
    except Exception:  # missing or gated model, missing file or revision, invalid name, no network
        return folder / name
