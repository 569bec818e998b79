"""The tokenizer of a saved model: its file, the prompts before each text, and a digest of both."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components.config import Damaged, UserError
from sparring.components.files import naming_damage, read_json

MODEL_CONFIG = "sparring.json"
"""The file in a saved model's folder that holds the config the model was made with."""

TOKEN_LIMITS = ("query_tokens", "document_tokens", "pair_tokens", "passage_tokens")
"""The keys of models' configs that say how many tokens are read."""


def tokenizer_file(model: Path) -> Path:
    """Return the `tokenizer.json` of a saved model, for a model with two towers the query tower's."""
    path = model / "tokenizer.json"
    return path if path.exists() else model / "query" / "tokenizer.json"


def load_tokenizer(model: Path) -> Any:
    """Load the Hugging Face tokenizer of a saved model, for a model with two towers the query tower's."""
    import transformers  # heavy

    transformers.utils.logging.set_verbosity_error()
    file = tokenizer_file(model)
    if not file.is_file():
        raise Damaged(f"{model}: no {file.name}", model)
    with naming_damage(file.parent):
        return transformers.AutoTokenizer.from_pretrained(str(file.parent))


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face tokenizer, without what transformers notes of where and how this process loaded it: that is
    another thing offline than online, and says nothing of the tokenizer."""
    for note in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(note, None)
    tokenizer.save_pretrained(str(folder))


def prompts_of(model: Path) -> dict[str, str]:
    """Return the texts that a saved retriever puts before each query and each document, empty for other models."""
    saved = _config_of(model)
    return {"queries": saved.get("query_prompt", ""), "documents": saved.get("document_prompt", "")}


def prompt_tokens(model: Path) -> dict[str, np.ndarray]:
    """Tokenize the texts of `prompts_of`, as they stand before a text."""
    prompts = {side: prompt.rstrip() for side, prompt in prompts_of(model).items()}
    tokenizer = load_tokenizer(model) if any(prompts.values()) else None
    ids = {
        side: tokenizer(prompt, add_special_tokens=False)["input_ids"] if tokenizer is not None else []
        for side, prompt in prompts.items()
    }
    return {side: np.asarray(tokens, np.int32) for side, tokens in ids.items()}


def lengths_of(model: Path) -> dict[str, int]:
    """Return the most tokens that a saved model reads, by the keys of its config."""
    saved = _config_of(model)
    return {key: saved[key] for key in TOKEN_LIMITS if key in saved}


def _config_of(model: Path) -> dict[str, Any]:
    return read_json(model / MODEL_CONFIG) if (model / MODEL_CONFIG).exists() else {}


def tokenizer_digest(model: Path) -> str:
    """Hash a saved model's tokenizer and prompts. Models with the same digest can read the same token store."""
    rules = read_json(tokenizer_file(model)) | {"prompts": prompts_of(model)}
    rules.pop("truncation", None)
    rules.pop("padding", None)
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]


def word_starts(model: Path) -> np.ndarray:
    """Return which tokens (V,) of a saved model's vocabulary begin a word: all of WordPiece's but its continuations
    (`##ing`).

    UserError for a tokenizer of another kind, whose vocabulary does not say so.
    """
    tokenizer = read_json(tokenizer_file(model))
    pieces = tokenizer["model"]
    if pieces.get("type") != "WordPiece":
        raise UserError(
            f"{model}: where words begin is known of WordPiece tokenizers alone, and this is {pieces.get('type')}; "
            "accepted: `unit: tokens`, which masks each token by itself"
        )
    vocabulary = pieces["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    starts = np.ones(max(vocabulary.values()) + 1, bool)
    prefix = pieces["continuing_subword_prefix"]
    starts[[number for token, number in vocabulary.items() if token.startswith(prefix) and token != prefix]] = False
    return starts
