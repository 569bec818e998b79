"""A loaded reader, which answers queries from the documents that a system retrieves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparring.components.data.answers import matcher, normalize
from sparring.components.data.reading import passage_text, question_text
from sparring.components.data.tables import document_text
from sparring.components.data.tokens import Tokens


class ReaderAnswer(NamedTuple):
    """A reader's answer to a query."""

    text: str
    """Empty if there was no document to read."""
    doc_id: str | None
    """First of the documents that were read whose title or text contains the answer. None if no document does: a reader
    may join words of several."""


class AnswerWriter:
    """Model of a reader."""

    def __init__(
        self, folder: Path, *, precision: str, new_tokens: int, threads: int, batch_tokens: int, cuda: bool
    ) -> None:
        """`new_tokens` is the maximum length of an answer."""
        import torch

        from sparring.components.compute.precision import computed
        from sparring.components.compute.processor import configure_process
        from sparring.components.data.template import Template
        from sparring.components.models.reader import Reader

        configure_process(threads)
        self._device = torch.device("cuda" if cuda else "cpu")
        self._reader = Reader.load(folder).eval().to(self._device)
        self._template = Template.of(self._reader.tokenizer, pairs=False)
        self._precision, self._new_tokens = computed(precision, self._device.type), new_tokens
        self._batch_tokens = batch_tokens

    def __call__(self, queries: Sequence[str], documents: Sequence[dict[str, tuple[str, str]]]) -> list[ReaderAnswer]:
        """Answer each query from its documents, which are titles and texts by id, best first."""
        from sparring.components.compute.precision import autocast
        from sparring.components.models.reader import ReaderInputs, answer_questions

        template = self._reader.config.template
        contents = list(dict.fromkeys(content for of_query in documents for content in of_query.values()))
        rows = {content: row for row, content in enumerate(contents)}
        pairs = [
            np.array([(query, rows[content]) for content in of_query.values()], np.int64).reshape(-1, 2)
            for query, of_query in enumerate(documents)
        ]
        inputs = ReaderInputs(
            self._reader,
            self._template,
            self._tokens([question_text(query, template) for query in queries]),
            self._tokens([passage_text(*content, template) for content in contents]),
        )
        with autocast(self._precision, self._device.type):
            texts = answer_questions(
                self._reader,
                inputs,
                pairs,
                new_tokens=self._new_tokens,
                batch_tokens=self._batch_tokens,
                device=self._device,
            )
        return [ReaderAnswer(text, source(text, of_query)) for text, of_query in zip(texts, documents, strict=True)]

    def _tokens(self, texts: list[str]) -> Tokens:
        ids = self._reader.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        return Tokens.of(ids)


def source(answer: str, documents: dict[str, tuple[str, str]]) -> str | None:
    """Return the first document that contains an answer, as DPR decides it. None if no document does.

    >>> source("Oslo", {"d1": ("Sweden", "Stockholm is its capital."), "d2": ("Norway", "The capital is Oslo.")})
    'd2'
    """
    contains_answer = matcher([answer])
    texts = {doc_id: normalize(document_text(*content)) for doc_id, content in documents.items()}
    return next((doc_id for doc_id, text in texts.items() if contains_answer(text)), None)
