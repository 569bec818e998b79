"""Base of objectives that predict tokens of documents."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from sparring.components.data.batches import Batch
from sparring.components.objectives.parts.config import TokenPredictionConfig
from sparring.components.objectives.parts.replacing import Masking, token_scores
from sparring.components.scores import Scores
from sparring.components.training.document_objective import DocumentObjective
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import LossTerm, TermSum


class TokenPrediction(DocumentObjective):
    """Log-probabilities of tokens, by view. Masks differ from visit to visit."""

    def __init__(self, inputs: ObjectiveInputs, masking: TokenPredictionConfig) -> None:
        super().__init__(inputs)
        self.masking = Masking(masking, inputs.model, self.store.template)
        self._average = masking.average

    @abstractmethod
    def predicted(self, batch: Any) -> dict[str, Tensor]:
        """Return the mask of predicted tokens (N, L), by view."""

    def masks(self, visits: list[Visit], texts: Batch, rates: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Draw two masks (N, L) over the visits' texts. The second contains the first."""
        width = texts.ids.shape[1]
        drawn = self.draws(visits, "mask", width), self.draws(visits, "further mask", width)
        return self.masking.masks(texts, drawn, rates)

    def terms(self, representations: Any, batch: Any) -> dict[str, TermSum]:
        """Compute the losses over each view's tokens."""
        return self.evaluate(lambda term: self.scores(representations, batch, term))

    def scores(self, representations: Any, batch: Any, term: LossTerm) -> Scores:
        """Return the scores of a loss term, by default from log-probabilities (N, views, L)."""
        return self.token_scores(representations, batch, term)

    def token_scores(self, likelihoods: Tensor, batch: Any, term: LossTerm) -> Scores:
        """Return a view's scores from log-probabilities (N, views, L)."""
        view = likelihoods[:, self.views.index(term.over)]
        return token_scores(view, self.predicted(batch)[term.over], self._average)
