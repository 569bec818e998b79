"""Base of objectives over the documents of a collection, such as pre-training, which needs no queries."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow.parquet as pq

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokenizers import prompt_tokens
from sparring.components.data.tokens import Tokens
from sparring.components.training.objective import Objective, ObjectiveInputs, Visit


class DocumentObjective(Objective):
    """An objective whose rows are the documents of the collection, read from its token store."""

    table: ClassVar[str] = "documents.parquet"
    texts: ClassVar[tuple[str, ...]] = ("documents",)

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.store = TokenStore(inputs.tokens, inputs.model, pairs=False)
        self.prompts = prompt_tokens(inputs.model)

    def open(self, table: Path) -> None:
        """Open a documents table. Raise ValueError if the tokens belong to a different collection."""
        self._rows = pq.read_metadata(table).num_rows
        tokens = len(Tokens.open(self.inputs.tokens, "documents"))
        if tokens != self._rows:
            raise ValueError(
                f"{table}: there are {self._rows} documents, but {self.inputs.tokens} has the tokens of {tokens}."
            )

    def rows(self) -> int:
        """Return the number of documents."""
        return self._rows

    def documents(self, visits: list[Visit], limit: int) -> Batch:
        """Return the documents of some visits as a batch, cut to `limit` tokens including special tokens."""
        return self.store.template.texts(self.store.documents, np.asarray([visit.row for visit in visits]), limit)

    def alone(self, row: int) -> np.ndarray:
        """Return the tokens of a document without its prompt.

        Raise UserError if the tokenizer joins the end of the prompt with the start of the text.
        """
        text, prompt = self.store.documents[row], self.prompts["documents"]
        if not np.array_equal(text[: len(prompt)], prompt):
            raise UserError(
                "document_prompt: the tokenizer joins the prompt's end and the text's start in one token, so the "
                "prompt cannot be put before a part of a text. Use a prompt that ends in a space."
            )
        return text[len(prompt) :]

    def prompted(self, text: np.ndarray, side: Literal["queries", "documents"]) -> np.ndarray:
        """Put the prompt of a side before the tokens of a text."""
        return np.concatenate([self.prompts[side], text])

    def draws(self, visits: list[Visit], purpose: str, width: int) -> np.ndarray:
        """Draw random numbers from 0 to 1 for the places of each text: (N, width).

        They do not depend on the batch: with a larger width, a row starts with the same numbers.
        """
        return np.stack([visit.rng(purpose).random(width) for visit in visits])
