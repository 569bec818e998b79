"""How a question and a passage are written for a reader."""

from typing import Literal

from sparring.components.data.tables import document_text

Template = Literal["fid"]
"""The name of a reader's template: `fid` is that of Fusion-in-Decoder's released code (Izacard and Grave, 2021)."""

QUESTION, CONTEXT = "question:", "context:"
"""The texts before a question and before a passage without a template, where the title is the beginning of the passage,
as for every other model."""


def question_text(question: str, template: Template | None) -> str:
    """Write a question as a model reads it.

    >>> question_text("who wrote Emma", "fid")
    'question:who wrote Emma'
    """
    return question if template is None else f"question:{question}"


def passage_text(title: str, text: str, template: Template | None) -> str:
    """Write a document as a model reads it; without a template as every model but a reader does.

    >>> passage_text("Emma", "Emma is a novel by Jane Austen.", "fid")
    'title: Emma context: Emma is a novel by Jane Austen.'
    """
    return document_text(title, text) if template is None else f"title: {title} context: {text}"
