"""Late interaction between the two sides of a pair that was read together.

This file goes with an exported ranker, for sentence-transformers. It needs torch alone.
"""

from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional

CODE, MODULE = Path(__file__), "maxsim.MaxSim"
"""This file, and what it is called in a folder that has it."""
SCALE = 20.0
"""What cosines are multiplied by: one over the usual temperature of a retriever, .05."""


def maxsim(states: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
    """Score pairs (N,) in fp32: the mean over the first text's tokens of the highest cosine with a token of the second,
    times 20 (MaxSim: Khattab and Zaharia, 2020, section 3.3, Eq. 3). There, the texts are read separately.

    `states` are (N, L, H), `mask` and `segments` (N, L): 1 for a token, and 1 for one of the second text. Special
    tokens count as those of their segment.

    >>> states = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [9.0, 9.0]]])
    >>> maxsim(states, torch.tensor([[1, 1, 1, 0]]), torch.tensor([[0, 0, 1, 0]])).tolist()
    [10.0]
    """
    states = functional.normalize(states.float(), dim=-1)
    second = mask.bool() & (segments == 1)
    first = mask.bool() & ~second
    cosines = (states @ states.transpose(1, 2)).masked_fill(~second[:, None, :], -1.0)
    best = cosines.amax(-1) * first
    return SCALE * best.sum(-1) / first.sum(-1).clamp(min=1)


class MaxSim(nn.Module):
    """What sentence-transformers calls for a ranker's score after its Transformer."""

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add the scores."""
        scores = maxsim(features["token_embeddings"], features["attention_mask"], features["token_type_ids"])
        return {**features, "scores": scores.unsqueeze(1)}

    def save(self, *_: Any, **__: Any) -> None:
        """It has no weights."""

    @classmethod
    def load(cls, *_: Any, **__: Any) -> Self:
        """It has no weights."""
        return cls()
