"""What a system's queries cost, read off the steps that made its ranking."""

from collections.abc import Iterable, Iterator

from sparring.workflows.steps.choose_neighbours import chosen
from sparring.workflows.steps.encode import encode_queries
from sparring.workflows.steps.fit_fusion import fit_fusion
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.steps.imported_ranking import rank_from_file
from sparring.workflows.steps.lucene import lucene_feedback, lucene_search
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.steps.prior import add_prior, fit_prior
from sparring.workflows.steps.quantise import rescore
from sparring.workflows.steps.score import rerank
from sparring.workflows.steps.search import candidates, search
from sparring.workflows.store.dag import Step
from sparring.workflows.systems.results import System, SystemCost, TimeSpent

FROM_CHEAP_TO_DEAR = (
    (lucene_search,),
    (lucene_feedback,),
    (search, rescore, fuse, fit_fusion),
    (rerank_by_neighbours, chosen),
    (rerank, add_prior, fit_prior),
)
"""The step that a system ends with: BM25; BM25 with feedback, which searches twice and reads what it found; a
retriever, also with BM25 beside it, which needs no further model; its neighbours; a ranker."""
FOR_QUERIES = (
    lucene_search,
    lucene_feedback,
    encode_queries,
    search,
    candidates,
    rescore,
    rerank_by_neighbours,
    fuse,
    rerank,
    add_prior,
)
"""Steps that every query needs."""


def of_ours(systems: Iterable[System]) -> list[System]:
    """The systems that are played here; what the others take, whose rankings are read from files, nobody has said."""
    return [one for one in systems if one.ranking is not None and one.ranking.function is not rank_from_file]


def levels(systems: list[System]) -> dict[str, int]:
    """How dear systems are by their names: first what needs no training, then by what they end with. Those whose
    rankings are read from files have no place."""

    def level(system: System) -> int:
        assert system.ranking is not None
        function = system.ranking.function
        ends = next(at for at, kind in enumerate(FROM_CHEAP_TO_DEAR) if function in kind)
        return system.trained * len(FROM_CHEAP_TO_DEAR) + ends

    return {system.name: level(system) for system in of_ours(systems)}


def cost_of(system: System) -> SystemCost:
    """What a system takes to build, and for a query."""
    assert system.ranking is not None
    steps = list({node.fingerprint: node for node in _for_queries(system.ranking)}.values())
    reranked = [node for node in steps if node.function in (rerank, rerank_by_neighbours)]
    last = [node for node in steps if node.function is add_prior]
    searched = [
        node.inputs["index"] or node.inputs["vectors"] for node in steps if node.function in (search, candidates)
    ]
    lexical = [node.inputs["index"] for node in steps if node.function in (lucene_search, lucene_feedback)]
    return SystemCost(
        system.name,
        tuple({node.fingerprint: node for node in [*lexical, *searched]}.values()),
        rerank=(*map(TimeSpent, reranked), *(TimeSpent(node, over=reranked[-1]) for node in last)),
        retrieve=tuple(TimeSpent(node) for node in steps if node not in [*reranked, *last]),
        models=tuple(
            node.inputs["retriever" if node.function is encode_queries else "ranker"]
            for node in steps
            if node.function in (encode_queries, rerank)
        ),
    )


def _for_queries(node: Step) -> Iterator[Step]:
    """The steps that every query needs, in order; what only fits weights is none."""
    for before in node.upstream:
        if before.function in FOR_QUERIES:
            yield from _for_queries(before)
    yield node
