"""Training of a retriever of any kind, over each query's own candidates or over the batches of all workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from sparring.components.compute.gather import workers
from sparring.components.compute.roofline import MatrixProducts
from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.own_documents import never_negatives
from sparring.components.data.token_store import TokenStore
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives.parts.scoring import RetrieverBatch, batch_scores, group_scores
from sparring.components.retrieval import kind
from sparring.components.scores import Scores
from sparring.components.training.group_objective import GroupObjective, PaddedGroups
from sparring.components.training.objective import ObjectiveInputs, Visit, ranking_measures
from sparring.components.training.terms import Duplicates, LossTerm, TermSum


class Retriever(GroupObjective):
    """Scores of queries against their own candidates (`group`), or against all documents of the batch (`batch`)."""

    views: ClassVar[tuple[str, ...]] = ("group", "batch")
    prefixes = ("group", "batch")
    blocks: ClassVar[tuple[str, ...]] = ("batch",)
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs) -> None:
        super().__init__(inputs)
        self.model = kind.load(inputs.model)
        width = self.model.dimensions
        for longest in (max(term.dimensions) for term in inputs.losses if term.dimensions is not None):
            if width is None:
                raise UserError(
                    "losses: dimensions: representations of this kind of retriever cannot be cut. Remove `dimensions`."
                )
            if longest > width:
                raise UserError(
                    f"losses: dimensions: got {longest}, but the retriever's vectors have {width} dimensions. Use at "
                    f"most {width}."
                )
        if isinstance(self.model, DualEncoder):
            sizes = sorted({size for term in inputs.losses for size in term.dimensions or ()})
            self.model.config = self.model.config.model_copy(update={"matryoshka": sizes or None})
        self.products = [MatrixProducts(self.model.tower("document"))]
        self._tokens = TokenStore(inputs.tokens, inputs.model)
        self._same = np.load(inputs.tokens / "documents.same.npy", mmap_mode="r")
        self._same_queries = np.load(inputs.tokens / "queries.same.npy")

    @cached_property
    def _relevant(self) -> dict[int, np.ndarray]:
        return never_negatives(self.inputs.data, self.inputs.tokens)

    def collate(self, visits: list[Visit]) -> RetrieverBatch:
        """Collate groups into a batch."""
        groups = self.groups(visits)
        padded = PaddedGroups(groups)
        keys, first, columns = np.unique(self._same[padded.documents], return_index=True, return_inverse=True)
        documents = padded.documents[first]
        queries = np.asarray([group.query for group in groups])
        limits, template = self.model.config, self._tokens.template
        relevant = [self._same[self._relevant.get(query, _NONE)] for query in queries.tolist()]
        return RetrieverBatch(
            queries=template.texts(self._tokens.queries, queries, limits.query_tokens),
            documents=template.texts(self._tokens.documents, documents, limits.document_tokens),
            query_keys=torch.from_numpy(self._same_queries[queries]),
            document_keys=torch.from_numpy(keys.astype(np.int64)),
            columns=torch.from_numpy(padded.spread(columns, np.int64)),
            target=padded.targets(),
            where=padded.first(columns),
            relevant_keys=torch.from_numpy(_padded(relevant)),
            teacher=padded.teacher(),
        )

    def operations(self, batch: RetrieverBatch) -> float:
        """Count the operations of encoding all queries and documents."""
        lengths = torch.cat([batch.queries.mask.sum(-1), batch.documents.mask.sum(-1)])
        return self.products[0].training_operations(lengths.numpy())

    def encode(self, batch: RetrieverBatch) -> tuple[Tensor, Tensor]:
        """Compute representations of queries (Q, ...) and of distinct documents (U, ...)."""

        def vectors(side: Any, texts: Batch) -> Tensor:
            return self.in_chunks(lambda b: self.model(b, side), texts)

        if workers() == 1:
            return vectors("query", batch.queries), vectors("document", batch.documents)
        # The backward pass runs in reverse order. With several workers the documents' pass, the longest, is its last:
        # meanwhile the workers can exchange the gradients that are complete.
        documents = vectors("document", batch.documents)
        return vectors("query", batch.queries), documents

    def terms(self, representations: Any, batch: Any) -> dict[str, TermSum]:
        """Compute the losses over groups, the batch, or both."""
        return self.evaluate(self.scores(representations, batch))

    def scores(self, representations: Any, batch: Any) -> Callable[[LossTerm], Scores]:
        """Return a function from a loss term to its scores."""

        @cache
        def vectors(prefix: int | None) -> tuple[Tensor, Tensor]:
            queries, documents = representations
            if prefix is None:
                return queries, documents
            return self.model.cut(queries, prefix), self.model.cut(documents, prefix)

        @cache
        def scores(over: str, duplicates: Duplicates, prefix: int | None) -> Scores:
            queries, documents = vectors(prefix)
            if over == "group":
                return group_scores(queries, documents, batch, self.model)
            return batch_scores(queries, documents, batch, duplicates, self.model)

        return lambda term: scores(term.over, term.duplicates, term.prefix)

    def judge(self, representations: tuple[Tensor, Tensor], batch: RetrieverBatch) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among each query's own candidates."""
        return ranking_measures(group_scores(*representations, batch, self.model).rows())


_NONE = np.empty(0, np.int64)


def _padded(lists: list[np.ndarray]) -> np.ndarray:
    """Make lists of keys into rows of an array, padded with -1."""
    padded = np.full((len(lists), max(1, max(map(len, lists)))), -1, np.int64)
    for row, keys in enumerate(lists):
        padded[row, : len(keys)] = keys
    return padded


Objective = Retriever
