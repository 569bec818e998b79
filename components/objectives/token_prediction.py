"""What objectives that predict the tokens of documents have in common: masks, what masked tokens become, and terms."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from components.config import UserError
from components.data.batches import Batch
from components.data.tokenizers import word_starts
from components.data.word_masks import nested_word_masks
from components.scores import Scores
from components.training.document_objective import DocumentObjective
from components.training.objective import ObjectiveInputs, Visit
from components.training.pretraining import MaskConfig
from components.training.terms import LossTerm, TermSum, evaluate


class TokenPrediction(DocumentObjective):
    """Log-probabilities of tokens, by view, under the losses asked for. Masks differ from visit to visit."""

    def __init__(self, inputs: ObjectiveInputs, masking: MaskConfig) -> None:
        super().__init__(inputs)
        self.masking = masking
        self._starts = word_starts(inputs.model) if masking.unit == "words" else None
        if self.store.template.mask is None:
            raise UserError(
                f"{inputs.model}: its tokenizer has no mask token; accepted: models that predict masked ones"
            )

    @abstractmethod
    def predicted(self, batch: Any) -> dict[str, Tensor]:
        """By view, (N, L) where it predicts tokens."""

    def masks(self, visits: list[Visit], texts: Batch, rates: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Two masks (N, L) over some visits' texts, of which the second contains the first. Neither has special tokens
        or padding."""
        ids, width = texts.ids.numpy(), texts.ids.shape[1]
        starts = np.ones_like(ids, bool) if self._starts is None else self._starts[ids]
        drawn = self.draws(visits, "mask", width), self.draws(visits, "further mask", width)
        text, lengths = self.store.template.text_positions(texts), texts.mask.sum(-1)
        first, second = nested_word_masks(starts, text.numpy(), drawn, lengths.numpy(), rates)
        return torch.from_numpy(first), torch.from_numpy(second)

    def masked(self, ids: Tensor, masked: Tensor, draws: Tensor, vocabulary: int) -> Tensor:
        """(N, L) token ids with what masked tokens become, for which each place has a random number in `draws`."""
        template = self.store.template
        assert template.mask is not None
        if self.masking.masked_as == "mask":
            return ids.masked_fill(masked, template.mask)
        other = ((draws - 0.8) / 0.1 * vocabulary).long().clamp(0, vocabulary - 1)
        become = ids.where(draws >= 0.9, other.where(draws >= 0.8, template.mask))
        return become.where(masked, ids)

    def terms(self, representations: Any, batch: Any) -> dict[str, TermSum]:
        """The losses over each view's tokens."""
        return evaluate(self.inputs.losses, lambda term: self.scores(representations, batch, term))

    def scores(self, representations: Any, batch: Any, term: LossTerm) -> Scores:
        """What a loss sees; by default of (N, views, L) log-probabilities."""
        return self.token_scores(representations, batch, term)

    def token_scores(self, likelihoods: Tensor, batch: Any, term: LossTerm) -> Scores:
        """What a loss sees of log-probabilities (N, views, L): a text a row and a token a candidate, or each token as a
        row of its own, so that their mean is over tokens."""
        found, where = likelihoods[:, self.views.index(term.over)], self.predicted(batch)[term.over]
        if self.masking.average == "tokens":
            found, where = found[where].unsqueeze(1), where[where].unsqueeze(1)
        return Scores(student=found, target=where.to(found.dtype), where=where)


def placed(values: Tensor, where: Tensor, width: int) -> Tensor:
    """(N, width) the values (M,) at the M places of `where` (N, L); 0 elsewhere."""
    full = values.new_zeros(len(where), width)
    return full.masked_scatter(functional.pad(where, (0, width - where.shape[1])), values)
