"""Training of a query encoder on long candidate lists with fixed document vectors (CODER, Zerveas et al., 2023).

Documents are not encoded, so hundreds of candidates per query cost little (Zerveas et al., 2022). A candidate that
queries of a batch share is read once.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparring.components.compute.roofline import MatrixProducts
from sparring.components.data.batches import Batch
from sparring.components.data.token_store import TokenStore
from sparring.components.data.vectors import DocumentVectors
from sparring.components.files import read_json, write_json
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.scores import Scores
from sparring.components.training.config import TemperatureConfig
from sparring.components.training.group_objective import GroupObjective, PaddedGroups
from sparring.components.training.objective import ObjectiveInputs, Visit, ranking_measures
from sparring.components.training.terms import TermSum

TEMPERATURE = "temperature.json"
"""File with the trained temperature, next to the model. A training that starts from the model starts from it."""


class CoderBatch(NamedTuple):
    """Queries of some groups, and the vector of each distinct candidate."""

    queries: Batch
    vectors: Tensor
    """Vectors in the stored precision, half by default: (U, d)."""
    columns: Tensor
    """Position of each candidate among the vectors: (Q, C). 0 for padding."""
    target: Tensor
    where: Tensor
    """Mask of the candidates that count: (Q, C). False for padding and for repeated documents of a group."""
    teacher: Tensor | None


class Queries(nn.Module):
    """A trainable query tower and temperature, and the frozen document tower."""

    def __init__(self, encoder: DualEncoder, begun: float, config: TemperatureConfig) -> None:
        super().__init__()
        self.encoder = encoder.with_separate_towers()
        for parts in (self.encoder.towers, self.encoder.projections):
            if "document" in parts:
                parts["document"].requires_grad_(False)
        self.moved = nn.Parameter(torch.zeros(()), requires_grad=config.learned)
        """Change of the temperature's logarithm, divided by `pace` so that it fits the weights' learning rate."""
        self._begun, self._pace = math.log(begun), config.pace

    def temperature(self) -> Tensor:
        """Return the divisor of the scores, a scalar."""
        return (self._begun + self._pace * self.moved).exp()


class Coder(GroupObjective):
    """Inner products of queries with stored document vectors, over each query's own candidates.

    `vectors` is the folder of document vectors from the retriever that the training starts from.
    """

    views = ("group",)
    measures = ("RR", "accuracy")

    def __init__(self, inputs: ObjectiveInputs, *, vectors: Path, temperature: TemperatureConfig) -> None:
        super().__init__(inputs)
        self.model = Queries(DualEncoder.load(inputs.model), _begun(inputs.model, temperature), temperature)
        self.products = [MatrixProducts(self.model.encoder.tower("query"))]
        self._tokens, self._vectors = TokenStore(inputs.tokens, inputs.model), DocumentVectors(vectors)
        width = self.model.encoder.dimensions
        if self._vectors.width != width:
            raise ValueError(
                f"{vectors}: the document vectors have {self._vectors.width} numbers, but the retriever's query "
                f"vectors have {width}. Use document vectors of the retriever that the training starts from."
            )

    def collate(self, visits: list[Visit]) -> CoderBatch:
        """Collate groups into a batch."""
        groups = self.groups(visits)
        padded = PaddedGroups(groups)
        documents, columns = np.unique(padded.documents, return_inverse=True)
        queries = np.asarray([group.query for group in groups])
        limit, template = self.model.encoder.max_tokens("query"), self._tokens.template
        return CoderBatch(
            queries=template.texts(self._tokens.queries, queries, limit),
            vectors=torch.from_numpy(self._vectors[documents]),
            columns=torch.from_numpy(padded.spread(columns, np.int64)),
            target=padded.targets(),
            where=padded.first(columns),
            teacher=padded.teacher(),
        )

    def operations(self, batch: CoderBatch) -> float:
        """Count the operations of encoding all queries. Their products with candidates are negligible."""
        return self.products[0].training_operations(batch.queries.mask.sum(-1).numpy())

    def encode(self, batch: CoderBatch) -> Tensor:
        """Encode the queries as (Q, d) vectors."""
        encoder = self.model.encoder
        return self.in_chunks(lambda b: encoder(b, "query"), batch.queries)

    def terms(self, representations: Tensor, batch: CoderBatch) -> dict[str, TermSum]:
        """Compute the losses over each group."""
        scores = self._scores(representations, batch)
        return self.evaluate(lambda _: scores)

    def judge(self, representations: Tensor, batch: CoderBatch) -> dict[str, Tensor]:
        """Measure `RR` and `accuracy` among each query's own candidates, and the divergence from the targets as `loss`.

        Scores are divided by the trained temperature. With soft labels the loss can fall while the ranks do not improve
        (Zerveas et al., 2023, Figure 2).
        """
        scores = self._scores(representations, batch)
        rows = scores.rows()
        return {**ranking_measures(rows), "loss": torch.stack([_divergence(*row) for row in rows])}

    def save(self, folder: Path) -> None:
        """Write the retriever, whose towers now differ, and the temperature."""
        self.model.encoder.save(folder, self.inputs.model)
        write_json(folder / TEMPERATURE, {"temperature": self.model.temperature().item()})

    def _scores(self, queries: Tensor, batch: CoderBatch) -> Scores:
        # Multiply all queries with all vectors and select each query's candidates. A single product is cheaper than
        # a copy of the candidates' vectors for each query.
        products = queries @ batch.vectors.to(queries.dtype).T
        student = products.gather(1, batch.columns) / self.model.temperature()
        return Scores(student=student, target=batch.target, where=batch.where, teacher=batch.teacher)


def _begun(model: Path, config: TemperatureConfig) -> float:
    """Return the temperature at the start of training: the model's own, or else the config's."""
    path = model / TEMPERATURE
    return float(read_json(path)["temperature"]) if path.exists() else config.start


def _divergence(scores: Tensor, targets: Tensor) -> Tensor:
    """Compute the KL divergence of the scores' softmax from the targets. Targets are scaled to sum to 1."""
    targets = targets / targets.sum()
    return (torch.xlogy(targets, targets) - targets * scores.log_softmax(-1)).sum()


Objective = Coder
