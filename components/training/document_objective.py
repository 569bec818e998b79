"""What objectives over the documents of a collection have in common: pre-training needs no queries."""

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
        """Open a documents table. ValueError if it is of another collection than the tokens."""
        self._rows = pq.read_metadata(table).num_rows
        tokens = len(Tokens.open(self.inputs.tokens, "documents"))
        if tokens != self._rows:
            raise ValueError(f"{table}: {self._rows} documents, and {self.inputs.tokens} has tokens of {tokens}")

    def rows(self) -> int:
        """How many documents there are."""
        return self._rows

    def documents(self, visits: list[Visit], limit: int) -> Batch:
        """The texts of some visits, cut to `limit` tokens in all."""
        return self.store.template.texts(self.store.documents, np.asarray([visit.row for visit in visits]), limit)

    def alone(self, row: int) -> np.ndarray:
        """The tokens of a document without the prompt before it. UserError for a prompt whose end grows together with
        what is behind it."""
        text, prompt = self.store.documents[row], self.prompts["documents"]
        if not np.array_equal(text[: len(prompt)], prompt):
            raise UserError(
                "document_prompt: its end and a text's beginning become one token, and parts of a text "
                "cannot have it; accepted: a prompt that ends in a space"
            )
        return text[len(prompt) :]

    def prompted(self, text: np.ndarray, side: Literal["queries", "documents"]) -> np.ndarray:
        """The tokens of a part of a document behind the prompt of a side."""
        return np.concatenate([self.prompts[side], text])

    def draws(self, visits: list[Visit], purpose: str, width: int) -> np.ndarray:
        """(N, width) random numbers from 0 to 1 for the places of each text: in a wider batch the same, and more."""
        return np.stack([visit.rng(purpose).random(width) for visit in visits])
