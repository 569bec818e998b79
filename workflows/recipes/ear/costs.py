"""What each system costs (Chuang et al., 2023, section 3.8 and Table 3.11)."""

from dataclasses import dataclass

from sparring.workflows.recipes.ear.config import Kind
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.query_rerankers import Prediction
from sparring.workflows.recipes.ear.setting import Setting
from sparring.workflows.stages.retrieval import Retrieval
from sparring.workflows.store.dag import Step
from sparring.workflows.systems.results import SystemCost, TimeSpent

INDEX_SEARCHED = ("index_seconds", "search_seconds")
"""The share of an approximate search that the index takes, without the exact search that it is compared with."""


@dataclass(frozen=True)
class Costs:
    """The costs of one seed's systems."""

    setting: Setting
    generators: Generators
    expansions: dict[str, Expansions]

    def without_reranker(
        self, dense: str, exact: Retrieval, approximate: Retrieval | None, rm3: Step | None
    ) -> list[SystemCost]:
        """Of the systems without a query reranker; `dense` is what the dense retriever is called."""
        split = self.setting.split
        encoded = TimeSpent(exact.queries(split))
        costs = [
            SystemCost(
                f"{dense} (flat)", (exact.vectors,), retrieve=(encoded, TimeSpent(exact.ranking(split))), measured=dense
            )
        ]
        if approximate is not None:
            assert approximate.index is not None
            searched = TimeSpent(approximate.ranking(split), share=INDEX_SEARCHED)
            index = (approximate.vectors, approximate.index)
            costs.append(SystemCost(f"{dense} ({self.setting.config.hnsw})", index, retrieve=(encoded, searched)))
        costs.append(SystemCost("BM25", self._bm25_index, retrieve=(TimeSpent(self.setting.bm25),)))
        if rm3 is not None:
            costs.append(SystemCost("RM3", (self.setting.collection.term_vectors,), retrieve=(TimeSpent(rm3),)))
        expand = self._expanding(first=True)
        return [*costs, SystemCost("first expansion", self._bm25_index, expand, retrieve=self._retrieving)]

    def of_reranker(self, system: str, kind: Kind, predictions: dict[str, Prediction]) -> SystemCost:
        """Of a query reranker. A retrieval-dependent one (`rd`) retrieves for every expansion before it chooses."""
        rerank: list[TimeSpent] = []
        for name, one in self.expansions.items():
            generated = self._generated(name)
            steps = [predictions[name].tokens, predictions[name].scores, *([one.ranking] if kind == "rd" else [])]
            rerank += [TimeSpent(node, over=generated) for node in steps]
        return SystemCost(system, self._bm25_index, self._expanding(), tuple(rerank), self._retrieving)

    @property
    def _bm25_index(self) -> tuple[Step, ...]:
        return (self.setting.collection.bm25_index,)

    @property
    def _retrieving(self) -> tuple[TimeSpent, ...]:
        return tuple(TimeSpent(one.ranking) for one in self.expansions.values())

    def _generated(self, name: str) -> Step:
        """The step that wrote a generator's expansions, without the question beside them."""
        return self.generators.generate(name, [self.setting.split])

    def _expanding(self, *, first: bool = False) -> tuple[TimeSpent, ...]:
        """Expanding a query, or writing its first expansion alone.

        Where expansions are drawn from what the query retrieves, the first takes as long as all; that retrieval is done
        once for all generators.
        """
        by_feedback = [self.setting.config.generators[name].relevance is not None for name in self.expansions]
        feedback = (TimeSpent(self.setting.bm25),) if any(by_feedback) else ()
        per = ["expansions" if first and not whole else "queries" for whole in by_feedback]
        return (*feedback, *map(TimeSpent, map(self._generated, self.expansions), per))
