"""Training of a sentence encoder on two views of each text that differ only by dropout (SimCSE; Gao et al., 2021).

The encoder learns to match the two views among all texts of the batch. Masked language modelling can be added.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparring.components.compute.gather import first_row, gather, of_workers
from sparring.components.compute.roofline import MatrixProducts
from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.models.bottleneck import Projector
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives.mlm import MaskedBatch
from sparring.components.objectives.parts.config import (
    AugmentationConfig,
    MaskedLanguageModelingConfig,
    ProjectorConfig,
    not_one_encoder,
)
from sparring.components.objectives.parts.editing import Editing, Edits
from sparring.components.objectives.parts.rated_pairs import RatedPairs
from sparring.components.objectives.parts.replacing import Masking, language_model_head, placed, token_scores
from sparring.components.scores import Scores
from sparring.components.training import objective
from sparring.components.training.document_objective import DocumentObjective
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import Duplicates, LossTerm, TermSum


class ViewsBatch(NamedTuple):
    """Two views of some texts."""

    texts: Batch
    """2N texts: N texts as first views, and the same N as second views."""
    keys: Tensor
    """Key of each text: (N,). Equal texts share a key."""
    edits: Edits | None = None
    """Edited copies, as additional examples of SimCSE or for a discriminator. If None, there are none."""
    masked: MaskedBatch | None = None
    """The 2N texts with masked tokens. If None, no tokens are predicted."""


class ViewsRepresentations(NamedTuple):
    """Vectors and log-probabilities of the views of some texts."""

    vectors: Tensor
    """Vectors after the projector: (2N, h), or (3N, h) if edited copies are additional examples."""
    likelihoods: Tensor | None = None
    """Log-probabilities of the discriminator, or of masked tokens: (2N, L)."""


class SimCSE(DocumentObjective):
    """Cosines of each text's first view with the second views of all workers' batches.

    The temperature belongs to the loss (.05 in the paper). Both views are the text itself and differ only by dropout,
    so a model without dropout learns nothing from its positives. The vectors are the retriever's before normalization,
    passed through a projector. The default projector is the paper's `tanh`. As in the paper, it is used in training
    only, and exports do not contain it.

    `augmentation` adds an edited copy of each text as an example (Chuang et al., 2022, section 2.8). `generator` is the
    artifact of a masked language model, which stays frozen. `rated` is the token store of a set of rated pairs for
    validation. If None, the model is validated by the loss over texts.

    Training reads the first `text_tokens` tokens of each text. Validation on rated pairs reads as many as the model
    accepts.

    With `masking` the encoder also predicts masked tokens of both views, over the view `masked` (Gao et al., 2021,
    section 6: weight .1, 15 % of the tokens). The head is new, or taken from the artifact `language_model`.
    """

    views: ClassVar[tuple[str, ...]] = ("batch", "masked")
    scores_of: ClassVar[dict[str, str]] = {"masked": "tokens"}
    measures: ClassVar[tuple[str, ...]] = ("Spearman",)
    reads: ClassVar[float] = 2.0

    def __init__(
        self,
        inputs: ObjectiveInputs,
        *,
        projector: ProjectorConfig | None = None,
        augmentation: AugmentationConfig | None = None,
        generator: Path | None = None,
        rated: Path | None = None,
        masking: MaskedLanguageModelingConfig | None = None,
        language_model: Path | None = None,
        text_tokens: int | None = None,
    ) -> None:
        super().__init__(inputs)
        self._rated = rated
        self.model = DualEncoder.load(inputs.model)
        if wrong := not_one_encoder(self.model.config):
            raise UserError(wrong)
        self.projector = Projector(self.model.width, (projector or ProjectorConfig(kind="tanh")).kind)
        self._limit = text_tokens or self.model.max_tokens("document")
        if augmentation is None and generator is not None:
            raise UserError(
                "generator: simcse edits texts only with `augmentation`. Set `generator: null`, or add `augmentation`."
            )
        self._augmentation, self._editing = augmentation, None
        if augmentation is not None:
            vocabulary = self.model.tower("document").config.vocab_size
            self._editing = Editing(
                self, augmentation, self.store.template, tokens=self._limit, vocabulary=vocabulary, generator=generator
            )
            # Different rounding can turn a sample at the boundary between two tokens into a different token.
            self.self_check = not augmentation.generates
        self._predicting = masking
        if masking is not None:
            self._masking = Masking(masking, inputs.model, self.store.template)
            self.head = language_model_head(self.model.tower("document"), language_model, inputs.model)
        self._same = np.load(inputs.tokens / "documents.same.npy", mmap_mode="r")
        self.products = [MatrixProducts(self.model.tower("document"))]

    def reading(self, rows: Path) -> objective.Objective:
        """Return this objective over validation texts. With `rated`, return the evaluation on the rated pairs."""
        return super().reading(rows) if self._rated is None else RatedPairs(self, self.model, rows, self._rated)

    def collate(self, visits: list[Visit]) -> ViewsBatch:
        """Collate texts into a batch."""
        texts = self.documents(visits, self._limit)
        keys = torch.from_numpy(np.array(self._same[np.asarray([visit.row for visit in visits])]))
        batch = ViewsBatch(Batch(texts.ids.repeat(2, 1), texts.mask.repeat(2, 1)), keys)
        if self._predicting is not None:
            batch = batch._replace(masked=self._masked(visits, batch.texts, self._predicting.rate))
        if self._editing is None:
            return batch
        edits = self._editing.collate(texts, lambda purpose, width: self.draws(visits, f"{purpose}, copy", width))
        return batch._replace(edits=edits)

    def _masked(self, visits: list[Visit], texts: Batch, rate: float) -> MaskedBatch:
        """Mask tokens of the texts, with different masks for the two views."""

        def draws(purpose: str) -> np.ndarray:
            width = texts.ids.shape[1]
            return np.concatenate([self.draws(visits, f"{purpose}, {nth} view", width) for nth in ("first", "second")])

        drawn = draws("mask")
        masked, _ = self._masking.masks(texts, (drawn, drawn), (rate, rate), rate_of="text")
        vocabulary = self.model.tower("document").config.vocab_size
        ids = self._masking.masked(texts.ids, masked, torch.from_numpy(draws("masked as")), vocabulary)
        return MaskedBatch(ids, texts.mask, texts.ids, masked)

    def operations(self, batch: ViewsBatch) -> float:
        """Count the operations of encoding all views and copies. The generator and the head are not counted."""
        encoded = [batch.texts.mask, *([batch.masked.mask] if batch.masked is not None else [])]
        if self._editing is not None:
            assert batch.edits is not None
            encoded.append(batch.edits.mask)
        return sum(self.products[0].training_operations(mask.sum(-1).numpy()) for mask in encoded)

    def encode(self, batch: ViewsBatch) -> ViewsRepresentations:
        """Compute the vectors of all views, and of edited copies that are examples."""
        texts = [batch.texts]
        if self._editing is not None:
            assert batch.edits is not None
            edits = self._editing.edit(self, batch.edits)
            assert edits.edited is not None
            texts.append(Batch(edits.edited, edits.mask))
        pooled = [self.in_chunks(lambda part: self.model.pooled(part, "document"), version) for version in texts]
        likelihoods = None if batch.masked is None else self._predicted(batch.masked)
        return ViewsRepresentations(self.projector(torch.cat(pooled)), likelihoods)

    def _predicted(self, batch: MaskedBatch) -> Tensor:
        """Compute log-probabilities of the masked tokens: (2N, L), and 0 elsewhere."""
        width = batch.ids.shape[1]

        def found(part: MaskedBatch) -> Tensor:
            encoded = self.model.tower("document")(input_ids=part.ids, attention_mask=part.mask)
            states = encoded.last_hidden_state[part.masked]
            return placed(self.head.log_likelihoods(states, part.wanted[part.masked]), part.masked, width)

        return self.in_chunks(found, batch)

    def terms(self, representations: ViewsRepresentations, batch: ViewsBatch) -> dict[str, TermSum]:
        """Compute the losses over the batch."""
        return self.evaluate(lambda term: self.scores(representations, batch, term))

    def scores(self, representations: ViewsRepresentations, batch: ViewsBatch, term: LossTerm) -> Scores:
        """Return the scores of a loss term."""
        if term.over == "masked":
            assert self._predicting is not None
            assert representations.likelihoods is not None
            assert batch.masked is not None
            return token_scores(representations.likelihoods, batch.masked.masked, self._predicting.average)
        role = self._augmentation.role if self._augmentation is not None else None
        return view_scores(representations.vectors, batch.keys, term.duplicates, copies=role)


def view_scores(
    vectors: Tensor,
    keys: Tensor,
    duplicates: Duplicates = "mask",
    *,
    copies: Literal["positive", "negative"] | None = None,
) -> Scores:
    """Compute cosines of first views with the second views of all workers: (N, all texts).

    `vectors` (2N, d) are N first views followed by N second views (Chuang et al., 2022, section 2.3). The target of a
    first view is its second view. Texts with equal `keys` (N,) count once, and not at all if the key is the row's. With
    `duplicates="count"` all texts count, as in the public code.

    With `copies`, `vectors` (3N, d) end with N edited copies, which add a column each. The row's own copy is a target
    or a negative, as `copies` says.
    """
    count = len(keys)
    first, *later = functional.normalize(vectors, dim=-1).split(count)
    counts = of_workers(count)
    everyone, other_keys = [gather(view.contiguous(), counts) for view in later], gather(keys, counts)
    sibling = first_row(counts) + torch.arange(count, device=vectors.device)
    target = functional.one_hot(sibling, len(other_keys)).to(vectors.dtype)
    where = torch.ones_like(target, dtype=torch.bool)
    if duplicates == "mask":
        earlier = (other_keys.unsqueeze(1) == other_keys).tril(-1).any(1)
        where = ((keys.unsqueeze(1) != other_keys) & ~earlier) | (target > 0)
    targets = [target, *([target if copies == "positive" else torch.zeros_like(target)] if copies else [])]
    return Scores(first @ torch.cat(everyone).T, torch.cat(targets, 1), where.repeat(1, len(targets)))


Objective = SimCSE
