"""Sentences as candidates: each sentence of another source's documents, in its context (MultiReQA, Guo et al. 2021).

A query is answered by a sentence, not by a passage: relevant are the sentences of its relevant documents that bear one
of its answers. MultiReQA knows where an annotator marked the answer; here it is looked for (`components.answers`).
Where it stands across two sentences no sentence is relevant, and the query is one without a judgement. Sentences end at
full stops, question and exclamation marks, which an abbreviation now and then has too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from components.answers import matcher, prepared
from components.config import UserError
from components.sources import base
from components.sources.records import Bad, Document, Judgement, Query
from components.targets import sentences


class Source(base.Source):
    """The sentences of another source."""

    of: base.AnySource
    """The source whose documents are cut; its queries need answers."""
    context: Literal["document", "none"] = "document"
    """What follows the sentence in a candidate's text: its whole document, which the model reads as far as
    `document_tokens` go, or nothing. The title stays the document's."""

    @model_validator(mode="after")
    def _says_it_once(self) -> Self:
        for name in ("on_bad", "sha256", "sample"):
            if getattr(self.of, name) != base.Source.model_fields[name].default:
                raise ValueError(f"of.{name}: say it beside `format: sentences`, not inside")
        return self

    def files(self) -> dict[str, Path]:
        """Those of the other source."""
        return self.of.files()

    def missing(self) -> list[str]:
        """What the other source misses."""
        return self.of.missing()

    def about(self) -> dict[str, Any]:
        """What the other source tells."""
        return self.of.about()

    def read_documents(self) -> Iterator[Document | Bad]:
        """Each sentence as DOCUMENT#NUMBER, numbers from 1; a document that has nothing but a title is one."""
        for record in self.of.read_documents():
            if isinstance(record, Bad):
                yield record
                continue
            for number, sentence in enumerate(_cut(record), 1):
                text = f"{sentence}\n{record.text}" if self.context == "document" and sentence else sentence
                yield Document(f"{record.doc_id}#{number}", record.title, text, record.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The other source's."""
        return self.of.read_queries()

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The sentences of relevant documents that bear an answer; what is not relevant has no judgement.

        Judgements and answers are in memory, documents pass by.
        """
        wanted: dict[str, list[Judgement]] = {}
        for record in self.of.read_qrels():
            if isinstance(record, Bad):
                yield record
            elif record.relevance > 0:
                wanted.setdefault(record.doc_id, []).append(record)
        judged = {one.query_id for judgements in wanted.values() for one in judgements}
        read = (record for record in self.of.read_queries() if isinstance(record, Query))
        answers = {query.query_id: query.answers for query in read if query.query_id in judged}
        if answers and not any(answers.values()):
            raise UserError("format sentences: a sentence is relevant by the answer it bears, and no query has answers")
        for document in self.of.read_documents():
            if isinstance(document, Document):  # what is none was reported when the documents were read
                parts = [prepared(sentence) for sentence in _cut(document)]
                for one in wanted.pop(document.doc_id, []):
                    yield from _bearing(one, parts, answers)
        for judgements in wanted.values():
            yield from (Bad("judgement of a missing document", one.place, id=one.doc_id) for one in judgements)


def _cut(document: Document) -> list[str]:
    return sentences(document.text) or [document.text]


def _bearing(judged: Judgement, parts: list[str], answers: dict[str, list[str]]) -> Iterator[Judgement | Bad]:
    """A document's judgement as those of its sentences."""
    if judged.query_id not in answers:
        yield Bad("judgement of a missing query", judged.place, id=judged.query_id)
        return
    bears = matcher(answers[judged.query_id])
    for number, sentence in enumerate(parts, 1):
        if bears(sentence):
            yield judged._replace(doc_id=f"{judged.doc_id}#{number}")
