"""The tokenizer of a saved model, its prompts, and a digest of both."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components.config import Damaged, UserError
from sparring.components.files import naming_damage, read_json

MODEL_CONFIG = "sparring.json"
"""File in a saved model's folder with the config of the model."""

TOKEN_LIMITS = ("query_tokens", "document_tokens", "pair_tokens", "passage_tokens")
"""Keys of model configs that limit the number of tokens read."""


def tokenizer_file(model: Path) -> Path:
    """Return the path of a saved model's `tokenizer.json`. With two towers, it is in the query tower's folder."""
    path = model / "tokenizer.json"
    return path if path.exists() else model / "query" / "tokenizer.json"


def load_tokenizer(model: Path) -> Any:
    """Load the Hugging Face tokenizer of a saved model. For a model with two towers, it is the query tower's."""
    import transformers  # heavy

    transformers.utils.logging.set_verbosity_error()
    file = tokenizer_file(model)
    if not file.is_file():
        raise Damaged(f"{model}: there is no {file.name}", model)
    with naming_damage(file.parent):
        return transformers.AutoTokenizer.from_pretrained(str(file.parent))


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face tokenizer, without the notes of transformers on how this process loaded it.

    The notes differ between offline and online runs, and would change the file.
    """
    for note in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(note, None)
    tokenizer.save_pretrained(str(folder))


def prompts_of(model: Path) -> dict[str, str]:
    """Return the prompts that a saved retriever puts before queries and documents. They are "" for models without."""
    saved = _config_of(model)
    return {"queries": saved.get("query_prompt", ""), "documents": saved.get("document_prompt", "")}


def prompt_tokens(model: Path) -> dict[str, np.ndarray]:
    """Tokenize the prompts of `prompts_of`, without trailing white space."""
    prompts = {side: prompt.rstrip() for side, prompt in prompts_of(model).items()}
    tokenizer = load_tokenizer(model) if any(prompts.values()) else None
    ids = {
        side: tokenizer(prompt, add_special_tokens=False)["input_ids"] if tokenizer is not None else []
        for side, prompt in prompts.items()
    }
    return {side: np.asarray(tokens, np.int32) for side, tokens in ids.items()}


def lengths_of(model: Path) -> dict[str, int]:
    """Return the token limits of a saved model, by the keys of its config."""
    saved = _config_of(model)
    return {key: saved[key] for key in TOKEN_LIMITS if key in saved}


def _config_of(model: Path) -> dict[str, Any]:
    return read_json(model / MODEL_CONFIG) if (model / MODEL_CONFIG).exists() else {}


def tokenizer_digest(model: Path) -> str:
    """Compute the digest of a model's tokenizer and prompts. Models with equal digests share token stores."""
    rules = read_json(tokenizer_file(model)) | {"prompts": prompts_of(model)}
    rules.pop("truncation", None)
    rules.pop("padding", None)
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()[:16]


def word_starts(model: Path) -> np.ndarray:
    """Mark the tokens of a model's vocabulary that begin a word: (V,). In WordPiece, `##ing` continues a word.

    Raise UserError for other kinds of tokenizers, because their vocabularies do not mark words.
    """
    tokenizer = read_json(tokenizer_file(model))
    pieces = tokenizer["model"]
    if pieces.get("type") != "WordPiece":
        raise UserError(
            f"{model}: `unit: words` needs a WordPiece tokenizer, but this one is {pieces.get('type')}. Use `unit: "
            "tokens`, which masks each token by itself."
        )
    vocabulary = pieces["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    starts = np.ones(max(vocabulary.values()) + 1, bool)
    prefix = pieces["continuing_subword_prefix"]
    starts[[number for token, number in vocabulary.items() if token.startswith(prefix) and token != prefix]] = False
    return starts
