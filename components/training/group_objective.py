"""What objectives over a groups table have in common: opening the table, and candidates as padded rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparring.components.data.groups import Group, Groups
from sparring.components.training.objective import Objective, Visit


class GroupObjective(Objective):
    """An objective whose rows are groups: a query with its candidates, their targets and teacher scores."""

    def open(self, table: Path) -> None:
        """Open a groups table."""
        self._groups = Groups(table, self.inputs.data)

    def rows(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    def groups(self, visits: list[Visit]) -> list[Group]:
        """The groups of some visits."""
        return [self._groups[visit.row] for visit in visits]


class PaddedGroups:
    """The candidates of some groups, one group a row, padded to the longest."""

    def __init__(self, groups: list[Group]) -> None:
        counts = np.asarray([len(group.documents) for group in groups])
        self._groups = groups
        self.counts = counts
        """(Q,) candidates of each group."""
        self.where: np.ndarray = np.arange(counts.max()) < counts[:, None]
        """(Q, C) False for padding."""
        self.documents = np.concatenate([group.documents for group in groups])
        """(N,) all groups' documents, one group's after another's."""

    def pairs(self) -> np.ndarray:
        """(N, 2) each query with each of its documents."""
        return np.stack([np.repeat([group.query for group in self._groups], self.counts), self.documents], axis=1)

    def spread(self, values: Any, dtype: type) -> np.ndarray:
        """(Q, C) the values of all candidates, (N,), as rows; 0 for padding."""
        rows: np.ndarray = np.zeros(self.where.shape, dtype)
        rows[self.where] = values
        return rows

    def first(self, keys: np.ndarray) -> Tensor:
        """(Q, C) whether a candidate is the first of its group with its key, of keys (N,) from 0; False for padding."""
        group = np.repeat(np.arange(len(self.counts)), self.counts)
        first = np.zeros(len(keys), bool)
        first[np.unique(group * (keys.max(initial=0) + 1) + keys, return_index=True)[1]] = True
        return torch.from_numpy(self.spread(first, bool))

    def targets(self) -> Tensor:
        """(Q, C) relevance of each candidate."""
        return self._floats([group.targets for group in self._groups])

    def teacher(self) -> Tensor | None:
        """(Q, C) scores of the teacher; None where there is none."""
        if self._groups[0].teacher is None:
            return None
        return self._floats([group.teacher for group in self._groups])

    def _floats(self, lists: list[Any]) -> Tensor:
        return torch.from_numpy(self.spread(np.concatenate(lists), np.float32))
