"""Losses with same-tower negatives: other queries as negatives of a query, other documents of a document.

A same-tower negative is one more candidate in a denominator that also has the row's positive. Without the positive a
loss would have no lower bound; with it none is below 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.listwise import cross_entropy
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(blocks=("query_side", "document_side", "both_directions"))
def samtone(
    scores: Scores,
    *,
    temperature: float = 0.01,
    query_side: bool = True,
    document_side: bool = False,
    both_directions: bool = True,
) -> Tensor:
    """(Q,) SamToNe: in-batch softmax with same-tower negatives (Moiseev et al., 2023, Eq. 2).

    `-log e^{s(q_i, d_i)} / (sum_j e^{s(q_i, d_j)} + sum_{j != i} e^{s(q_i, q_j)})`. By default, as in the paper, this
    adds the losses of both directions and has same-tower negatives on the query side: the other queries are in the
    denominator from query to document. On the document side (section 3.4) the other documents,
    `sum_{j != i} e^{s(d_i, d_j)}`, are in the denominator from document to query. Without either side this is
    `in_batch.both_directions`. With one direction, its denominator has the negatives of both sides.

    Two queries and two documents with all scores 0: three candidates for each query, of which one is another query,
    and two queries for each document.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> blocks = {name: Block(zeros, others) for name in ("query-query", "document-query")}
    >>> samtone(Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks))  # log 3 + log 2
    tensor([1.7918, 1.7918])
    """
    queries = ["query-query"] if query_side else []
    documents = ["document-document"] if document_side else []
    if not both_directions:
        return cross_entropy(scores.joined(*queries, *documents), temperature=temperature)
    to_documents = scores.joined(*queries)
    to_queries = scores.positives().joined("document-query", *documents)
    return cross_entropy(to_documents, temperature=temperature) + cross_entropy(to_queries, temperature=temperature)


@needs(blocks=True)
def pair(scores: Scores, *, temperature: float = 0.01, alpha: float = 0.1, both_directions: bool = False) -> Tensor:
    """(Q,) PAIR (Ren et al., 2021) as Moiseev et al. (2023) compare with it: the plain softmax, mixed with one that
    holds other documents against the document instead of the query.

    `-(1 - alpha) log L_c - alpha log L_P`, where `L_P = e^{s(q_i, d_i)} / (e^{s(q_i, d_i)} + sum_j e^{s(d_i, d_j)})`
    over all documents of the batch that the query does not target, mined negatives too. Moiseev et al. (2023, Eq. 3)
    print L_P without the positive in the denominator; PAIR's public code has it (see `released_pair`). With
    `both_directions` L_c is the sum of both directions: Moiseev et al. train all losses so, but do not say whether
    their PAIR is one of them.

    PAIR trains in two stages: first with this loss, then from there with alpha 0, the plain softmax. Moiseev et al.
    have the first stage only.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> blocks = {"document-candidate": Block(zeros, others)}
    >>> pair(Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks))  # log 2 from either part
    tensor([0.6931, 0.6931])
    """
    among_documents = scores.positives().joined("document-candidate")
    plain = cross_entropy(scores, temperature=temperature)
    if both_directions:
        plain = plain + cross_entropy(scores.positives().joined("document-query"), temperature=temperature)
    return (1 - alpha) * plain + alpha * cross_entropy(among_documents, temperature=temperature)


@needs(blocks=True)
def released_pair(scores: Scores, *, temperature: float = 1.0, alpha: float = 0.1) -> Tensor:
    """(Q,) PAIR as in its public code (Ren et al., 2021; RocketQA's `research/PAIR_ACL2021`, with alpha .1).

    `L_P = e^{s(q_i, d_i)} / (sum_j e^{s(d_i, q_j)} + sum_n e^{s(d_i, n)})`, with j over the queries of the batch and n
    over the mined negatives of all its rows. So the negatives of a document are other queries and mined negatives, not
    the positives of other rows. Without mined negatives L_P is the softmax from document to query of
    `in_batch.both_directions`. The public code has inner products, no temperature, and masks no duplicates
    (`duplicates: count`).

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> blocks = {"document-query": Block(zeros, others), "document-mined": Block(zeros, others)}
    >>> scores = Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks)
    >>> released_pair(scores, alpha=1.0)  # log 3: the positive, the other query and one mined negative
    tensor([1.0986, 1.0986])
    """
    centred = scores.positives().joined("document-query", "document-mined")
    plain = cross_entropy(scores, temperature=temperature)
    return (1 - alpha) * plain + alpha * cross_entropy(centred, temperature=temperature)
