"""Losses over a list of candidates: softmax cross entropy, and distillation from a teacher.

The training loop takes the mean of the (Q,) values over the global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring.components.losses.masking import log_softmax, softmax
from sparring.components.needs import needs

if TYPE_CHECKING:
    from torch import Tensor

    from sparring.components.scores import Scores


def cross_entropy(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """(Q,) softmax cross entropy: `-sum_i y_i log softmax(s / temperature)_i`, with targets y scaled to sum to 1.

    With one positive this is the contrastive loss of DPR (Karpukhin et al., 2020, Eq. 2), of AR2's retriever (Zhang et
    al., 2022, Eq. 2, where tau is 1 / temperature) and of its ranker (Eq. 7). A row without targets has loss 0.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, True, False]])
    >>> cross_entropy(Scores(torch.tensor([[2.0, 2.0, 5.0]]), target, where))  # log 2: the third does not count
    tensor([0.6931])
    """
    target = scores.target.masked_fill(~scores.where, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-12)
    return -(target * log_softmax(scores.student / temperature, scores.where)).sum(-1)


def divergence(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """(Q,) KL(targets || student): CODER's loss (Zerveas et al., 2023, Algorithm 1, line 9).

    `sum_i y_i log(y_i / softmax(s / temperature)_i)`, with targets y scaled to sum to 1. This is `cross_entropy` minus
    the entropy of the targets, so gradients are the same, but 0 if the two agree, however soft the targets are. A row
    without targets has loss 0.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> target, where = torch.tensor([[0.5, 0.5]]), torch.tensor([[True, True]])
    >>> divergence(Scores(torch.tensor([[3.0, 3.0]]), target, where))
    tensor([0.])
    """
    target = scores.target.masked_fill(~scores.where, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-12)
    return cross_entropy(scores, temperature=temperature) + target.xlogy(target).sum(-1)


@needs(teacher=True)
def distillation(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """(Q,) cross entropy of the student's distribution under the teacher's: AR2's distillation regulariser
    (Zhang et al., 2022, Eq. 12).

    `H(p_phi, p_theta) = -sum_i p_phi(d_i) log p_theta(d_i)` over the positive and the sampled negatives. This is `kl`
    plus the teacher's entropy, so gradients are the same.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> student, target, where = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> distillation(Scores(student, target, where, teacher=torch.tensor([[2.0, 1.0]])))
    tensor([0.6931])
    """
    teacher = softmax(scores.taught("distillation") / teacher_temperature, scores.where)
    return -(teacher * log_softmax(scores.student / temperature, scores.where)).sum(-1)


@needs(teacher=True)
def kl(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """(Q,) KL(teacher || student) over the candidates: SimLM's distillation loss (Wang et al., 2023, Eq. 5).

    `sum_i p_i log(p_i / r_i)`, never negative and 0 if the two agree. In SimLM the ranker's scores have no temperature
    and the retriever's have that of its contrastive loss.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> student, target, where = torch.tensor([[4.0, 3.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> kl(Scores(student, target, where, teacher=torch.tensor([[2.0, 1.0]])))
    tensor([0.])
    """
    teacher = log_softmax(scores.taught("kl") / teacher_temperature, scores.where)
    log_ratio = teacher - log_softmax(scores.student / temperature, scores.where)
    return (teacher.exp() * log_ratio).sum(-1)  # the ratio is 1 at what does not count


@needs(teacher=True)
def symmetric_kl(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """(Q,) the mean of KL(a || b) and KL(b || a), of two passes a and b over the same candidates: R-Drop's regulariser
    (Liang et al., 2021, section 2.1), which SimLM's public code adds to its ranker's loss and its paper does not name.

    `sum_i (a_i - b_i) (log a_i - log b_i) / 2`, where a is the student's distribution and b, which has a gradient too,
    the teacher's. A ranker's view `passes` has both: they differ by their dropout. Weight 1 beside `cross_entropy` is
    the public code's sum; R-Drop's paper adds up the cross entropies of both passes, so its alpha is a weight of
    alpha / 2.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> a, b, where = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([[True, True]])
    >>> symmetric_kl(Scores(a, torch.tensor([[1.0, 0.0]]), where, teacher=b))
    tensor([0.1155])
    """
    if scores.teacher is None:
        raise ValueError("symmetric_kl compares two passes of a ranker: `over: passes`")
    first, second = (log_softmax(logits / temperature, scores.where) for logits in (scores.student, scores.teacher))
    return ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2  # both are 0 at what does not count


def listnet(
    scores: Scores, *, temperature: float = 1.0, target_temperature: float = 1.0, least: float | None = None
) -> Tensor:
    """(Q,) ListNet: cross entropy of the student's softmax under that of the targets (Cao et al., 2007, top one).

    `-sum_i softmax(y / target_temperature)_i log softmax(s / temperature)_i`. As in ListNet a target of 0 has a
    probability too. With `least` only candidates with at least that target do, as in CODER (Zerveas et al., 2023, whose
    KL differs by the targets' entropy, so gradients are the same).

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> values = torch.tensor([[2.0, 1.0, 0.0]])
    >>> scores = Scores(student=values, target=values, where=torch.ones(1, 3, dtype=torch.bool))
    >>> listnet(scores), listnet(scores, least=1.0)
    (tensor([0.8324]), tensor([0.6765]))
    """
    relevant = scores.where if least is None else scores.where & (scores.target >= least)
    target = softmax(scores.target / target_temperature, relevant)
    return -(target * log_softmax(scores.student / temperature, scores.where)).sum(-1)
