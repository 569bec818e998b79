"""Scores of a batch out of its vectors, as the objective makes them where no text stands twice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparring.components.objectives.parts.scoring import RetrieverBatch, batch_scores
from sparring.components.scores import Block, Scores


def unit(rows: int, *, seed: int, size: int = 4) -> Tensor:
    """Random vectors of length 1, in float64."""
    rng = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, size, generator=rng, dtype=torch.float64), dim=-1)


def batch(queries: Tensor, documents: Tensor) -> Scores:
    """Query i asks for document i; documents beyond those are mined negatives."""
    count = len(queries)
    positives = documents[:count]
    mask = ~torch.eye(count, dtype=torch.bool)
    student = queries @ documents.T
    target = torch.eye(count, len(documents), dtype=student.dtype)
    return Scores(
        student=student,
        target=target,
        where=torch.ones_like(student, dtype=torch.bool),
        others={
            "query-query": Block(queries @ queries.T, mask),
            "document-query": Block(positives @ queries.T, mask),
            "document-document": Block(positives @ positives.T, mask),
            "document-candidate": Block(positives @ documents.T, target == 0),
            "document-mined": Block(positives @ documents[count:].T, torch.ones(count, len(documents) - count).bool()),
        },
    )


def objective_scores(queries: Tensor, documents: Tensor) -> Scores:
    """The same batch as `batch` makes, scored by the retriever's objective: no two texts are the same."""
    count, mined = len(queries), len(documents) - len(queries)
    none: Any = None  # tokens: the vectors are given
    diagonal, shared = torch.arange(count).unsqueeze(1), count + torch.arange(mined).expand(count, -1)
    columns = torch.cat([diagonal, shared], 1)
    batch = RetrieverBatch(
        queries=none,
        documents=none,
        query_keys=torch.arange(count),
        document_keys=torch.arange(len(documents)),
        columns=columns,
        target=(torch.arange(1 + mined) == 0).expand(count, -1).to(queries.dtype),
        where=torch.ones_like(columns, dtype=torch.bool),
        relevant_keys=diagonal,
        teacher=None,
    )
    return batch_scores(queries, documents, batch)


def one_row(positive: float, negatives: list[float], **blocks: list[float]) -> Scores:
    """A single query: what its positive, its negatives and the blocks score."""

    def row(*values: float) -> Tensor:
        return torch.tensor([values], dtype=torch.float64)

    def all_of(values: Tensor) -> Tensor:
        return torch.ones_like(values, dtype=torch.bool)

    student = row(positive, *negatives)
    target = row(1, *(0 for _ in negatives))
    extra = {name.replace("_", "-"): Block(row(*values), all_of(row(*values))) for name, values in blocks.items()}
    return Scores(student, target, all_of(student), others=extra)


def soft_row(**blocks: list[float]) -> Scores:
    """A single query with two positives, of odds 1 and 2 and targets 3/4 and 1/4, and a negative of odds 3.

    Whatever the denominator z, the loss is `3/4 ln z + 1/4 (ln z - ln 2)`.
    """
    scores = one_row(0, [math.log(2), math.log(3)], **blocks)
    return replace(scores, target=torch.tensor([[0.75, 0.25, 0.0]], dtype=torch.float64))
