"""Pre-training of a retriever on pairs made from documents alone.

In the inverse cloze task (Lee et al., 2019) a sentence retrieves the document that it was taken from. With crops
(Izacard et al., 2022) a random span retrieves a second random span of its document.
"""

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
"""Tokens that end a sentence, including Chinese, Japanese, Arabic and Hindi marks. The token store has no texts, so
sentences are split by tokens."""
SHORTEST = 4
"""Minimum number of tokens in a sentence. Shorter pieces, such as those between the dots of an abbreviation, join the
previous sentence. At the start of a text they join the next sentence."""
CROPS = (0.05, 0.5)
"""Lengths of the shortest and the longest crop, as shares of the text."""


class ICT(DocumentObjective, Retriever):
    """Inner products of sentences (as queries) with the documents of the batch.

    The sentence is read as a query, and the rest of its document as a document. A document of one sentence keeps the
    sentence. With crops, the first crop is read as a query and the second as a document. Each text follows the
    retriever's prompt for its side. Documents with the same text as the row's document are not its negatives.
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
        """Collate documents into a batch. The query of each is one of its sentences, or a crop."""
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
        """Make a query and the document that it should retrieve."""
        if self._config.pairs == "crops":
            rng = visit.rng("crops")
            return cropped(text, rng), cropped(text, rng)
        return clozed(text, self._ends, self._config.keep, visit.rng("sentence"))

    def judge(self, representations: tuple[Tensor, Tensor], batch: RetrieverBatch) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among the documents of the batch."""
        return ranking_measures(batch_scores(*representations, batch, by=self.model).rows())


def clozed(text: np.ndarray, ends: np.ndarray, keep: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose a sentence of a tokenised text. Return it and the rest of the text.

    With probability `keep`, or if the text has one sentence, the rest includes the sentence. `ends` are the ids of
    tokens that end a sentence.
    """
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
    """Cut a random span from a tokenised text: 5 to 50 % of its tokens, and at least one."""
    length = min(len(text), max(1, round(len(text) * rng.uniform(*CROPS))))
    start = int(rng.integers(len(text) - length + 1))
    return text[start : start + length]


Objective = ICT
