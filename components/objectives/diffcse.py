"""Training of a sentence encoder by SimCSE and difference prediction (DiffCSE; Chuang et al., 2022).

Difference prediction: given a text's vector, tell which tokens of an edited copy were changed.
"""

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
    """The objective `SimCSE` with an additional view `discriminator`: log-probabilities of the changes in each copy.

    Each of a text's two views has its own edited copy and its own vector. The discriminator reads the vector after the
    projector, by default the one with BatchNorm. The paper's lambda is the weight of the loss (`DifferenceConfig`). For
    the paper's ablation without contrastive loss, leave out the term over `batch`.

    `generator` is the artifact of a masked language model. It stays frozen.
    """

    views = ("batch", "discriminator")
    scores_of: ClassVar[dict[str, str]] = {"discriminator": "tokens"}
    measures = ("Spearman",)
    reads = 3.0  # two views, plus 1 for the discriminator and the generator together

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
        # Different rounding can turn a sample at the boundary between two tokens into a different token.
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
        """Return the scores of a loss term."""
        if term.over != "discriminator":
            return super().scores(representations, batch, term)
        assert batch.edits is not None
        assert representations.likelihoods is not None
        return self.difference.scores(representations.likelihoods, batch.edits)


Objective = DiffCSE
