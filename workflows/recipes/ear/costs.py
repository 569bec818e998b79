"""Costs of each system (Chuang et al., 2023, section 3.8 and Table 3.11)."""

from dataclasses import dataclass

from sparring.workflows.recipes.ear.config import Kind
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.query_rerankers import Prediction
from sparring.workflows.recipes.ear.setting import Setting
from sparring.workflows.store.dag import Step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.rows import SystemCost
from sparring.workflows.systems.system import TimeSpent

INDEX_SEARCHED = ("index_seconds", "search_seconds")
"""Share of an approximate search that the index takes, without the exact search that it is compared with."""


@dataclass(frozen=True)
class Costs:
    """The costs of one seed's systems."""

    setting: Setting
    generators: Generators
    expansions: dict[str, Expansions]

    def without_reranker(self, dense: str, exact: Dense, approximate: Dense | None) -> list[SystemCost]:
        """Return the costs of the systems without a query reranker. `dense` is the dense retriever's name."""
        split = self.setting.split
        encoded = TimeSpent(exact.queries(split))
        searched = (encoded, TimeSpent(exact.ranking(split)))
        costs = [SystemCost(system=f"{dense} (flat)", index=(exact.vectors,), retrieve=searched, measured=dense)]
        if approximate is not None:
            assert approximate.index is not None
            searched = (encoded, TimeSpent(approximate.ranking(split), share=INDEX_SEARCHED))
            index = (approximate.vectors, approximate.index)
            costs.append(SystemCost(system=f"{dense} ({self.setting.config.hnsw})", index=index, retrieve=searched))
        bm25 = self.setting.collection.lexical
        costs.append(SystemCost(system="BM25", **vars(bm25.cost(split))))
        if self.setting.config.rm3 is not None:
            rm3 = self.setting.collection.with_feedback(self.setting.config.rm3)
            costs.append(SystemCost(system="RM3", **vars(rm3.cost(split))))
        expand = self._expanding(first=True)
        first = SystemCost(system="first expansion", index=self.index, expand=expand, retrieve=self._retrieving)
        return [*costs, first]

    def of_reranker(self, system: str, kind: Kind, predictions: dict[str, Prediction]) -> SystemCost:
        """Return the cost of a query reranker. A retrieval-dependent one (`rd`) retrieves for every expansion before it
        chooses."""
        rerank: list[TimeSpent] = []
        for name, output in self.expansions.items():
            generated = self._generated(name)
            steps = [predictions[name].tokens, predictions[name].scores, *([output.ranking] if kind == "rd" else [])]
            rerank += [TimeSpent(node, over=generated) for node in steps]
        return SystemCost(
            system=system,
            index=self.index,
            expand=self._expanding(),
            rerank=tuple(rerank),
            retrieve=self._retrieving,
        )

    @property
    def index(self) -> tuple[Step, ...]:
        """The index that BM25 searches."""
        return (self.setting.collection.bm25_index,)

    @property
    def _retrieving(self) -> tuple[TimeSpent, ...]:
        return tuple(TimeSpent(output.ranking) for output in self.expansions.values())

    def _generated(self, name: str) -> Step:
        """Return the step that wrote a generator's expansions, without the question among them."""
        return self.generators.generate(name, [self.setting.split])

    def _expanding(self, *, first: bool = False) -> tuple[TimeSpent, ...]:
        """Return the time of expanding a query, or of writing its first expansion alone.

        If expansions are sampled from what the query retrieves, the first takes as long as all. That retrieval is done
        once for all generators.
        """
        by_feedback = [self.setting.config.generators[name].relevance is not None for name in self.expansions]
        feedback = (TimeSpent(self.setting.bm25),) if any(by_feedback) else ()
        per = ["expansions" if first and not whole else "queries" for whole in by_feedback]
        return (*feedback, *map(TimeSpent, map(self._generated, self.expansions), per))
