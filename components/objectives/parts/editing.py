"""Edited copies of texts for DiffCSE (Chuang et al., 2022, sections 2.3 and 2.5.4).

A generator replaces or inserts tokens, and tokens are deleted.
"""

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
"""Function from a purpose and a width to random numbers from 0 to 1 for the places of each text: (N, width)."""


class Edits(NamedTuple):
    """Edited copies of N texts. All positions are those of the copies, of which the longest has L tokens."""

    ids: Tensor
    """Original token at each place: (N, L). The mask token where a token is inserted."""
    mask: Tensor
    """1 at places that are read or predicted: (N, L)."""
    attention: Tensor
    """1 for a token, 0 for padding: (N, L)."""
    text: Tensor
    """True at tokens of the text, False at special tokens and padding: (N, L)."""
    masked: Tensor
    """True at tokens that are masked to be replaced: (N, L)."""
    marked: Tensor
    """True at inserted tokens, and at tokens that follow a deleted token: (N, L)."""
    replaceable: Tensor
    """True at places where the generator chooses a token: (N, L)."""
    read: Tensor
    """Tokens that the generator reads: (N, L)."""
    draws: Tensor
    """A random number for the generator's choice at each place: (N, L)."""
    edited: Tensor | None = None
    """The edited copies: (N, L). If None, the generator has not chosen its tokens yet."""
    vector: Tensor | None = None
    """Position of the vector that a discriminator reads with each copy: (N,)."""

    @property
    def changed(self) -> Tensor:
        """True at tokens that were replaced by another, were inserted, or follow a deleted token: (N, L)."""
        assert self.edited is not None
        return self.marked | (self.edited != self.ids)


class Editing:
    """A maker of edited copies. Texts and copies have at most `tokens` tokens.

    Special tokens and padding are not edited, except with `replaced_by: argmax`. The generator is one of the frozen
    models of `owner`.
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
                "generator: got null, but these edits need a generator. Set it to a masked language model.",
                code="missing-model",
            )
        if generator is not None and not config.generates:
            raise UserError(
                "generator: `task: masked` and `edits: [delete]` do not use a generator. Set `generator: null`."
            )
        self.config, self.template = config, template
        self._tokens, self._vocabulary = tokens, vocabulary
        self._masking = Masking(config, owner.inputs.model, template)
        if generator is not None:
            owner.add_frozen(GENERATOR, load_generator(generator, owner.inputs.model, tokens))

    def collate(self, texts: Batch, draws: Draws) -> Edits:
        """Draw the edits of texts. Apply all edits except the generator's replacements."""
        start, end = len(self.template.before), len(self.template.after)
        text = self.template.text_positions(texts)
        kinds = self._kinds(draws)
        deletions, insertions = self._counts(text.sum(-1), kinds)
        deleted = lowest(draws("delete", text.shape[1]), text, deletions)
        # A text that becomes too long loses tokens at its end.
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
        """Choose a kind of edit for each text. Return the mask (N,) of the texts of each kind."""
        kinds = self.config.edits
        drawn = torch.from_numpy(draws("kind", 1)[:, 0] * len(kinds)).long()
        return {kind: drawn == number for number, kind in enumerate(kinds)}

    def _counts(self, lengths: Tensor, kinds: dict[Edit, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the numbers of deleted and of inserted tokens (N,) for texts with `lengths` (N,)."""
        none = torch.zeros_like(lengths, dtype=torch.bool)
        rates: dict[Edit, float] = {"delete": self.config.deletion_rate, "insert": self.config.insertion_rate}
        out, put = ((lengths.double() * rate).round().long() * kinds.get(kind, none) for kind, rate in rates.items())
        return out.minimum((lengths - 1).clamp_min(0)), put

    def _masked(self, texts: Batch, draws: Draws) -> Tensor:
        """Return the mask of masked tokens: (N, L)."""
        width, rate = texts.ids.shape[1], self.config.rate
        drawn = draws("mask", width), draws("further mask", width)
        return self._masking.masks(texts, drawn, (rate, rate), rate_of=self.config.rate_of)[0]


def lowest(draws: np.ndarray, where: Tensor, counts: Tensor) -> Tensor:
    """Choose, in each row of `where` (N, L), the `counts` (N,) places with the lowest `draws` (N, L).

    >>> lowest(np.array([[0.1, 0.7, 0.5]]), torch.tensor([[False, True, True]]), torch.tensor([1])).long()
    tensor([[0, 0, 1]])
    """
    numbers = torch.from_numpy(draws).masked_fill(~where, torch.inf)
    return numbers.argsort(dim=-1, stable=True).argsort(dim=-1) < counts.unsqueeze(1)
