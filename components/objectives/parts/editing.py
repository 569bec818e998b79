"""Edited copies of texts: tokens that a generator replaces or inserts, and tokens that are taken out (DiffCSE; Chuang
et al., 2022, sections 2.3 and 2.5.4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.data.batches import Batch, padded_width
from sparring.components.data.template import Template
from sparring.components.objectives.parts.config import Edit, EditConfig
from sparring.components.objectives.parts.replacing import GENERATOR, Masking, load_generator
from sparring.components.training.objective import Objective

Draws = Callable[[str, int], np.ndarray]
"""From a purpose and a width, (N, width) random numbers from 0 to 1 for the places of each text."""


class Edits(NamedTuple):
    """Edited copies of N texts. Everything is at the places of the copies, of which the longest has L tokens."""

    ids: Tensor
    """(N, L) the token that each was before; the mask token where one is inserted."""
    mask: Tensor
    """(N, L) 1 where something is read or predicted."""
    attention: Tensor
    """(N, L) 1 for a token, 0 for padding."""
    text: Tensor
    """(N, L) False for special tokens and padding."""
    masked: Tensor
    """(N, L) tokens that are masked to be replaced."""
    marked: Tensor
    """(N, L) inserted tokens, and those before which one was taken out."""
    replaceable: Tensor
    """(N, L) places where the generator chooses a token."""
    read: Tensor
    """(N, L) what the generator reads."""
    draws: Tensor
    """(N, L) a random number for what the generator puts at each place."""
    edited: Tensor | None = None
    """(N, L) the copies; None until the generator has been asked."""
    vector: Tensor | None = None
    """(N,) which vector a discriminator reads each behind."""

    @property
    def changed(self) -> Tensor:
        """(N, L) whether a token is another than before, inserted, or follows one that was taken out."""
        assert self.edited is not None
        return self.marked | (self.edited != self.ids)


class Editing:
    """Makes edited copies of texts of at most `tokens` tokens. Special tokens and padding stay as they are, but for
    `replaced_by: argmax`; a copy has at most `tokens` tokens too.

    The generator is frozen, and kept with the frozen models of `owner`.
    """

    def __init__(
        self,
        owner: Objective,
        config: EditConfig,
        template: Template,
        *,
        tokens: int,
        vocabulary: int,
        generator: Path | None,
    ) -> None:
        if generator is None and config.generates:
            raise UserError(
                "generator: null: these edits need one; accepted: a masked language model", code="missing-model"
            )
        if generator is not None and not config.generates:
            raise UserError("generator: `task: masked` and `edits: [delete]` have none; accepted: null")
        self.config, self.template = config, template
        self._tokens, self._vocabulary = tokens, vocabulary
        self._masking = Masking(config, owner.inputs.model, template)
        if generator is not None:
            owner.add_frozen(GENERATOR, load_generator(generator, owner.inputs.model, tokens))

    def collate(self, texts: Batch, draws: Draws) -> Edits:
        """Draw the edits of texts, and apply all but the generator's."""
        start, end = len(self.template.before), len(self.template.after)
        text = self.template.text_positions(texts)
        kinds = self._kinds(draws)
        deletions, insertions = self._counts(text.sum(-1), kinds)
        deleted = lowest(draws("delete", text.shape[1]), text, deletions)
        # A text that gets too long loses tokens at its end.
        allowed = self._tokens - end - insertions.unsqueeze(1)
        kept = texts.mask.bool() & ~deleted & ~(text & (torch.arange(text.shape[1]) >= allowed))

        lengths = (kept.sum(-1) + insertions).unsqueeze(1)
        place = torch.arange(padded_width(int(lengths.max())))
        attention, within = place < lengths, (place >= start) & (place < lengths - end)
        inserted = lowest(draws("insert", len(place)), within, insertions)

        def moved(values: Tensor, elsewhere: int) -> Tensor:
            """Spread (N, L) values of the kept tokens, in order, around the inserted tokens."""
            spread = torch.full(attention.shape, elsewhere, dtype=values.dtype)
            spread[attention & ~inserted] = values[kept]
            return spread

        assert self.template.mask is not None
        ids = moved(texts.ids, self.template.pad).masked_fill(inserted, self.template.mask)
        replaced = kinds.get("replace", torch.zeros(len(text), dtype=torch.bool)).unsqueeze(1)
        masked = moved(self._masked(texts, draws) & replaced, 0) if "replace" in kinds else torch.zeros_like(inserted)
        become, drawn = (torch.from_numpy(draws(purpose, len(place))) for purpose in ("masked as", "replaced by"))
        read = self._masking.masked(ids, masked, become, self._vocabulary)
        everywhere = self.config.replaced_by == "argmax"
        return Edits(
            ids,
            attention.long(),
            attention.long(),
            within,
            masked,
            marked=moved(functional.pad(deleted, (1, 0))[:, :-1], 0) | inserted,
            replaceable=(attention & (place > 0) & replaced if everywhere else masked) | inserted,
            read=read,
            draws=drawn,
            edited=None if self.config.generates else read,
        )

    def edit(self, owner: Objective, edits: Edits) -> Edits:
        """Return the texts with the generator's replacements."""
        if edits.edited is not None:
            return edits
        generator, width = owner.frozen(GENERATOR), edits.ids.shape[1]
        generator.train(owner.training and self.config.generator_dropout)

        def edited(part: Edits) -> Tensor:
            if self.config.replaced_by == "samples":
                replacements = generator.sampled(part.read, part.attention, part.replaceable, part.draws)
            else:
                replacements = generator.best(part.read, part.attention, part.replaceable)
            return functional.pad(replacements, (0, width - replacements.shape[1]), value=self.template.pad)

        with torch.no_grad():
            return edits._replace(edited=owner.in_chunks(edited, edits))

    def _kinds(self, draws: Draws) -> dict[Edit, Tensor]:
        """Choose the edited texts of each kind of edit: (N,)."""
        kinds = self.config.edits
        drawn = torch.from_numpy(draws("kind", 1)[:, 0] * len(kinds)).long()
        return {kind: drawn == number for number, kind in enumerate(kinds)}

    def _counts(self, lengths: Tensor, kinds: dict[Edit, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (N,) numbers of deleted and of inserted tokens, for texts with `lengths` (N,)."""
        none = torch.zeros_like(lengths, dtype=torch.bool)
        rates: dict[Edit, float] = {"delete": self.config.deletion_rate, "insert": self.config.insertion_rate}
        out, put = ((lengths.double() * rate).round().long() * kinds.get(kind, none) for kind, rate in rates.items())
        return out.minimum((lengths - 1).clamp_min(0)), put

    def _masked(self, texts: Batch, draws: Draws) -> Tensor:
        """Return (N, L) True at masked tokens."""
        width, rate = texts.ids.shape[1], self.config.rate
        drawn = draws("mask", width), draws("further mask", width)
        return self._masking.masks(texts, drawn, (rate, rate), rate_of=self.config.rate_of)[0]


def lowest(draws: np.ndarray, where: Tensor, counts: Tensor) -> Tensor:
    """Choose (N, L) the places of `where` (N, L) with the `counts` (N,) lowest numbers of `draws` (N, L).

    >>> lowest(np.array([[0.1, 0.7, 0.5]]), torch.tensor([[False, True, True]]), torch.tensor([1])).long()
    tensor([[0, 0, 1]])
    """
    numbers = torch.from_numpy(draws).masked_fill(~where, torch.inf)
    return numbers.argsort(dim=-1, stable=True).argsort(dim=-1) < counts.unsqueeze(1)
