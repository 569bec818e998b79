"""Base of objectives over a groups table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparring.components.data.groups import Group, Groups
from sparring.components.training.objective import Objective, Visit


class GroupObjective(Objective):
    """An objective whose rows are groups. A group is a query with candidates, targets and perhaps teacher scores."""

    def open(self, table: Path) -> None:
        """Open a groups table."""
        self._groups = Groups(table, self.inputs.data)

    def rows(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def groups(self, visits: list[Visit]) -> list[Group]:
        """Return the groups of some visits."""
        return [self._groups[visit.row] for visit in visits]


class PaddedGroups:
    """The candidates of some groups as rows, padded to the longest group."""

    def __init__(self, groups: list[Group]) -> None:
        counts = np.asarray([len(group.documents) for group in groups])
        self._groups = groups
        self.counts = counts
        """Number of candidates of each group: (Q,)."""
        self.where: np.ndarray = np.arange(counts.max()) < counts[:, None]
        """True at candidates, False at padding: (Q, C)."""
        self.documents = np.concatenate([group.documents for group in groups])
        """Documents of all groups, in the order of the groups: (N,)."""

    def pairs(self) -> np.ndarray:
        """Pair each query with each of its documents: (N, 2)."""
        return np.stack([np.repeat([group.query for group in self._groups], self.counts), self.documents], axis=1)

    def spread(self, values: Any, dtype: type) -> np.ndarray:
        """Arrange the values of all candidates (N,) in rows (Q, C). Padding is 0."""
        rows: np.ndarray = np.zeros(self.where.shape, dtype)
        rows[self.where] = values
        return rows

    def first(self, keys: np.ndarray) -> Tensor:
        """Mark the first candidate of each key within a group: (Q, C). `keys` (N,) start at 0. Padding is False."""
        group = np.repeat(np.arange(len(self.counts)), self.counts)
        first = np.zeros(len(keys), bool)
        first[np.unique(group * (keys.max(initial=0) + 1) + keys, return_index=True)[1]] = True
        return torch.from_numpy(self.spread(first, bool))

    def targets(self) -> Tensor:
        """Return the targets of all candidates: (Q, C)."""
        return self._floats([group.targets for group in self._groups])

    def teacher(self) -> Tensor | None:
        """Return the teacher's scores: (Q, C). Return None if there is no teacher."""
        if self._groups[0].teacher is None:
            return None
        return self._floats([group.teacher for group in self._groups])

    def _floats(self, lists: list[Any]) -> Tensor:
        return torch.from_numpy(self.spread(np.concatenate(lists), np.float32))
