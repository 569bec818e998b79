"""Train an encoder of sentences by SimCSE, and by telling what was changed in a text whose vector is known (DiffCSE;
Chuang et al., 2022)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from sparring.components.objectives.parts.config import DifferenceConfig, ProjectorConfig
from sparring.components.objectives.parts.difference import DifferencePrediction
from sparring.components.objectives.simcse import SimCSE, ViewsBatch, ViewsRepresentations
from sparring.components.scores import Scores
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import LossTerm


class DiffCSE(SimCSE):
    """The terms of `SimCSE`, and over the view `discriminator` log-probabilities of what was changed in either view.

    Each view has edits of its own, and its own vector behind the projector, by default the one with BatchNorm. Lambda
    is the weight of the loss (`DifferenceConfig`). Leave the term over `batch` out for the paper's ablation without
    contrastive loss.

    `generator` is the artifact of a masked language model, which is frozen.
    """

    views = ("batch", "discriminator")
    scores_of: ClassVar[dict[str, str]] = {"discriminator": "tokens"}
    measures = ("Spearman",)
    reads = 3.0  # the discriminator and the generator together one

    def __init__(
        self,
        inputs: ObjectiveInputs,
        *,
        projector: ProjectorConfig | None = None,
        difference: DifferenceConfig | None = None,
        generator: Path | None = None,
        language_model: Path | None = None,
        rated: Path | None = None,
        text_tokens: int | None = None,
    ) -> None:
        super().__init__(
            inputs, projector=projector or ProjectorConfig(kind="batchnorm"), rated=rated, text_tokens=text_tokens
        )
        difference = difference or DifferenceConfig()
        self.difference = DifferencePrediction(
            self,
            self.model.tower("document"),
            self.store.template,
            difference,
            tokens=self._limit,
            generator=generator,
            language_model=language_model,
        )
        # A sample that lies on the edge between two tokens may be another where products are rounded differently.
        self.self_check = not difference.generates

    def collate(self, visits: list[Visit]) -> ViewsBatch:
        """Collate texts into a batch."""
        following = [visit._replace(row=(visit.row + 1) % self.rows()) for visit in visits]
        read = {"same": [visits], "next": [following], "both": [visits, following]}[self.difference.config.edits_of]

        def draws(purpose: str, width: int) -> np.ndarray:
            views = [f"{purpose}, {view} view" for view in ("first", "second")]
            return np.concatenate([self.draws(texts, view, width) for texts in read for view in views])

        texts = self.documents([visit for texts in read for _ in range(2) for visit in texts], self._limit)
        batch = super().collate(visits)
        vector = torch.arange(len(batch.texts.ids)).repeat(len(read))
        return batch._replace(edits=self.difference.collate(texts, draws, vector))

    def operations(self, batch: ViewsBatch) -> float:
        """Count the operations of encoding both views, and of the discriminator."""
        assert batch.edits is not None
        return super().operations(batch) + self.difference.operations(batch.edits)

    def encode(self, batch: ViewsBatch) -> ViewsRepresentations:
        """Compute the vectors of all views, and the discriminator's log-probabilities."""
        assert batch.edits is not None
        vectors = super().encode(batch).vectors
        return ViewsRepresentations(vectors, self.difference.likelihoods(self, batch.edits, vectors))

    def scores(self, representations: ViewsRepresentations, batch: ViewsBatch, term: LossTerm) -> Scores:
        """Return the scores of a loss."""
        if term.over != "discriminator":
            return super().scores(representations, batch, term)
        assert batch.edits is not None
        assert representations.likelihoods is not None
        return self.difference.scores(representations.likelihoods, batch.edits)


Objective = DiffCSE
