"""SimLM's contrastive loss for fine-tuning: as its paper has it, and as its public code does (paper 001)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.listwise import cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def contrastive(scores: Scores, *, temperature: float = 0.02) -> Tensor:
    """The paper's: each negative against the query and against its document, in one denominator (Eq. 3).

    `-log e^{s(q, d)} / (e^{s(q, d)} + sum_n (e^{s(q, n)} + e^{s(d, n)}))`, n over in-batch and mined negatives.
    """
    return cross_entropy(scores.joined("document-candidate"), temperature=temperature)


def released(
    scores: Scores,
    *,
    temperature: float = 0.02,
    document_query: bool = True,
    query_query: bool = True,
    document_document: bool = True,
) -> Tensor:
    """The public code's: one softmax over four blocks, three of which can be left out by name.

    A row's query against all documents, mined ones too, which is always there for the positive is in it; its
    document against the other queries; its query against the other queries; and its document against the other
    rows' documents, without their mined negatives (which Eq. 3 has). The public code masks no duplicates, which is
    what the term's `duplicates: count` does.
    """
    wanted = {
        "document-query": document_query,
        "query-query": query_query,
        "document-document": document_document,
    }
    return cross_entropy(scores.joined(*(name for name, on in wanted.items() if on)), temperature=temperature)
