"""Pre-train a retriever on pairs made of documents: a sentence is to find the document that it was taken out of (the
inverse cloze task; Lee et al., 2019), or a random crop another one (Izacard et al., 2022)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.objectives.parts.config import ClozeConfig
from sparring.components.objectives.parts.scoring import RetrieverBatch, batch_scores
from sparring.components.objectives.retriever import Retriever
from sparring.components.training.document_objective import DocumentObjective
from sparring.components.training.objective import ObjectiveInputs, Visit, ranking_measures

ENDS = tuple(".!?…。\uff01\uff1f\uff0e؟।")
"""Tokens that end a sentence, in Chinese, Japanese, Arabic and Hindi too: the token store has no texts."""
SHORTEST = 4
"""Tokens of the shortest sentence: what is shorter, as between the dots of an abbreviation, belongs to the one before
it, or at the beginning to the one behind it."""
CROPS = (0.05, 0.5)
"""Shares of a text that the shortest and the longest crop have."""


class ICT(DocumentObjective, Retriever):
    """Inner products of sentences with the documents of the batch, as a retriever's with its queries.

    A sentence is read as a query, and the rest of its document as a document. A document of one sentence keeps it. Of
    two crops the first is read as a query, and the second as a document. Each stands behind the retriever's prompt of
    its side. Documents with the same text as a row's own are not its negatives.
    """

    version = 2
    views = ("batch",)
    blocks = ("batch",)
    measures = ("RR", "accuracy")
    reads = 2.0

    def __init__(self, inputs: ObjectiveInputs, *, cloze: ClozeConfig | None = None) -> None:
        super().__init__(inputs)
        self._config = cloze or ClozeConfig()
        vocabulary = load_tokenizer(inputs.model).get_vocab()
        self._ends = np.asarray([vocabulary[end] for end in ENDS if end in vocabulary], np.int64)

    def collate(self, visits: list[Visit]) -> RetrieverBatch:
        """Collate documents into a batch. A sentence of each is its query."""
        rows = np.asarray([visit.row for visit in visits])
        cut = [self._pair(self.alone(visit.row), visit) for visit in visits]
        queries = Tokens.of([self.prompted(query, "queries") for query, _ in cut])
        documents = Tokens.of([self.prompted(document, "documents") for _, document in cut])
        keys = torch.from_numpy(self._same[rows])
        shape = (len(rows), 1)
        template, limits, all_of = self.store.template, self.model.config, np.arange(len(rows))
        return RetrieverBatch(
            queries=template.texts(queries, all_of, limits.query_tokens),
            documents=template.texts(documents, all_of, limits.document_tokens),
            query_keys=keys,
            document_keys=keys,
            columns=torch.arange(len(rows)).view(shape),
            target=torch.ones(shape),
            where=torch.ones(shape, dtype=torch.bool),
            relevant_keys=keys.view(shape),
            teacher=None,
        )

    def _pair(self, text: np.ndarray, visit: Visit) -> tuple[np.ndarray, np.ndarray]:
        """Return a query, and the document to be retrieved."""
        if self._config.pairs == "crops":
            rng = visit.rng("crops")
            return cropped(text, rng), cropped(text, rng)
        return clozed(text, self._ends, self._config.keep, visit.rng("sentence"))

    def judge(self, representations: tuple[Tensor, Tensor], batch: RetrieverBatch) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among the documents of the batch."""
        return ranking_measures(batch_scores(*representations, batch, by=self.model).rows())


def clozed(text: np.ndarray, ends: np.ndarray, keep: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return a sentence of a text of tokens, and the rest. With the probability `keep`, the rest includes the sentence.
    `ends` are the tokens that end a sentence."""
    cuts = [0]
    for end in (*(np.flatnonzero(np.isin(text[:-1], ends)) + 1).tolist(), len(text)):
        if end - cuts[-1] < SHORTEST and len(cuts) > 1:
            cuts.pop()
        cuts.append(end)
    if len(cuts) > 2 and cuts[1] < SHORTEST:
        del cuts[1]
    chosen = int(rng.integers(len(cuts) - 1))
    start, end = cuts[chosen], cuts[chosen + 1]
    if len(cuts) == 2 or rng.random() < keep:
        return text[start:end], text
    return text[start:end], np.concatenate([text[:start], text[end:]])


def cropped(text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Cut a random span from a text of tokens: 5 to 50 % of it, and at least one token."""
    length = min(len(text), max(1, round(len(text) * rng.uniform(*CROPS))))
    start = int(rng.integers(len(text) - length + 1))
    return text[start : start + length]


Objective = ICT
