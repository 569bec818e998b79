"""Pre-train a retriever by the inverse cloze task: a sentence is to find the document that it was taken out of (ICT;
Lee et al., 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from components.data.tokenizers import load_tokenizer
from components.data.tokens import Tokens
from components.objectives.retriever import Retriever
from components.objectives.scoring import RetrieverBatch, batch_scores
from components.training.document_objective import DocumentObjective
from components.training.objective import ObjectiveInputs, Visit, ranking_measures
from components.training.pretraining import ClozeConfig

ENDS = (".", "!", "?")
"""Tokens that end a sentence: the token store has no texts."""


class ICT(DocumentObjective, Retriever):
    """Inner products of sentences with the documents of the batch, as a retriever's with its queries.

    A sentence is read as a query, and the rest of its document as a document. A document of one sentence keeps it.
    Documents with the same text as a row's own are not its negatives.
    """

    views = ("batch",)
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs, *, cloze: ClozeConfig | None = None) -> None:
        super().__init__(inputs)
        self._keep = (cloze or ClozeConfig()).keep
        vocabulary = load_tokenizer(inputs.model).get_vocab()
        self._ends = np.asarray([vocabulary[end] for end in ENDS if end in vocabulary], np.int64)

    def collate(self, visits: list[Visit]) -> RetrieverBatch:
        """The batch of some documents, each with a sentence of its own."""
        rows = np.asarray([visit.row for visit in visits])
        cut = [clozed(self.store.documents[v.row], self._ends, self._keep, v.rng("sentence")) for v in visits]
        sentences, rests = (Tokens.of([pair[side] for pair in cut]) for side in range(2))
        keys = torch.from_numpy(self._same[rows])
        one = (len(rows), 1)
        template, limits, all_of = self.store.template, self.model.config, np.arange(len(rows))
        return RetrieverBatch(
            queries=template.texts(sentences, all_of, limits.query_tokens),
            documents=template.texts(rests, all_of, limits.document_tokens),
            query_keys=keys,
            document_keys=keys,
            columns=torch.arange(len(rows)).view(one),
            target=torch.ones(one),
            where=torch.ones(one, dtype=torch.bool),
            relevant_keys=keys.view(one),
            teacher=None,
        )

    def judge(self, representations: tuple[Tensor, Tensor], batch: RetrieverBatch) -> dict[str, Tensor]:
        """`RR` and `accuracy` among the documents of the batch."""
        return ranking_measures(batch_scores(*representations, batch).rows())


def clozed(text: np.ndarray, ends: np.ndarray, keep: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A sentence of a text of tokens, and the rest, which with the probability `keep` still has it. `ends` are the
    tokens that end a sentence."""
    cuts = [0, *(np.flatnonzero(np.isin(text[:-1], ends)) + 1), len(text)]
    chosen = int(rng.integers(len(cuts) - 1))
    start, end = cuts[chosen], cuts[chosen + 1]
    if len(cuts) == 2 or rng.random() < keep:
        return text[start:end], text
    return text[start:end], np.concatenate([text[:start], text[end:]])


Objective = ICT
