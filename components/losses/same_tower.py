"""Losses with same-tower negatives: queries as negatives of a query, and documents as negatives of a document.

A same-tower negative is an additional candidate in a softmax denominator. The denominator always contains the row's
positive too, so the loss is at least 0. Without the positive it would have no lower bound.
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
    """Compute SamToNe's in-batch softmax with same-tower negatives (Q,). Source: Moiseev et al. (2023, Eq. 2).

    `-log e^{s(q_i, d_i)} / (sum_j e^{s(q_i, d_j)} + sum_{j != i} e^{s(q_i, q_j)})`. The defaults are the paper's: the
    losses from query to document and from document to query are added, and `query_side` adds the remaining queries to
    the denominator from query to document. `document_side` (section 3.4) adds the remaining documents,
    `sum_{j != i} e^{s(d_i, d_j)}`, to the denominator from document to query. If both sides are off, this is
    `in_batch.both_directions`. If `both_directions` is off, the only denominator has the negatives of both sides.

    With two queries, two documents and all scores 0, a query has three candidates (two documents and a query). A
    document has two (both queries):

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
    """Compute PAIR (Ren et al., 2021) in the form of Moiseev et al. (2023): (Q,).

    `-(1 - alpha) log L_c - alpha log L_P`. L_c is the plain softmax of the query over documents. In
    `L_P = e^{s(q_i, d_i)} / (e^{s(q_i, d_i)} + sum_j e^{s(d_i, d_j)})` the negatives are scored against the row's
    document. They are all documents of the batch that the query does not target, including mined negatives.

    Moiseev et al. (2023, Eq. 3) print L_P without the positive in the denominator. PAIR's public code includes the
    positive (see `released_pair`), and so does this function. With `both_directions`, L_c also has the loss from
    document to query. Moiseev et al. train their losses in both directions, but do not say whether PAIR is included.

    PAIR has two training stages: this loss, and then the plain softmax (`alpha: 0`). Moiseev et al. use only the first.

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
    """Compute PAIR as in its public code (RocketQA's `research/PAIR_ACL2021`): (Q,). Paper: Ren et al. (2021).

    The mixture is that of `pair`, with `L_P = e^{s(q_i, d_i)} / (sum_j e^{s(d_i, q_j)} + sum_n e^{s(d_i, n)})`. j runs
    over the queries of the batch, and n over the mined negatives of all its rows. The positives of the remaining rows
    are not among the negatives. Without mined negatives, L_P is the softmax from document to query of
    `in_batch.both_directions`. The public code uses alpha .1, inner products and no temperature, and counts duplicates
    (`duplicates: count`).

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> blocks = {"document-query": Block(zeros, others), "document-mined": Block(zeros, others)}
    >>> scores = Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks)
    >>> released_pair(scores, alpha=1.0)  # log 3: the positive, the second query and one mined negative
    tensor([1.0986, 1.0986])
    """
    centred = scores.positives().joined("document-query", "document-mined")
    plain = cross_entropy(scores, temperature=temperature)
    return (1 - alpha) * plain + alpha * cross_entropy(centred, temperature=temperature)
