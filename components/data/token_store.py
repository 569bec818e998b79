"""A token store: an artifact with the token ids of a collection's documents and queries."""

from __future__ import annotations

from pathlib import Path

from sparring.components.config import UserError
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer, tokenizer_digest
from sparring.components.data.tokens import Tokens
from sparring.components.files import read_json

TOKENIZER = "tokenizer.json"
"""The file in a token store that holds the digest of the tokenizer that made it."""


class TokenStore:
    """A collection's tokens as one model reads them: `queries`, `documents`, and the `template` of special tokens.

    UserError if the tokens were made with another tokenizer than the model's.
    """

    def __init__(self, folder: Path, model: Path, *, pairs: bool = True) -> None:
        made, needed = read_json(folder / TOKENIZER), tokenizer_digest(model)
        if made != needed:
            raise UserError(
                f"{folder}: these tokens were made with another tokenizer ({made}) than that of {model} ({needed}); "
                "tokenise the collection for this model"
            )
        self.template = Template.of(load_tokenizer(model), pairs=pairs)
        self.queries, self.documents = Tokens.open(folder, "queries"), Tokens.open(folder, "documents")
