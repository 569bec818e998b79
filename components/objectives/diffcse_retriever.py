"""Training of a retriever on groups with difference prediction: DPR with DiffCSE (Chuang, 2024, section 2.7).

Its vectors also learn to tell which tokens of edited queries and documents were changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives.parts.config import DifferenceConfig
from sparring.components.objectives.parts.difference import DifferencePrediction
from sparring.components.objectives.parts.editing import Edits
from sparring.components.objectives.parts.scoring import RetrieverBatch
from sparring.components.objectives.retriever import Retriever
from sparring.components.scores import Scores
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import LossTerm


class EditedGroups(NamedTuple):
    """Some groups, and edited copies of their texts."""

    groups: RetrieverBatch
    queries: Edits
    documents: Edits
    """One text per candidate of each group."""


class EditedRepresentations(NamedTuple):
    """Vectors and discriminator log-probabilities of some groups' texts."""

    vectors: tuple[Tensor, Tensor]
    """Vectors of queries (Q, d) and of documents (U, d)."""
    queries: Tensor
    """Log-probabilities of the discriminator for the queries: (Q, L)."""
    documents: Tensor
    """Log-probabilities of the discriminator for the M candidates: (M, L)."""


class DiffCSERetriever(Retriever):
    """The objective `Retriever` with two additional views, `query discriminator` and `document discriminator`.

    These are log-probabilities of the changes in edited queries and candidates. One discriminator serves both sides. It
    reads the vectors before projection and normalization. The paper has one encoder for both sides. If the towers are
    separate, the discriminator starts from the document tower, and its losses train each tower through the vectors of
    its side. Masks and replacements are drawn per candidate of each group, so they do not depend on the number of
    workers.

    `generator` is the artifact of a masked language model. It stays frozen.
    """

    views = ("group", "batch", "query discriminator", "document discriminator")
    prefixes = ("group", "batch")
    blocks = ("batch",)
    scores_of: ClassVar[dict[str, str]] = {
        "query discriminator": "tokens",
        "document discriminator": "tokens",
    }
    reads = 2.0

    def __init__(
        self,
        inputs: ObjectiveInputs,
        *,
        difference: DifferenceConfig | None = None,
        generator: Path | None = None,
        language_model: Path | None = None,
    ) -> None:
        super().__init__(inputs)
        if not isinstance(self.model, DualEncoder):
            raise UserError(
                "objective: diffcse_retriever trains dense retrievers, but this retriever's kind is "
                f"{self.model.config.kind}. Use `kind: dense`, or the objective retriever."
            )
        difference = difference or DifferenceConfig()
        if difference.edits_of != "same":
            raise UserError(
                f"edits_of: got {difference.edits_of}, but candidates of a group have no next text. Use "
                "`edits_of: same`."
            )
        self.difference = DifferencePrediction(
            self,
            self.model.tower("document"),
            self._tokens.template,
            difference,
            tokens=max(self.model.max_tokens("query"), self.model.max_tokens("document")),
            generator=generator,
            language_model=language_model,
        )
        # Different rounding can turn a sample at the boundary between two tokens into a different token.
        self.self_check = not difference.generates

    def collate(self, visits: list[Visit]) -> Any:
        """Collate groups into a batch, with edited copies of their texts."""
        groups = super().collate(visits)
        row, candidate = groups.where.nonzero(as_tuple=True)
        columns = groups.columns[row, candidate]

        def of_queries(purpose: str, width: int) -> np.ndarray:
            return np.stack([visit.rng(f"query, {purpose}").random(width) for visit in visits])

        def of_documents(purpose: str, width: int) -> np.ndarray:
            places = zip(row.tolist(), candidate.tolist(), strict=True)
            return np.stack([visits[i].rng(f"document {k}, {purpose}").random(width) for i, k in places])

        documents = Batch(groups.documents.ids[columns], groups.documents.mask[columns])
        return EditedGroups(
            groups,
            self.difference.collate(groups.queries, of_queries, torch.arange(len(visits))),
            self.difference.collate(documents, of_documents, columns),
        )

    def operations(self, batch: Any) -> float:
        """Count the operations of encoding all queries and documents, and of the discriminator."""
        edits = [self.difference.operations(side) for side in (batch.queries, batch.documents)]
        return super().operations(batch.groups) + sum(edits)

    def encode(self, batch: Any) -> Any:
        """Compute the vectors, and the discriminator's log-probabilities."""
        groups = batch.groups
        queries = self.in_chunks(lambda part: self.model.pooled(part, "query"), groups.queries)
        documents = self.in_chunks(lambda part: self.model.pooled(part, "document"), groups.documents)
        return EditedRepresentations(
            (self.model.compared(queries, "query"), self.model.compared(documents, "document")),
            self.difference.likelihoods(self, batch.queries, queries),
            self.difference.likelihoods(self, batch.documents, documents),
        )

    def scores(self, representations: Any, batch: Any) -> Callable[[LossTerm], Scores]:
        """Return a function from a loss term to its scores."""
        of_groups = super().scores(representations.vectors, batch.groups)
        edits = {"query discriminator": batch.queries, "document discriminator": batch.documents}
        outputs = {"query discriminator": representations.queries, "document discriminator": representations.documents}

        def seen(term: LossTerm) -> Scores:
            if term.over not in edits:
                return of_groups(term)
            return self.difference.scores(outputs[term.over], edits[term.over])

        return seen

    def judge(self, representations: Any, batch: Any) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among each query's own candidates."""
        return super().judge(representations.vectors, batch.groups)


Objective = DiffCSERetriever
