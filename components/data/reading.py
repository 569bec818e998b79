"""Formatting of questions and passages for a reader."""

from typing import Literal

from sparring.components.data.tables import document_text

Template = Literal["fid"]
"""Name of a reader's template. `fid` is the template of Fusion-in-Decoder's public code (Izacard and Grave, 2021)."""

QUESTION, CONTEXT = "question:", "context:"
"""The texts before a question and before a passage without a template, where the title is the beginning of the passage,
as for every other model."""


def question_text(question: str, template: Template | None) -> str:
    """Format a question by a template. If `template` is None, return it unchanged.

    >>> question_text("who wrote Emma", "fid")
    'question:who wrote Emma'
    """
    return question if template is None else f"question:{question}"


def passage_text(title: str, text: str, template: Template | None) -> str:
    """Format a document by a template. If `template` is None, join title and text, as for all models except readers.

    >>> passage_text("Emma", "Emma is a novel by Jane Austen.", "fid")
    'title: Emma context: Emma is a novel by Jane Austen.'
    """
    return document_text(title, text) if template is None else f"title: {title} context: {text}"
