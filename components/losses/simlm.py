"""SimLM's contrastive loss for fine-tuning, of its paper and of its public code (Wang et al., 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.listwise import cross_entropy
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(blocks=True)
def contrastive(scores: Scores, *, temperature: float = 0.02, warmup: int = 0) -> Tensor:
    """(Q,) the paper's loss: each negative counts twice in the denominator, once with the query's score and once with
    its document's (Eq. 3).

    `-log e^{s(q, d)} / (e^{s(q, d)} + sum_n (e^{s(q, n)} + e^{s(d, n)}))`, n over in-batch and mined negatives.
    `warmup` is as in `released`.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> blocks = {"document-candidate": Block(zeros, others)}
    >>> contrastive(Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks))  # log 3
    tensor([1.0986, 1.0986])
    """
    temperature = _warmed_up(temperature, scores.update, warmup)
    return cross_entropy(scores.joined("document-candidate"), temperature=temperature)


@needs(blocks=("document_query", "query_query", "document_document"))
def released(
    scores: Scores,
    *,
    temperature: float = 0.02,
    warmup: int = 0,
    document_query: bool = True,
    query_query: bool = True,
    document_document: bool = True,
) -> Tensor:
    """(Q,) the public code's loss: one softmax over four blocks of scores, three of which can be left out by name.

    Always there is the row's query against all documents, mined negatives too, as the positive is among them. Then come
    its document against the other queries, its query against the other queries, and its document against the other
    rows' documents, without their mined negatives (which Eq. 3 has). The public code masks no duplicates
    (`duplicates: count`). Its script for Natural Questions has a `warmup`: the temperature
    falls from 1 in so many updates.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> from sparring.components.scores import Block
    >>> zeros, others = torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool)
    >>> names = ("document-query", "query-query", "document-document")
    >>> blocks = {name: Block(zeros, others) for name in names}
    >>> released(Scores(zeros, torch.eye(2), torch.ones(2, 2, dtype=torch.bool), others=blocks))  # log(2 + 3)
    tensor([1.6094, 1.6094])
    """
    temperature = _warmed_up(temperature, scores.update, warmup)
    blocks = {
        "document-query": document_query,
        "query-query": query_query,
        "document-document": document_document,
    }
    return cross_entropy(scores.joined(*(name for name, used in blocks.items() if used)), temperature=temperature)


def _warmed_up(temperature: float, update: int, warmup: int) -> float:
    """The temperature after `update` updates: it falls from 1 to `temperature`, reached after `warmup` of them.

    Its inverse, which multiplies the scores, is `max(1, min(1, update / warmup) / temperature)`, as in SimLM's public
    code; the paper's temperature is constant.

    >>> [_warmed_up(0.02, update, 1000) for update in (0, 20, 500, 1000, 5000)]
    [1.0, 1.0, 0.04, 0.02, 0.02]
    """
    if update >= warmup:
        return temperature
    return 1 / max(1.0, update / warmup / temperature)
