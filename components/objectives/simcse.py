"""Train an encoder of sentences on two views of each text, which differ by dropout alone and are to find each other
among those of the batch (SimCSE; Gao et al., 2021)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from components.compute.gather import gather, rank
from components.compute.roofline import MatrixProducts
from components.config import UserError
from components.data.batches import Batch
from components.models.bottleneck import Projector
from components.models.dual_encoder import DualEncoder
from components.objectives.difference import Edits
from components.scores import Scores
from components.training.document_objective import DocumentObjective
from components.training.objective import ObjectiveInputs, Visit
from components.training.pretraining import ProjectorConfig
from components.training.terms import Duplicates, LossTerm, TermSum, evaluate


class ViewsBatch(NamedTuple):
    """Two views of some texts."""

    texts: Batch
    """2N texts: N first views, and then the second ones, which are the same."""
    keys: Tensor
    """(N,) which text each is: texts that say the same share a key."""
    edits: Edits | None = None
    """Edited copies of the 2N texts, where differences are predicted."""


class ViewsRepresentations(NamedTuple):
    """What is known of the views of some texts."""

    vectors: Tensor
    """(2N, h) behind the projector."""
    likelihoods: Tensor | None = None
    """(2N, L) log-probabilities of the discriminator."""


class SimCSE(DocumentObjective):
    """Cosines of each text's first view with the second views of the batch, of all workers.

    The temperature is the loss's: .05 in the paper. A view is the text itself; what differs is dropout, so that a model
    without dropout learns nothing from its positives. The vectors are the retriever's before normalization, behind a
    projector that no export contains: by default `tanh`, as in the paper, which drops it at test time too.
    """

    views: ClassVar[tuple[str, ...]] = ("batch",)

    def __init__(self, inputs: ObjectiveInputs, *, projector: ProjectorConfig | None = None) -> None:
        super().__init__(inputs)
        self.model = DualEncoder.load(inputs.model)
        for key, accepted in {"towers": "shared", "projection": None}.items():
            if (value := getattr(self.model.config, key)) != accepted:
                raise UserError(f"{key}: {value}: one encoder of sentences is trained, without a projection; accepted: "
                                f"{accepted or 'null'}")  # fmt: skip
        self.projector = Projector(self.model.width, (projector or ProjectorConfig(kind="tanh")).kind)
        self._same = np.load(inputs.tokens / "documents.same.npy", mmap_mode="r")
        self._products = MatrixProducts(self.model.tower("document"))

    def collate(self, visits: list[Visit]) -> ViewsBatch:
        """The batch of some texts."""
        texts = self.documents(visits, self.model.max_tokens("document"))
        keys = self._same[np.asarray([visit.row for visit in visits])]
        return ViewsBatch(Batch(texts.ids.repeat(2, 1), texts.mask.repeat(2, 1)), torch.from_numpy(np.array(keys)))

    def operations(self, batch: ViewsBatch) -> float:
        """Of encoding both views."""
        return self._products.operations(batch.texts.mask.sum(-1).numpy())

    def rate(self, *, device: str, precision: str) -> float:
        """Of the encoder's products."""
        return self._products.rate(tokens=self.inputs.max_tokens, device=device, precision=precision)

    def encode(self, batch: ViewsBatch) -> ViewsRepresentations:
        """The vectors of all views."""
        pooled = self.in_chunks(lambda part: self.model.pooled(part, "document"), batch.texts)
        return ViewsRepresentations(self.projector(pooled))

    def terms(self, representations: ViewsRepresentations, batch: ViewsBatch) -> dict[str, TermSum]:
        """The losses over the batch."""
        return evaluate(self.inputs.losses, lambda term: self.scores(representations, batch, term))

    def scores(self, representations: ViewsRepresentations, batch: ViewsBatch, term: LossTerm) -> Scores:
        """What a loss sees."""
        return view_scores(representations.vectors, batch.keys, term.duplicates)


def view_scores(vectors: Tensor, keys: Tensor, duplicates: Duplicates = "mask") -> Scores:
    """(N, all texts) cosines of first views with the second views of all workers, of vectors (2N, d) of N first views
    and then N second ones (Chuang et al., 2022, section 2.3).

    A view's target is its sibling. Texts with the same key (N,) count once, and not at all beside the row's own; where
    duplicates count, each does, as in the released code.
    """
    first, second = functional.normalize(vectors, dim=-1).chunk(2)
    count = len(first)
    everyone, other_keys = gather(second.contiguous(), rows=count), gather(keys, rows=count)
    sibling = rank() * count + torch.arange(count, device=vectors.device)
    target = functional.one_hot(sibling, len(everyone)).to(vectors.dtype)
    where = torch.ones_like(target, dtype=torch.bool)
    if duplicates == "mask":
        earlier = (other_keys.unsqueeze(1) == other_keys).tril(-1).any(1)
        where = ((keys.unsqueeze(1) != other_keys) & ~earlier) | (target > 0)
    return Scores(first @ everyone.T, target, where)


Objective = SimCSE
