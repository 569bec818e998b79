"""Losses over a list of candidates: softmax cross entropy, and distillation from a teacher.

Each returns one value a query, `(Q,)`; the training loop takes the mean over the global batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from components.losses.masking import log_softmax, softmax

if TYPE_CHECKING:
    from torch import Tensor

    from components.scores import Scores


def cross_entropy(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """Softmax cross entropy towards the targets: `-sum_i y_i log softmax(s / temperature)_i`, y summing to 1.

    With one positive a row this is the contrastive loss of DPR and AR2 (paper 004, Eq. 2, whose tau multiplies:
    tau = 1 / temperature) and the ranker's Eq. 7. A row without any target that counts has loss 0.
    """
    target = scores.target.masked_fill(~scores.where, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-12)
    return -(target * log_softmax(scores.student / temperature, scores.where)).sum(-1)


def divergence(scores: Scores, *, temperature: float = 1.0) -> Tensor:
    """KL(targets || student): CODER's loss (paper 003, Algorithm 1, line 9).

    `sum_i y_i log(y_i / softmax(s / temperature)_i)`, y summing to 1. `cross_entropy` less the entropy of the targets:
    the gradients are the same, but this is 0 where the two agree, however soft the targets are. A row without any
    target that counts has loss 0.
    """
    target = scores.target.masked_fill(~scores.where, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-12)
    return cross_entropy(scores, temperature=temperature) + target.xlogy(target).sum(-1)


def distillation(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """Cross entropy of the student's distribution under the teacher's: AR2's regulariser (paper 004, Eq. 12).

    `H(p_phi, p_theta) = -sum_i p_phi(d_i) log p_theta(d_i)` over the positive and the sampled negatives. It differs
    from `kl`, KL(teacher || student), by the teacher's entropy, so gradients are the same.
    """
    if scores.teacher is None:
        raise ValueError("distillation needs a teacher: score the groups with a ranker first")
    teacher = softmax(scores.teacher / teacher_temperature, scores.where)
    return -(teacher * log_softmax(scores.student / temperature, scores.where)).sum(-1)


def kl(scores: Scores, *, temperature: float = 1.0, teacher_temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) over the candidates: SimLM's distillation (paper 001, Eq. 5).

    `sum_i p_i log(p_i / r_i)`: 0 where the two agree, and never negative. The ranker's scores have no temperature
    there, the retriever's the one of its contrastive loss.
    """
    if scores.teacher is None:
        raise ValueError("kl needs a teacher: score the groups with a ranker first")
    teacher = log_softmax(scores.teacher / teacher_temperature, scores.where)
    apart = teacher - log_softmax(scores.student / temperature, scores.where)
    return (teacher.exp() * apart).sum(-1)  # at what does not count the two are 0 apart


def listnet(
    scores: Scores, *, temperature: float = 1.0, target_temperature: float = 1.0, least: float | None = None
) -> Tensor:
    """ListNet: cross entropy of the student's softmax under that of the targets (Cao et al. 2007, top one).

    `-sum_i softmax(y / target_temperature)_i log softmax(s / temperature)_i`. A target of 0 has probability too, as in
    ListNet; with `least` only candidates with at least that target do, as CODER trains (paper 003, whose KL differs
    by the entropy of the targets, so gradients are the same).
    """
    relevant = scores.where if least is None else scores.where & (scores.target >= least)
    target = softmax(scores.target / target_temperature, relevant)
    return -(target * log_softmax(scores.student / temperature, scores.where)).sum(-1)
