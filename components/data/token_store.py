"""The token store, an artifact with the token ids of a collection's documents and queries."""

from __future__ import annotations

from pathlib import Path

from sparring.components.config import UserError
from sparring.components.data.reading import Template as Reading
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer, tokenizer_digest
from sparring.components.data.tokens import Tokens
from sparring.components.files import read_json

TOKENIZER = "tokenizer.json"
"""File in a token store with the digest of the tokenizer that made the store."""


def store_digest(model: Path, template: Reading | None) -> str:
    """Compute the digest of a store's tokens, from a model's tokenizer and prompts, and a reader's template."""
    return tokenizer_digest(model) + (f" {template}" if template is not None else "")


class TokenStore:
    """A collection's tokens for a model: `queries`, `documents`, and the `template` of special tokens.

    `reading` is the template by which a reader's passages were formatted. Raise UserError if the tokens were not made
    with the model's tokenizer.
    """

    def __init__(self, folder: Path, model: Path, *, pairs: bool = True, reading: Reading | None = None) -> None:
        stored, expected = read_json(folder / TOKENIZER), store_digest(model, reading)
        if stored != expected:
            raise UserError(
                f"{folder}: these tokens were made with a different tokenizer ({stored}) than that of {model} "
                f"({expected}). Tokenise the collection for this model.",
                code="other-tokenizer",
            )
        self.template = Template.of(load_tokenizer(model), pairs=pairs)
        self.queries, self.documents = Tokens.open(folder, "queries"), Tokens.open(folder, "documents")
