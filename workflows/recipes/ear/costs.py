"""Costs of each system (Chuang et al., 2023, section 3.8 and Table 3.11)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparring.workflows.recipes.ear.config import Kind
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.query_rerankers import Prediction
from sparring.workflows.recipes.ear.setting import Setting
from sparring.workflows.store.dag import Step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.rows import SystemCost
from sparring.workflows.systems.system import Cost, System, TimeSpent

INDEX_SEARCHED = ("index_seconds", "search_seconds")
"""Share of an approximate search that the index takes, without the exact search that it is compared with."""


def table(
    setting: Setting, dense: str, exact: Dense, approximate: Dense | None, systems: Mapping[str, System]
) -> list[SystemCost]:
    """List the costs of the dense retriever, of BM25, of RM3, and of the `systems` of expansions. `dense` is the dense
    retriever's name."""
    split = setting.split
    encoded = TimeSpent(exact.queries(split))
    searched = (encoded, TimeSpent(exact.ranking(split)))
    costs = [SystemCost(system=f"{dense} (flat)", index=(exact.vectors,), retrieve=searched, measured=dense)]
    if approximate is not None:
        assert approximate.index is not None
        searched = (encoded, TimeSpent(approximate.ranking(split), share=INDEX_SEARCHED))
        index = (approximate.vectors, approximate.index)
        costs.append(SystemCost(system=f"{dense} ({setting.config.hnsw})", index=index, retrieve=searched))
    compared: dict[str, System] = {"BM25": setting.collection.lexical}
    if setting.config.rm3 is not None:
        compared["RM3"] = setting.collection.with_feedback(setting.config.rm3)
    compared |= systems
    return [*costs, *(SystemCost(system=name, **vars(system.cost(split))) for name, system in compared.items())]


@dataclass(frozen=True)
class ExpansionCosts:
    """The costs of expanding queries by one generator, choosing, and searching."""

    setting: Setting
    generators: Generators
    name: str
    """The generator's."""

    def cost(self, searched: Iterable[TimeSpent], *, first: bool = False, rerank: Iterable[TimeSpent] = ()) -> Cost:
        """Return the cost of systems that search in these steps. `first` is for the first expansion alone."""
        return Cost(
            index=(self.setting.collection.bm25_index,),
            expand=self._expanding(first=first),
            rerank=tuple(rerank),
            retrieve=tuple(searched),
        )

    def reranking(self, expansions: Expansions, kind: Kind, prediction: Prediction) -> list[TimeSpent]:
        """Return the time of a query reranker. A retrieval-dependent one (`rd`) retrieves for every expansion first."""
        steps = [prediction.tokens, prediction.scores, *([expansions.ranking] if kind == "rd" else [])]
        return [self.of_all(node) for node in steps]

    def of_all(self, node: Step) -> TimeSpent:
        """Return the time of a step for all expansions of a query."""
        return TimeSpent(node, over=self._generated)

    @property
    def _generated(self) -> Step:
        """The step that wrote the expansions, without the question beside them."""
        return self.generators.generate(self.name, [self.setting.split])

    def _expanding(self, *, first: bool) -> tuple[TimeSpent, ...]:
        """Return the time of expanding a query, or of writing its first expansion alone.

        If expansions are sampled from what the query retrieves, the first takes as long as all. That retrieval is done
        once for all generators.
        """
        by_feedback = self.setting.config.generators[self.name].relevance is not None
        feedback = (TimeSpent(self.setting.bm25),) if by_feedback else ()
        return (*feedback, TimeSpent(self._generated, "expansions" if first and not by_feedback else "queries"))
