"""Answers questions with systems that stay open. Questions that come while others are being answered are then answered
together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparring.components.config import UserError
from sparring.components.systems.documents import Documents
from sparring.components.systems.searching import Seconds
from sparring.components.systems.system import Answered, LoadedSystem
from sparring.workflows.serving.batching import Arrival, Batches
from sparring.workflows.serving.metrics import Metrics
from sparring.workflows.serving.questions import (
    LIMITS,
    USUAL,
    Answer,
    Described,
    Found,
    Question,
    Reading,
    Result,
    Systems,
    parts,
)


@dataclass(frozen=True)
class Summary:
    """Description of a service's systems, for its page."""

    name: str
    """Name of the run, or of the exported system."""
    collection: str = ""
    """Name of the collection. Empty if it is not known."""
    examples: Sequence[str] = ()
    """Some queries of the collection."""
    low: Mapping[str, float] = field(default_factory=dict)
    """By system: a best score below this one is low."""


class Unknown(UserError):
    """A system, document or model that does not exist."""


class Answering:
    """Systems by name, which answer questions in batches."""

    def __init__(
        self,
        systems: Mapping[str, LoadedSystem],
        documents: Documents,
        default: str,
        left_out: Mapping[str, str],
        metrics: Metrics,
        summary: Summary,
    ) -> None:
        self.systems, self.documents, self.default, self.left_out = systems, documents, default, left_out
        self.metrics, self.summary = metrics, summary
        self.batches = Batches()

    def described(self) -> Systems:
        """Describe the systems."""
        return Systems(
            name=self.summary.name,
            collection=self.summary.collection,
            examples=list(self.summary.examples),
            systems=[_described(name, system, self.summary.low.get(name)) for name, system in self.systems.items()],
            default=self.default,
            left_out=dict(self.left_out),
            limits=LIMITS,
        )

    async def answer(self, question: Question) -> Answer:
        """Answer a question. UserError if there is no such system, or if it cannot rank so many documents."""
        if (question.queries is None) == (question.ids is None):
            raise UserError("the body: accepted: either `queries`, texts, or `ids`, documents'")
        name = question.system or self.default
        if name not in self.systems:
            raise Unknown(f"system: there is none called {name!r}; accepted: {', '.join(self.systems)}")
        self.systems[name].config.check_k(self._k(name, question))
        for doc_id in question.ids or []:
            self.check_document("ids", doc_id)
        answer: Answer = await self.batches.answer(self.together, question.model_copy(update={"system": name}))
        return answer

    def check_document(self, key: str, doc_id: str) -> None:
        """Raise Unknown, naming `key`, if there is no such document."""
        if self.documents.place(doc_id) is None:
            raise Unknown(f"{key}: no document is called {doc_id!r}; accepted: the id of a document")

    def together(self, arrivals: Sequence[Arrival]) -> list[Answer]:
        """Answer questions for systems that exist, in order. Those with equal system and k share one search."""
        alike: dict[tuple[str, int], list[int]] = {}
        for number, (question, _) in enumerate(arrivals):
            name = str(question.system)
            alike.setdefault((name, self._k(name, question)), []).append(number)
        answers: dict[int, Answer] = {}
        for (name, k), numbers in alike.items():
            batches = [self._queries(name, arrivals[number].question) for number in numbers]
            queries = [query for batch in batches for query in batch]
            texts, without = zip(*queries, strict=True)
            began, seconds = time.perf_counter(), Seconds()
            answered = iter(self.systems[name].answer(texts, k, seconds, without=without))
            self.metrics.searched(name, len(queries), seconds)
            for number, batch in zip(numbers, batches, strict=True):
                wait = began - arrivals[number].time
                results = [_result(query, doc_id, next(answered)) for query, doc_id in batch]
                answers[number] = Answer.model_construct(
                    system=name, results=results, seconds=parts(seconds, wait), together=len(queries)
                )
        return [answers[number] for number in range(len(arrivals))]

    def _queries(self, name: str, question: Question) -> list[tuple[str, str | None]]:
        """List the texts of a question's queries. Queries by id come with the ids of their documents."""
        if question.ids is not None:
            return [(self.systems[name].text_of(doc_id), doc_id) for doc_id in question.ids]
        return [(text, None) for text in question.queries or []]

    def _k(self, name: str, question: Question) -> int:
        """Return the number of documents for each query."""
        return min(USUAL, self.systems[name].config.limit) if question.k is None else question.k


def _result(query: str, doc_id: str | None, answered: Answered) -> Result:
    answer = None if answered.answer is None else Reading.model_construct(**answered.answer._asdict())
    documents = [Found.of(hit) for hit in answered.hits]
    return Result.model_construct(query=query, id=doc_id, answer=answer, documents=documents)


def _described(name: str, system: LoadedSystem, low: float | None) -> Described:
    config = system.config
    return Described(name=name, documents=config.documents, limit=config.limit, low=low, stages=list(config.stages))
