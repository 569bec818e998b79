"""SimLM's contrastive loss for fine-tuning, as in the paper and as in the public code (Wang et al., 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.listwise import cross_entropy
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


@needs(blocks=True)
def contrastive(scores: Scores, *, temperature: float = 0.02, warmup: int = 0) -> Tensor:
    """Compute the paper's contrastive loss (Q,). Source: Wang et al. (2023, Eq. 3).

    `-log e^{s(q, d)} / (e^{s(q, d)} + sum_n (e^{s(q, n)} + e^{s(d, n)}))`, where n runs over in-batch and mined
    negatives. Each negative appears twice: with its score against the query and against the document. `warmup` is as
    in `released`.

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
    """Compute the public code's contrastive loss (Q,): one softmax over up to four blocks of scores.

    The first block is always used: the row's query against all documents of the batch, including mined negatives. Three
    options add blocks: the row's document against the remaining queries (`document_query`), its query against the
    remaining queries (`query_query`), and its document against the documents of the remaining rows
    (`document_document`). Unlike Eq. 3, the last block has no mined negatives.

    The public code counts duplicates (`duplicates: count`). Its script for Natural Questions uses `warmup`: the
    temperature falls from 1 to `temperature` within this number of updates.

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
    """Return the temperature after `update` updates. It falls from 1 to `temperature` within `warmup` updates.

    Its inverse multiplies the scores: `max(1, min(1, update / warmup) / temperature)`, as in SimLM's public code. The
    paper's temperature is constant.

    >>> [_warmed_up(0.02, update, 1000) for update in (0, 20, 500, 1000, 5000)]
    [1.0, 1.0, 0.04, 0.02, 0.02]
    """
    if update >= warmup:
        return temperature
    return 1 / max(1.0, update / warmup / temperature)
