"""Negatives from the tower that a text came from: queries against queries, documents against documents.

A same-tower negative is one more candidate of a row, in one denominator with the row's positive. So none of these
losses is ever negative, and none can be had without the positive in its denominator: it would have no lower bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.listwise import cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def samtone(
    scores: Scores,
    *,
    temperature: float = 0.01,
    query_side: bool = True,
    document_side: bool = False,
    both_directions: bool = True,
) -> Tensor:
    """SamToNe: in-batch softmax with same-tower negatives (paper 000, Eq. 2).

    `-log e^{s(q_i, d_i)} / (sum_j e^{s(q_i, d_j)} + sum_{j != i} e^{s(q_i, q_j)})`. The paper uses it in both
    directions throughout, on the query side by default: its queries join the direction from query to document, and on
    the document side (Sec. 3.4) `sum_{j != i} e^{s(d_i, d_j)}` joins the direction from document to query. The two
    are added up. With neither side it is `in_batch.both_directions`. In one direction both sides join the one
    denominator.
    """
    queries = ["query-query"] if query_side else []
    documents = ["document-document"] if document_side else []
    if not both_directions:
        return cross_entropy(scores.joined(*queries, *documents), temperature=temperature)
    there = cross_entropy(scores.joined(*queries), temperature=temperature)
    back = scores.positives().joined("document-query", *documents)
    return there + cross_entropy(back, temperature=temperature)


def pair(scores: Scores, *, temperature: float = 0.01, alpha: float = 0.1, both_directions: bool = False) -> Tensor:
    """PAIR as paper 000 compares it: the plain softmax, and one in which the document takes its query's place.

    `-(1 - alpha) log L_c - alpha log L_P`, `L_P = e^{s(q_i, d_i)} / (e^{s(q_i, d_i)} + sum_j e^{s(d_i, d_j)})` over
    all documents of the batch that the query does not target, mined ones too. Paper 000 prints L_P without the
    positive in the denominator (Eq. 3), which has no lower bound; PAIR's own code has it there (`released_pair`).
    With `both_directions` L_c is the sum of the two directions, as paper 000 has its losses "throughout"; whether its
    PAIR too it does not say.

    PAIR trains in two stages: with this, then from there with alpha 0, which is the plain softmax. In one stage, as
    paper 000 compares it, it is this alone.
    """
    among_documents = scores.positives().joined("document-candidate")
    plain = cross_entropy(scores, temperature=temperature)
    if both_directions:
        plain = plain + cross_entropy(scores.positives().joined("document-query"), temperature=temperature)
    return (1 - alpha) * plain + alpha * cross_entropy(among_documents, temperature=temperature)


def released_pair(scores: Scores, *, temperature: float = 1.0, alpha: float = 0.1) -> Tensor:
    """PAIR as its public code has it (Ren et al. 2021; RocketQA's `research/PAIR_ACL2021`, where alpha is .1).

    `L_P = e^{s(q_i, d_i)} / (sum_j e^{s(d_i, q_j)} + sum_n e^{s(d_i, n)})`, j over the queries of the batch and n over
    the mined negatives of all its rows. So the document is held against the other queries, and not against the other
    rows' own documents; without mined negatives the second softmax is the way back of `in_batch.both_directions`.
    Scores there are inner products without a temperature. The code masks no duplicates (`duplicates: count`).
    """
    centred = scores.positives().joined("document-query", "document-mined")
    plain = cross_entropy(scores, temperature=temperature)
    return (1 - alpha) * plain + alpha * cross_entropy(centred, temperature=temperature)
