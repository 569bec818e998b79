"""Pre-training of an encoder on pairs of spans (coCondenser; Gao and Callan, 2022).

The encoder learns to match two spans of a document among all spans of the batch.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sparring.components.compute.gather import first_row, gather, of_workers
from sparring.components.data.batches import Batch
from sparring.components.data.tokens import Tokens
from sparring.components.objectives.parts.config import SpanConfig
from sparring.components.objectives.simlm import BottleneckBatch, Predictions, SimLM
from sparring.components.scores import Scores
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import Duplicates, LossTerm


class CoCondenser(SimLM):
    """The objective `SimLM` on spans, with an additional view `batch`: inner products of the spans' vectors.

    A batch has the first spans of its documents, followed by the second spans. A span's positive is the second span of
    its document. Its negatives are all spans in the batches of all workers, except spans of documents with the same
    text. Each span follows the document prompt. With Condenser's options (`BottleneckConfig`) this is coCondenser. As
    in the paper, vectors are the retriever's before projection and normalization.
    """

    version = 2
    views = ("encoder", "decoder", "generator", "batch")
    scores_of: ClassVar[dict[str, str]] = {
        "encoder": "tokens",
        "decoder": "tokens",
        "generator": "tokens",
    }
    reads = 1.5
    predicts = 2.0

    def __init__(self, inputs: ObjectiveInputs, *, spans: SpanConfig | None = None, **options: Any) -> None:
        super().__init__(inputs, **options)
        self._tokens = (spans or SpanConfig()).tokens
        self._same = np.load(inputs.tokens / "documents.same.npy", mmap_mode="r")

    def collate(self, visits: list[Visit]) -> BottleneckBatch:
        """Collate two spans of each document into a batch."""
        keys = self._same[np.asarray([visit.row for visit in visits])]
        return super().collate(visits)._replace(keys=torch.from_numpy(np.tile(keys, 2)))

    def documents(self, visits: list[Visit], limit: int) -> Batch:
        """Cut two spans from each document. They differ from visit to visit."""
        template = self.store.template
        around = len(template.before) + len(template.after) + len(self.prompts["documents"])
        size = max(1, min(self._tokens, limit - around))
        pairs = [two_spans(self.alone(visit.row), size, visit.rng("spans")) for visit in visits]
        spans = Tokens.of([self.prompted(pair[side], "documents") for side in range(2) for pair in pairs])
        return template.texts(spans, np.arange(len(spans)), limit)

    def draws(self, visits: list[Visit], purpose: str, width: int) -> np.ndarray:
        """Draw separate random numbers for the first and the second spans."""
        sides = [super(CoCondenser, self).draws(visits, f"{purpose}, {side}", width) for side in ("first", "second")]
        return np.concatenate(sides)

    def scores(self, representations: Predictions, batch: BottleneckBatch, term: LossTerm) -> Scores:
        """Return scores over the tokens of a view, or over the spans of the batch."""
        if term.over != "batch":
            return super().scores(representations, batch, term)
        assert batch.keys is not None
        return span_scores(representations.vectors, batch.keys, term.duplicates)


def two_spans(text: np.ndarray, tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose two different spans of a text that is cut into spans of `tokens` tokens.

    A text of fewer than two spans is cut in half.
    """
    size = max(1, min(tokens, -(-len(text) // 2)))
    first, second = rng.permutation(max(2, -(-len(text) // size)))[:2] * size
    return text[first : first + size], text[second : second + size]


def span_scores(vectors: Tensor, keys: Tensor, duplicates: Duplicates = "mask") -> Scores:
    """Compute inner products of this worker's spans with the spans of all workers: (2N, all spans).

    `vectors` (2N, d) are N first spans followed by N second spans. A span's target is the second span of its document.
    The span itself never counts. Spans with the same key (2N,) count only if `duplicates` is `count`.
    """
    count, counts = len(vectors), of_workers(len(vectors))
    if duplicates == "count":
        keys = torch.arange(count, device=vectors.device) % (count // 2) + first_row(counts)
    everyone, other_keys = gather(vectors, counts), gather(keys, counts)
    sibling = first_row(counts) + (torch.arange(count, device=vectors.device) + count // 2) % count
    target = torch.zeros(count, len(everyone), device=vectors.device).scatter_(1, sibling.unsqueeze(1), 1.0)
    return Scores(vectors @ everyone.T, target, where=(keys.unsqueeze(1) != other_keys) | (target > 0))


Objective = CoCondenser
