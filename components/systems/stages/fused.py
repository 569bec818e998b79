"""Fusion of rankings, as a stage."""

from typing import Any, Literal

from pydantic import Field

from sparring.components.config import listing
from sparring.components.retrieval.fusion import FusionConfig, fuse
from sparring.components.retrieval.interpolation import NOISE
from sparring.components.systems.rankings import as_lists, as_ranking
from sparring.components.systems.searching import LaterStage, Search

LISTS = """\
lists = [scores[name] for name in stage["of"]]
"""
SHARES = """\
shares = SHARES
"""
TWO = '(1 - stage["weight"], stage["weight"])'
INTERLEAVED = """\
places = [{id: (rank, number) for rank, id in enumerate(own)} for number, own in enumerate(lists)]
ranked = sorted(set().union(*lists), key=lambda id: min(own[id] for own in places if id in own))[: stage["depth"]]
scores["NAME"] = {id: 1 / rank for rank, id in enumerate(ranked, 1)}
"""
RECIPROCAL = """\
# Documents with equal scores share the mean of their ranks.
shared = lambda score, own: own.index(score) + (own.count(score) + 1) / 2
parts = [{id: share / (stage["c"] + shared(score, list(own.values()))) for id, score in own.items()}
         for own, share in zip(lists, shares)]
fused = {id: sum(own.get(id, 0) for own in parts) for id in set().union(*lists)}
"""
SCALED = f"""\
# BM25's scores are divided by the highest, a retriever's put from 0 to 1. A document that a list lacks has 0, but the
# lowest score if BM25's list was cut.
def scaled(own, words):
    low, high = min(own.values(), default=0), max(own.values(), default=0)
    span = max(high - low, {NOISE} * max(abs(low), abs(high))) or 1
    return {{id: s / high if words else 1 - (high - s) / span for id, s in own.items()}}
words = WORDS
lists = [scaled(own, of_words) for own, of_words in zip(lists, words)]
rest = [min(own.values()) if of_words and len(own) >= stage["depth"] else 0 for own, of_words in zip(lists, words)]
"""
UNSCALED = """\
# A document that a list lacks has the list's lowest score, but 0 if BM25's list was not cut.
cut = [not of_words or len(own) >= stage["depth"] for own, of_words in zip(lists, WORDS)]
rest = [min(own.values(), default=0) if is_cut else 0 for own, is_cut in zip(lists, cut)]
"""
INTERPOLATED = """\
import numpy as np
total = lambda id: sum(share * own.get(id, low) for share, own, low in zip(shares, lists, rest))
fused = {id: np.float32(total(id)) for id in set().union(*lists)}
"""
BEST_FUSED = """\
scores["NAME"] = dict(sorted(fused.items(), key=lambda hit: (-hit[1], hit[0]))[: stage["depth"]])
"""


class FusedStage(FusionConfig, LaterStage):
    """Fusion of two or more rankings."""

    kind: Literal["fused"] = "fused"
    of: list[str] = Field(min_length=2)
    """Names of the fused stages. With two, `weight` belongs to the second."""

    @property
    def inputs(self) -> list[str]:
        return self.of

    def is_lexical(self, system: Any) -> bool:
        """Tell whether all scores are BM25's."""
        return all(map(system.is_lexical, self.of))

    def check(self, name: str, config: Any) -> None:
        """Raise Invalid if the weight fits another number of stages."""
        self.weights(len(self.of))

    def reach(self, config: Any) -> int:
        """Return the number of documents that are kept."""
        return self.depth

    def rank(self, name: str, search: Search) -> None:
        """Fuse the rankings of the stages."""
        with search.seconds.of("fuse"):
            lexical = [place for place, source in enumerate(self.of) if search.config.is_lexical(source)]
            fused = fuse([as_ranking(search.rankings[source]) for source in self.of], self, lexical=lexical)
            search.add(name, as_lists(fused, len(search.texts)))

    def sentence(self, name: str) -> str:
        """Name the fused stages."""
        lists = listing(f"`{part}`" for part in self.of)
        return f"`{name}`: {lists} are fused ({self.how}); {self.depth} documents are kept."

    def lines(self, system: Any, name: str) -> str:
        """Fuse the scores of the stages."""
        return LISTS + fusion_lines(self, [system.is_lexical(source) for source in self.of])


def fusion_lines(fusion: FusionConfig, lexical: list[bool] | None) -> str:
    """Return the lines that fuse `lists`. `lexical` says which are BM25's. If None, all are, and their number depends
    on the query."""
    if fusion.how == "interleave":
        return INTERLEAVED
    share = "1" if fusion.how == "reciprocal" else "1 / max(1, len(lists))"
    two = lexical is not None and len(lexical) == 2
    lines = SHARES.replace("SHARES", TWO if two else f"[{share}] * len(lists)")
    if fusion.how == "reciprocal":
        return lines + RECIPROCAL + BEST_FUSED
    words = "[True] * len(lists)" if lexical is None else str(lexical)
    scaled = SCALED if fusion.normalise == "max-min" else UNSCALED
    return lines + scaled.replace("WORDS", words) + INTERPOLATED + BEST_FUSED


Stage = FusedStage
