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
    """Compute the softmax cross entropy with the targets: (Q,).

    `-sum_i y_i log softmax(s / temperature)_i`, with targets y scaled to sum to 1. With one positive this is the
    contrastive loss of DPR (Karpukhin et al., 2020, Eq. 2), of AR2's retriever (Zhang et al., 2022, Eq. 2, where tau is
    1 / temperature) and of AR2's ranker (Eq. 7). A row without targets has loss 0.

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
    """Compute CODER's loss KL(targets || student): (Q,). Source: Zerveas et al. (2023, Algorithm 1, line 9).

    `sum_i y_i log(y_i / softmax(s / temperature)_i)`, with targets y scaled to sum to 1. This is `cross_entropy` minus
    the entropy of the targets, so the gradients are equal. Unlike `cross_entropy`, it is 0 if the student matches soft
    targets. A row without targets has loss 0.

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
    """Compute the cross entropy of the student under the teacher's distribution: (Q,).

    This is AR2's distillation regulariser (Zhang et al., 2022, Eq. 12):
    `H(p_phi, p_theta) = -sum_i p_phi(d_i) log p_theta(d_i)` over the positive and the sampled negatives. It equals
    `kl` plus the teacher's entropy, so the gradients are equal.

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
    """Compute KL(teacher || student) over the candidates: (Q,). Source: SimLM (Wang et al., 2023, Eq. 5).

    `sum_i p_i log(p_i / r_i)` with the teacher's distribution p and the student's r. The loss is at least 0, and 0 if
    they agree. In SimLM the ranker's scores have no temperature. The retriever's scores have the temperature of its
    contrastive loss.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> student, target, where = torch.tensor([[4.0, 3.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
    >>> kl(Scores(student, target, where, teacher=torch.tensor([[2.0, 1.0]])))
    tensor([0.])
    """
    teacher = log_softmax(scores.taught("kl") / teacher_temperature, scores.where)
    log_ratio = teacher - log_softmax(scores.student / temperature, scores.where)
    return (teacher.exp() * log_ratio).sum(-1)  # log_ratio is 0 at candidates that do not count


@needs(teacher=True)
def symmetric_kl(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """Compute R-Drop's regulariser (Q,): the mean of KL(a || b) and KL(b || a) of two passes a and b.

    `sum_i (a_i - b_i) (log a_i - log b_i) / 2` (Liang et al., 2021, section 2.1). Use it `over: passes`: a ranker
    scores the same candidates twice with different dropout. a is the student's distribution, and b the teacher's. Both
    have gradients.

    SimLM's public code adds this term to its ranker's loss, but the paper does not mention it. A weight of 1 next to
    `cross_entropy` gives the public code's sum. R-Drop's paper sums the cross entropies of both passes, so its alpha
    is a weight of alpha / 2 here.

    >>> import torch
    >>> from sparring.components.scores import Scores
    >>> a, b, where = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]), torch.tensor([[True, True]])
    >>> symmetric_kl(Scores(a, torch.tensor([[1.0, 0.0]]), where, teacher=b))
    tensor([0.1155])
    """
    if scores.teacher is None:
        raise ValueError("symmetric_kl compares two passes of a ranker. Use `over: passes`.")
    first, second = (log_softmax(logits / temperature, scores.where) for logits in (scores.student, scores.teacher))
    return ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2  # 0 at candidates that do not count


def listnet(
    scores: Scores, *, temperature: float = 1.0, target_temperature: float = 1.0, least: float | None = None
) -> Tensor:
    """Compute ListNet's top-one loss (Q,): cross entropy of the student under the softmax of the targets.

    `-sum_i softmax(y / target_temperature)_i log softmax(s / temperature)_i` (Cao et al., 2007). A target of 0 has a
    positive probability. With `least`, only candidates whose target is at least `least` have a probability, as in CODER
    (Zerveas et al., 2023). CODER's KL differs by the entropy of the targets, so its gradients are equal.

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
