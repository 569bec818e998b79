"""Sentences as candidates: each sentence of a source's documents, with its context (MultiReQA, Guo et al., 2021).

A sentence is relevant to a query if it is in one of the query's relevant documents and contains one of its answers. In
MultiReQA an annotator has marked the answer. Here answers are searched for (`components.data.answers`). If an answer
spans two sentences, neither is relevant, so a query may have no judgement. Sentences end at full stops, question marks
and exclamation marks, so an abbreviation can end a sentence too early.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from sparring.components.config import UserError
from sparring.components.data.answers import matcher, normalize
from sparring.components.data.sentences import sentences
from sparring.components.sources import base
from sparring.components.sources.records import Bad, Document, Judgement, Query


class Source(base.Source):
    """The keys of `format: sentences`."""

    of: base.AnySource
    """Source whose documents are split into sentences. Its queries need answers."""
    context: Literal["document", "none"] = "document"
    """Text after the sentence in a candidate. `document`: its whole document, of which the model reads up to
    `document_tokens`. `none`: nothing. The title is always the document's."""

    @model_validator(mode="after")
    def _common_keys_are_outside(self) -> Self:
        for name in ("on_bad", "sha256", "sample", "ids"):
            if getattr(self.of, name) != base.Source.model_fields[name].default:
                raise ValueError(f"of.{name}: move this key out of `of`, next to `format: sentences`")
        return self

    def files(self) -> dict[str, Path]:
        """Return the files of the source `of`."""
        return self.of.files()

    def installed(self) -> dict[str, str]:
        """Return the packages of the collection."""
        return self.of.installed()

    def missing(self) -> list[str]:
        """List the missing files and packages of the source `of`."""
        return self.of.missing()

    def about(self) -> dict[str, Any]:
        """Return the facts about the source `of`."""
        return self.of.about()

    @property
    def _of(self) -> base.Source:
        """The source `of`, with the Unicode form of ids that is declared here."""
        return self.of.model_copy(update={"ids": self.ids})

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield each sentence, with the id DOCUMENT#NUMBER (from 1). A document with only a title is a sentence."""
        for record in self._of.read_documents():
            if isinstance(record, Bad):
                yield record
                continue
            for number, sentence in enumerate(_split(record), 1):
                text = f"{sentence}\n{record.text}" if self.context == "document" and sentence else sentence
                yield Document(f"{record.doc_id}#{number}", record.title, text, record.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the queries of the source `of`."""
        return self._of.read_queries()

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield a judgement for each sentence of a relevant document that contains an answer.

        Judgements and answers are kept in memory, but documents are not.
        """
        wanted: dict[str, list[Judgement]] = {}
        for record in self._of.read_qrels():
            if isinstance(record, Bad):
                yield record
            elif record.relevance > 0:
                wanted.setdefault(record.doc_id, []).append(record)
        judged = {record.query_id for judgements in wanted.values() for record in judgements}
        read = (record for record in self._of.read_queries() if isinstance(record, Query))
        answers = {query.query_id: query.answers for query in read if query.query_id in judged}
        if answers and not any(answers.values()):
            raise UserError(
                "format sentences: the queries of `of` have no answers, which decide what sentences are relevant. Use "
                "a source with answers."
            )
        for document in self._of.read_documents():
            if isinstance(document, Document):  # bad records were reported when the documents were read
                parts = [normalize(sentence) for sentence in _split(document)]
                for record in wanted.pop(document.doc_id, []):
                    yield from _judge_sentences(record, parts, answers)
        for record in (record for judgements in wanted.values() for record in judgements):
            yield Bad("judgement of a missing document", record.place, id=record.doc_id)


def _split(document: Document) -> list[str]:
    return sentences(document.text) or [document.text]


def _judge_sentences(judged: Judgement, parts: list[str], answers: dict[str, list[str]]) -> Iterator[Judgement | Bad]:
    """Split a document's judgement into judgements of its sentences."""
    if judged.query_id not in answers:
        yield Bad("judgement of a missing query", judged.place, id=judged.query_id)
        return
    contains_answer = matcher(answers[judged.query_id])
    for number, sentence in enumerate(parts, 1):
        if contains_answer(sentence):
            yield judged._replace(doc_id=f"{judged.doc_id}#{number}")
