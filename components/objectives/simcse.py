"""Train an encoder of sentences on two views of each text, which differ by dropout alone and are to find each other
among those of the batch (SimCSE; Gao et al., 2021), perhaps with masked language modelling."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparring.components.compute.gather import gather, rank
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
    """2N texts: N first views, and then the second ones, which are the same."""
    keys: Tensor
    """(N,) which text each is: texts that say the same share a key."""
    edits: Edits | None = None
    """Edited copies of the N texts, where SimCSE has further examples; or those that a discriminator reads."""
    masked: MaskedBatch | None = None
    """The 2N texts with masked tokens, where these are predicted."""


class ViewsRepresentations(NamedTuple):
    """Vectors and log-probabilities of the views of some texts."""

    vectors: Tensor
    """(2N, h) behind the projector; (3N, h) where edited copies are further examples."""
    likelihoods: Tensor | None = None
    """(2N, L) log-probabilities of the discriminator, or of masked tokens."""


class SimCSE(DocumentObjective):
    """Cosines of each text's first view with the second views of the batch, of all workers.

    The temperature is the loss's: .05 in the paper. A view is the text itself; what differs is dropout, so that a model
    without dropout learns nothing from its positives. The vectors are the retriever's before normalization, behind a
    projector that no export contains: by default `tanh`, as in the paper, which drops it at test time too.

    With `augmentation` an edited copy of each text is a further example (Chuang et al., 2022, section 2.8). `generator`
    is the artifact of a masked language model, which is frozen. `rated` is the token store of a set of rated pairs, by
    which the model is validated; without one it is by the loss over texts.

    Of each text the first `text_tokens` tokens are learnt from; of rated pairs as many are read as the model reads.

    With `masking` the encoder predicts masked tokens of either view too, over the view `masked` (Gao et al., 2021,
    section 6: weight .1, 15 % of the tokens). The head begins anew, or as that of the artifact `language_model`.
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
            raise UserError("generator: simcse edits no texts; accepted: null, or a generator with `augmentation`")
        self._augmentation, self._editing = augmentation, None
        if augmentation is not None:
            vocabulary = self.model.tower("document").config.vocab_size
            self._editing = Editing(
                self, augmentation, self.store.template, tokens=self._limit, vocabulary=vocabulary, generator=generator
            )
            # A sample that lies on the edge between two tokens may be another where products are rounded differently.
            self.self_check = not augmentation.generates
        self._predicting = masking
        if masking is not None:
            self._masking = Masking(masking, inputs.model, self.store.template)
            self.head = language_model_head(self.model.tower("document"), language_model, inputs.model)
        self._same = np.load(inputs.tokens / "documents.same.npy", mmap_mode="r")
        self.products = [MatrixProducts(self.model.tower("document"))]

    def reading(self, rows: Path) -> objective.Objective:
        """Return this objective over other texts. With `rated`, return the evaluation on that set's pairs."""
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
        """Mask tokens of some texts twice, differently for the two views."""

        def draws(purpose: str) -> np.ndarray:
            width = texts.ids.shape[1]
            return np.concatenate([self.draws(visits, f"{purpose}, {nth} view", width) for nth in ("first", "second")])

        drawn = draws("mask")
        masked, _ = self._masking.masks(texts, (drawn, drawn), (rate, rate), rate_of="text")
        vocabulary = self.model.tower("document").config.vocab_size
        ids = self._masking.masked(texts.ids, masked, torch.from_numpy(draws("masked as")), vocabulary)
        return MaskedBatch(ids, texts.mask, texts.ids, masked)

    def operations(self, batch: ViewsBatch) -> float:
        """Count the operations of encoding all views and copies, without the generator and the head."""
        encoded = [batch.texts.mask, *([batch.masked.mask] if batch.masked is not None else [])]
        if self._editing is not None:
            assert batch.edits is not None
            encoded.append(batch.edits.mask)
        return sum(self.products[0].training_operations(mask.sum(-1).numpy()) for mask in encoded)

    def encode(self, batch: ViewsBatch) -> ViewsRepresentations:
        """Compute the vectors of all views, and of edited copies used as examples."""
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
        """Compute (2N, L) log-probabilities of the masked tokens, 0 elsewhere."""
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
        """Return the scores of a loss."""
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
    """Compute (N, all texts) cosines of first views with the second views of all workers, from vectors (2N, d) of N
    first and then N second views (Chuang et al., 2022, section 2.3).

    A view's target is its second view. Texts with the same key (N,) count once, and not at all if the key is the row's.
    With duplicates, each counts, as in the released code. In vectors (3N, d), N edited copies come last. They add as
    many columns, and the row's own copy is a target too, or a negative.
    """
    count = len(keys)
    first, *later = functional.normalize(vectors, dim=-1).split(count)
    everyone, other_keys = [gather(view.contiguous(), rows=count) for view in later], gather(keys, rows=count)
    sibling = rank() * count + torch.arange(count, device=vectors.device)
    target = functional.one_hot(sibling, len(other_keys)).to(vectors.dtype)
    where = torch.ones_like(target, dtype=torch.bool)
    if duplicates == "mask":
        earlier = (other_keys.unsqueeze(1) == other_keys).tril(-1).any(1)
        where = ((keys.unsqueeze(1) != other_keys) & ~earlier) | (target > 0)
    targets = [target, *([target if copies == "positive" else torch.zeros_like(target)] if copies else [])]
    return Scores(first @ torch.cat(everyone).T, torch.cat(targets, 1), where.repeat(1, len(targets)))


Objective = SimCSE
