"""The models of a service's systems, which embed texts and rerank documents by themselves."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from sparring.components.config import UserError, did_you_mean, listing
from sparring.components.systems.loaded import LoadedEncoder, PairScorer
from sparring.workflows.serving.answering import Answering, Unknown
from sparring.workflows.serving.batching import TEXTS, Arrival
from sparring.workflows.serving.model_requests import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    ListedModel,
    ModelList,
    Reranked,
    RerankMeta,
    RerankRequest,
    RerankResponse,
    RerankTokens,
    RerankUsage,
)

Part = TypeVar("Part", LoadedEncoder, PairScorer)
Side = Literal["query", "document"]


class Named(NamedTuple, Generic[Part]):
    """A model with the id that requests use."""

    id: str
    part: Part


class Texts(NamedTuple):
    """Texts for a model."""

    model: Named[LoadedEncoder]
    side: Side | None
    texts: Sequence[Any]


class Pairs(NamedTuple):
    """A query and documents for a model."""

    model: Named[PairScorer]
    query: str
    documents: Sequence[str]


class Models:
    """Retrievers and rankers by id. Those that systems share are listed once.

    Requests wait in the queue of the systems' questions. Long requests are computed `TEXTS` texts at a time, so that
    searches wait for no more than that.
    """

    def __init__(self, answering: Answering) -> None:
        self._answering, self._opened = answering, int(time.time())
        first = answering.default
        systems = {name: answering.systems[name] for name in dict.fromkeys([first, *answering.systems])}
        self._encoders = _Group("retriever", {name: system.encoders for name, system in systems.items()}, preferred=0)
        self._rankers = _Group("ranker", {name: system.rankers for name, system in systems.items()}, preferred=-1)

    def listed(self) -> ModelList:
        """List the models."""
        common: dict[str, Any] = {"created": self._opened}
        rows = [
            ListedModel(id=id, kind="embedding", max_tokens=part.limit, dimensions=part.sizes, **common)
            for id, part in self._encoders.models()
        ]
        rows += [
            ListedModel(id=id, kind="rerank", max_tokens=part.limit, dimensions=None, **common)
            for id, part in self._rankers.models()
        ]
        return ModelList(data=rows)

    def find(self, name: str) -> ListedModel:
        """Describe the model with an id. Unknown if there is none."""
        rows = {model.id: model for model in self.listed().data}
        if name not in rows:
            raise Unknown(f"model: there is none called {name!r}; accepted: {listing(rows)}", code="model_not_found")
        return rows[name]

    async def embed(self, request: EmbeddingRequest) -> EmbeddingResponse:
        """Compute the vectors of texts. UserError if the model, a size or a token id does not exist."""
        model, side = self._encoders.find(request.model), request.input_type
        inputs: Sequence[Any] = request.input
        if not isinstance(inputs[0], str):
            model.part.check_ids(inputs, "input")
        if request.dimensions is not None:
            model.part.check_size(request.dimensions, "dimensions")
        computed = [
            await self._answering.batches.answer(self._embedded, Texts(model, side, texts), texts=len(texts))
            for texts in _slices(inputs)
        ]
        vectors = model.part.cut(np.concatenate([vectors for vectors, _ in computed]), request.dimensions)
        tokens = sum(int(tokens.sum()) for _, tokens in computed)
        return EmbeddingResponse.model_construct(
            data=[
                Embedding.model_construct(index=index, embedding=_written(vector, request.encoding_format))
                for index, vector in enumerate(vectors)
            ],
            model=model.id,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )

    async def rerank(self, request: RerankRequest) -> RerankResponse:
        """Order documents for a query. UserError if the model does not exist."""
        model, texts = self._rankers.find(request.model), [document.text for document in request.documents]
        computed = [
            await self._answering.batches.answer(
                self._scored, Pairs(model, request.query, documents), texts=len(documents)
            )
            for documents in _slices(texts)
        ]
        scores = np.concatenate([scores for scores, _ in computed]).astype(np.float64)
        tokens = sum(int(tokens.sum()) for _, tokens in computed)
        order = np.argsort(-scores, kind="stable")[: request.top_n]
        shown = scores if request.raw_scores else sigmoid(scores)
        return RerankResponse.model_construct(
            model=model.id,
            results=[
                Reranked.model_construct(
                    index=index,
                    relevance_score=float(shown[index]),
                    document=request.documents[index] if request.return_documents else None,
                )
                for index in order.tolist()
            ],
            usage=RerankUsage(total_tokens=tokens),
            meta=RerankMeta(tokens=RerankTokens(input_tokens=tokens)),
        )

    def _embedded(self, arrivals: Sequence[Arrival]) -> list[Any]:
        """Represent the texts of requests. Those for the same model and side are read together."""
        alike: dict[tuple[Named[LoadedEncoder], Side | None, bool], list[int]] = {}
        for number, (request, _) in enumerate(arrivals):
            key = request.model, request.side, isinstance(request.texts[0], str)
            alike.setdefault(key, []).append(number)
        answers = dict[int, Any]()
        for (model, side, _), numbers in alike.items():
            began, parts = time.perf_counter(), [arrivals[number].question.texts for number in numbers]
            vectors, tokens = model.part.embed([text for part in parts for text in part], side)
            self._answering.metrics.read(model.id, len(tokens), int(tokens.sum()), "embed", time.perf_counter() - began)
            ends = np.cumsum([len(part) for part in parts])[:-1]
            answers |= zip(numbers, zip(np.split(vectors, ends), np.split(tokens, ends), strict=True), strict=True)
        return [answers[number] for number in range(len(arrivals))]

    def _scored(self, arrivals: Sequence[Arrival]) -> list[Any]:
        """Score the documents of requests. Those for the same model are read together."""
        alike: dict[Named[PairScorer], list[int]] = {}
        for number, (request, _) in enumerate(arrivals):
            alike.setdefault(request.model, []).append(number)
        answers = dict[int, Any]()
        for model, numbers in alike.items():
            began, requests = time.perf_counter(), [arrivals[number].question for number in numbers]
            scores, tokens = model.part.score(
                [request.query for request in requests], [request.documents for request in requests]
            )
            texts, read = sum(map(len, scores)), sum(int(counts.sum()) for counts in tokens)
            self._answering.metrics.read(model.id, texts, read, "rerank", time.perf_counter() - began)
            answers |= zip(numbers, zip(scores, tokens, strict=True), strict=True)
        return [answers[number] for number in range(len(arrivals))]


class _Group(Generic[Part]):
    """The models of one type, by their ids."""

    def __init__(self, kind: str, stages: Mapping[str, Mapping[str, Part]], *, preferred: int) -> None:
        """`stages` has each system's models by the stage's name, the default system first. `preferred` is the position
        of the default model among those of the default system."""
        self._kind = kind
        parts = [(system, stage, part) for system, models in stages.items() for stage, part in models.items()]
        alike: dict[str, set[Part]] = {}
        for _, stage, part in parts:
            alike.setdefault(stage, set()).add(part)
        ids: dict[Part, str] = {}
        for system, stage, part in parts:
            ids.setdefault(part, stage if len(alike[stage]) == 1 else f"{system}/{stage}")
        self._ids: dict[Part, str] = ids
        self._named: dict[str, Part] = {f"{system}/{stage}": part for system, stage, part in parts}
        self._named |= {id: part for part, id in ids.items()}
        first = list(next(iter(stages.values())).values())
        self._default: Part | None = first[preferred] if first else next(iter(ids)) if len(ids) == 1 else None

    def models(self) -> Iterable[tuple[str, Part]]:
        """List the models with their ids."""
        return ((id, part) for part, id in self._ids.items())

    def find(self, name: str | None) -> Named[Part]:
        """Find the model with an id. If None, find the default model. Unknown if there is none."""
        if not self._ids:
            raise Unknown(f"model: this service has no {self._kind}", code="model_not_found")
        part = self._default if name is None else self._named.get(name)
        if part is None and name is None:
            raise UserError(f"model: it is needed; accepted: {listing(self._ids.values())}", code="missing-key")
        if part is None:
            accepted = f"{listing(self._ids.values())}{did_you_mean(str(name), self._named)}"
            raise Unknown(f"model: no {self._kind} is called {name!r}; accepted: {accepted}", code="model_not_found")
        return Named(self._ids[part], part)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Map scores to numbers between 0 and 1, in the same order.

    >>> sigmoid(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1, small) / (1 + small)


def _slices(rows: Sequence[Any]) -> list[Sequence[Any]]:
    return [rows[start : start + TEXTS] for start in range(0, len(rows), TEXTS)]


def _written(vector: np.ndarray, encoding: str) -> list[float] | str:
    """Write a vector (d,) as a list or as base64."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
