"""A ranker, as a stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from sparring.components.config import listing
from sparring.components.data.tables import document_text
from sparring.components.systems.rankings import Ranking, reordered
from sparring.components.systems.searching import LaterStage, Search

JUDGED = """\
from sentence_transformers import CrossEncoder
ranked = list(scores["OF"])
judged = dict(zip(ranked, CrossEncoder(stage["folder"]CODE).predict(
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


class RankerStage(LaterStage):
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
    own_code: bool = Field(False, exclude_if=lambda own_code: not own_code)
    """True if the folder has code that sentence-transformers runs only with `trust_remote_code`."""
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

    @property
    def depth_read(self) -> int:
        return self.depth

    def rank(self, name: str, search: Search) -> None:
        """Put each query's first documents in the order of the ranker's scores, or of the weighted sums."""
        rankings = search.rankings
        first = [[doc_id for doc_id, _ in ranking[: self.depth]] for ranking in rankings[self.of]]
        with search.seconds.of("text"):
            documents = search.documents.texts([doc_id for ids in first for doc_id in ids])
        with search.seconds.of("rank"):
            texts = [[document_text(*documents[doc_id]) for doc_id in ids] for ids in first]
            judged = zip(first, search.parts[name](search.texts, texts), strict=True)
            scored = [list(zip(ids, scores.tolist(), strict=True)) for ids, scores in judged]
            ordered = []
            for query, scores in enumerate(scored):
                if self.priors:
                    stages = search.config.stages
                    priors = [
                        Prior(rankings[source][query], weight, stages[source].lexical_k)
                        for source, weight in self.priors.items()
                    ]
                    scores = weighted(scores, self.weight, priors)
                best_first = sorted(scores, key=lambda hit: -hit[1])
                ordered.append(reordered(rankings[self.of][query], best_first))
            search.add(name, ordered, scored)

    def sentence(self, name: str) -> str:
        """Say what orders the documents."""
        by = "its scores alone"
        if self.priors:
            by = f"the weighted sum of its scores and those of {listing(f'`{part}`' for part in self.priors)}"
        return f"`{name}`: the ranker reorders the first {self.depth} documents of `{self.of}`, by {by}."

    def lines(self, system: Any, name: str) -> str:
        """Score pairs, and add the weighted scores of the priors."""
        judged = JUDGED.replace("OF", self.of).replace("CODE", ", trust_remote_code=True" if self.own_code else "")
        return judged + (WEIGHTED if self.priors else "") + RERANKED

    def open(self, folder: Path, options: Mapping[str, Any]) -> Any:
        """Open the ranker."""
        from sparring.components.systems.loaded import PairScorer

        return PairScorer(folder / self.folder, precision=self.precision, **options)


class Prior(NamedTuple):
    """A query's ranking whose scores are added to a ranker's."""

    ranking: Ranking
    weight: float
    lexical_k: int | None
    """For BM25, the number of documents that were requested."""

    @property
    def lowest(self) -> float:
        """Score of a document that the ranking lacks: the lowest, or 0 if BM25 has fewer documents than requested."""
        complete = self.lexical_k is not None and len(self.ranking) < self.lexical_k
        return 0.0 if complete else min((score for _, score in self.ranking), default=0.0)


def weighted(scored: Ranking, weight: float, priors: Sequence[Prior]) -> Ranking:
    """Add the weighted scores of priors to a ranker's.

    >>> priors = [Prior([("a", 0.5)], 2, None), Prior([("b", 8.0)], 0.5, lexical_k=2)]
    >>> weighted([("a", 1.0), ("b", 2.0)], 1, priors)
    [('a', 2.0), ('b', 7.0)]
    """
    tables = [(dict(prior.ranking), prior.weight, prior.lowest) for prior in priors]
    return [
        (doc_id, sum([weight * score, *(prior * scores.get(doc_id, low) for scores, prior, low in tables)]))
        for doc_id, score in scored
    ]


Stage = RankerStage
