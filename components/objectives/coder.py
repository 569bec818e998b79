"""Train a query encoder on whole ranking contexts against document vectors that stay as they are (CODER, paper 003).

Zerveas et al. 2022, which the paper builds on: hundreds of candidates a query cost next to nothing where no document is
encoded. A candidate that several queries of a batch have is fetched once.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from components.chunked import in_chunks
from components.dual_encoder import DualEncoder
from components.files import write_json
from components.floor import Products
from components.groups import Groups
from components.objectives.terms import Sum, Term, evaluate
from components.scores import Scores
from components.text import Batch, TokenStore
from components.train_config import TemperatureConfig
from components.vectors import Vectors

TEMPERATURE = "temperature.json"
"""Beside the model: what a training that goes on from it begins with."""


class CoderBatch(NamedTuple):
    """Some groups: their queries, and each distinct candidate's vector once."""

    queries: Batch
    vectors: Tensor
    """(U, d) as they are stored, which is half precision by default."""
    columns: Tensor
    """(Q, C) where each candidate stands among the vectors; 0 for padding."""
    target: Tensor
    where: Tensor
    """(Q, C) False for padding and for a document that the group has already."""
    teacher: Tensor | None


class Queries(nn.Module):
    """What is trained: the query's tower, and the temperature. The document's tower is kept as it is beside them."""

    def __init__(self, encoder: DualEncoder, begun: float, config: TemperatureConfig) -> None:
        super().__init__()
        self.encoder = encoder.apart()
        for parts in (self.encoder.towers, self.encoder.projections):
            if "document" in parts:
                parts["document"].requires_grad_(False)
        self.moved = nn.Parameter(torch.zeros(()), requires_grad=config.learned)
        """How far the temperature's logarithm is from where it began, at the pace of the weights."""
        self._begun, self._pace = math.log(begun), config.pace

    def temperature(self) -> Tensor:
        """() what scores are divided by."""
        return (self._begun + self._pace * self.moved).exp()


class Coder(nn.Module):
    """The objective: inner products of queries with given vectors, over each query's own candidates.

    `vectors` is an artifact of `encode`, made by the retriever that this begins from.
    """

    calibrated = True

    def __init__(
        self, model: Path, *, rows: Path, data: Path, tokens: Path, losses: list[Term], piece: int, recompute: bool,
        vectors: Path, temperature: TemperatureConfig,
    ) -> None:  # fmt: skip
        super().__init__()
        if any(term.over != "group" for term in losses):
            raise ValueError("CODER's losses look over each query's own candidates: `over: group`")
        self.model = Queries(DualEncoder.load(model), _begun(model, temperature), temperature)
        tower = self.model.encoder.tower("query")
        self._products = Products(tower)
        self._from, self._losses, self._piece, self._recompute = model, losses, piece, recompute
        self._groups = Groups(rows, data)
        self._tokens, self._vectors = TokenStore(tokens, model), Vectors(vectors)
        width = self.model.encoder.config.projection or self.model.encoder.width
        if self._vectors.width != width:
            raise ValueError(
                f"{vectors}: vectors of {self._vectors.width} numbers, and the retriever's queries have "
                f"{width}; accepted: those of the retriever that the training begins from"
            )

    def rows(self) -> int:
        """How many groups there are."""
        return len(self._groups)

    def collate(self, rows: list[int]) -> CoderBatch:
        """The batch of some groups."""
        groups = [self._groups[row] for row in rows]
        counts = np.asarray([len(group.documents) for group in groups])
        there = np.arange(counts.max()) < counts[:, None]
        documents, own = np.unique(np.concatenate([group.documents for group in groups]), return_inverse=True)

        def spread(values: list[Any], kind: type) -> np.ndarray:
            """(Q, C) the groups' values, 0 where a group is shorter."""
            full: np.ndarray = np.zeros(there.shape, kind)
            full[there] = np.concatenate(values)
            return full

        columns = spread([own], np.int64)
        queries = np.asarray([group.query for group in groups])
        limit, template = self.model.encoder.tokens("query"), self._tokens.template
        return CoderBatch(
            queries=template.texts(self._tokens.queries, queries, limit),
            vectors=torch.from_numpy(self._vectors.documents(documents)),
            columns=torch.from_numpy(columns),
            target=torch.from_numpy(spread([group.targets for group in groups], np.float32)),
            where=torch.from_numpy(there & _first(columns, there)),
            teacher=None
            if groups[0].teacher is None
            else torch.from_numpy(spread([group.teacher for group in groups], np.float32)),
        )

    def operations(self, batch: CoderBatch) -> float:
        """Of encoding all queries; their products with candidates are little beside it."""
        return self._products.operations(batch.queries.mask.sum(-1).numpy())

    def rate(self, *, device: str, precision: str) -> float:
        """Of a tower's products."""
        return self._products.rate(tokens=self._piece, device=device, precision=precision)

    def encode(self, batch: CoderBatch) -> Tensor:
        """(Q, d) vectors of the queries."""
        encoder = self.model.encoder
        return in_chunks(lambda b: encoder(b, "query"), batch.queries, tokens=self._piece, recompute=self._recompute)

    def terms(self, representations: Tensor, batch: CoderBatch) -> dict[str, Sum]:
        """The losses over each group."""
        scores = self._scores(representations, batch)
        return evaluate(self._losses, lambda _: scores)

    def judge(self, representations: Tensor, batch: CoderBatch) -> list[tuple[Tensor, Tensor]]:
        """Scores and targets of each query's own candidates."""
        scores = self._scores(representations, batch)
        return [(scores.student[i][w], scores.target[i][w]) for i, w in enumerate(scores.where)]

    def save(self, folder: Path) -> None:
        """Write the retriever, with towers that are no longer alike, and the temperature."""
        self.model.encoder.save(folder, self._from)
        write_json(folder / TEMPERATURE, {"temperature": self.model.temperature().item()})

    def _scores(self, queries: Tensor, batch: CoderBatch) -> Scores:
        # All queries with all vectors, of which each query's own are then taken: in one product those of the others
        # cost less than a copy of the own ones for each query would.
        products = queries @ batch.vectors.to(queries.dtype).T
        student = products.gather(1, batch.columns) / self.model.temperature()
        return Scores(student=student, target=batch.target, where=batch.where, teacher=batch.teacher)


def _begun(model: Path, config: TemperatureConfig) -> float:
    """The temperature that a training begins with."""
    path = model / TEMPERATURE
    return float(json.loads(path.read_text())["temperature"]) if path.exists() else config.start


def _first(columns: np.ndarray, there: np.ndarray) -> np.ndarray:
    """(Q, C) whether no place before it in the row has the same column."""
    first = np.zeros(columns.shape, bool)
    for row, (own, count) in enumerate(zip(columns, there.sum(1), strict=True)):
        first[row, np.unique(own[:count], return_index=True)[1]] = True
    return first


Objective = Coder
