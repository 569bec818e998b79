"""A ranker, as a stage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from sparring.components.config import listing
from sparring.components.retrieval.stage import StageConfig

JUDGED = """\
from sentence_transformers import CrossEncoder
ranked = list(scores["OF"])
judged = dict(zip(ranked, CrossEncoder(stage["folder"], trust_remote_code=True).predict(
    [(query, documents[id]) for id in ranked[: stage["depth"]]]).tolist()))
"""
WEIGHTED = """\
# A document that a list lacks has the list's lowest score, but 0 if BM25 found fewer documents than it was asked for.
lowest = lambda name: 0 if stages[name]["kind"] == "lexical" and len(scores[name]) < stages[name]["k"] else min(
    scores[name].values(), default=0)
prior = lambda id: [w * scores[name].get(id, lowest(name)) for name, w in stage["priors"].items()]
judged = {id: sum([stage["weight"] * score, *prior(id)]) for id, score in judged.items()}
"""
RERANKED = """\
first = dict(sorted(judged.items(), key=lambda hit: -hit[1]))
scores["NAME"] = first | {id: min(first.values()) - n for n, id in enumerate(ranked[len(first):], 1)}
"""


class RankerStage(StageConfig):
    """A ranker that reorders the first documents of a ranking. The remaining documents follow in their old order."""

    kind: Literal["ranker"] = "ranker"
    of: str
    """Name of the stage whose ranking is reordered."""
    folder: str = "ranker"
    """Folder of the ranker."""
    depth: int = Field(ge=1)
    """Number of documents that it reorders."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster."""
    weight: float = 1.0
    """Weight of the ranker's score in the sum that documents are ordered by."""
    priors: dict[str, float] = {}
    """Weight of other stages' scores in that sum, by stage. A document that a ranking lacks has the ranking's lowest
    score, or 0 if BM25 found fewer documents than its `k`."""

    @property
    def inputs(self) -> list[str]:
        return [self.of, *self.priors]

    @property
    def contents(self) -> dict[str, str]:
        return {self.folder: "the ranker, for `CrossEncoder`; scores are logits"}

    @property
    def precisions(self) -> set[str]:
        return {self.precision}

    def sentence(self, name: str) -> str:
        """Say what orders the documents."""
        by = "its scores alone"
        if self.priors:
            by = f"the weighted sum of its scores and those of {listing(f'`{part}`' for part in self.priors)}"
        return f"`{name}`: the ranker reorders the first {self.depth} documents of `{self.of}`, by {by}."

    def lines(self, system: Any, name: str) -> str:
        """Score pairs, and add the weighted scores of the priors."""
        return JUDGED.replace("OF", self.of) + (WEIGHTED if self.priors else "") + RERANKED

    def open(self, folder: Path, options: Mapping[str, Any]) -> Any:
        """Open the ranker."""
        from sparring.components.systems.loaded import PairScorer

        return PairScorer(folder / self.folder, precision=self.precision, **options)
