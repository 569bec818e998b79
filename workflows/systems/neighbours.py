"""A retriever whose rankings are reranked by reciprocal nearest neighbours, as a system."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.components.config import UserError, parse
from sparring.components.neighbours.reranking import NeighboursRerankConfig, best
from sparring.components.retrieval.kinds.dense import INDEX
from sparring.components.systems.stages.neighbours import NeighboursStage as Stage
from sparring.workflows.distributed.limits import cores
from sparring.workflows.steps.choose_neighbours import ChooseConfig, chosen
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.system import Cost, Names, System, TimeSpent

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store


@dataclass(frozen=True, eq=False)
class ByNeighbours(System):
    """A retriever reranked by neighbours (Zerveas et al., 2023, section 3.1). The numbers are fixed, or the best ones
    on a split."""

    label: str
    dense: Dense
    config: NeighboursRerankConfig | ChooseConfig
    """The numbers, or the settings of their choice. A split that chooses them is ranked by cross-validation: each query
    with the numbers that are best for other queries."""
    split: str | None = None
    """Split that chooses the numbers for all splits. If None, each split has numbers of its own, chosen by the queries
    of `config.split` or by cross-validation."""
    with_split: bool = True
    """True if labels of steps name the split."""

    stage = "neighbours"
    expense = 3

    @property
    def parts(self) -> Sequence[System]:
        """The retriever."""
        return [self.dense]

    def ranking(self, split: str) -> Step:
        """Rerank the retriever's ranking."""
        if isinstance(self.config, NeighboursRerankConfig):
            return self._reranked(split, self.config)
        if self.split is None:
            return self._choice(split, self.config.split or split)
        choice = self._choice(self.split, self.split)
        return choice if split == self.split else self._reranked(split, choice)

    def _choice(self, split: str, by: str) -> Step:
        """Return the step that chooses numbers by the queries of `by`, and ranks a split with them."""
        assert isinstance(self.config, ChooseConfig)
        dense, splits = self.dense, dict.fromkeys([split, by])
        config = self.config.model_copy(update={"split": None}) if by == split else self.config
        return step(
            f"{self.label} numbers" if self.with_split else self.label,
            chosen,
            data=dense.data,
            vectors=dense.vectors,
            queries=[dense.queries(name) for name in splits],
            rankings=[dense.ranking(name) for name in splits],
            split=split,
            config=config,
        )

    def _reranked(self, split: str, config: NeighboursRerankConfig | Step) -> Step:
        return step(
            f"{self.label} ({split})" if self.with_split else self.label,
            rerank_by_neighbours,
            data=self.dense.data,
            vectors=self.dense.vectors,
            queries=self.dense.queries(split),
            ranking=self.dense.ranking(split),
            config=config,
        )

    def cost(self, split: str) -> Cost:
        """The retriever, and the reranking."""
        return super().cost(split) + Cost(rerank=(TimeSpent(self.ranking(split)),))

    @property
    def chosen(self) -> list[Step]:
        """The step that chose the numbers, if one did for all splits."""
        return [] if self.split is None else [self._choice(self.split, self.split)]

    def check(self) -> None:
        """Raise UserError if each split has numbers of its own."""
        if isinstance(self.config, ChooseConfig) and self.split is None:
            raise UserError(f"{self.label!r} has numbers for its own queries; accepted: one set of numbers for all")

    def describe(self, name: str, store: "Store", names: Names) -> Stage:
        """Describe the numbers. UserError unless the index holds the documents' vectors."""
        from sparring.components.retrieval import index

        numbers = best(store.path(self.chosen[0])) if self.chosen else self.config
        by = self.dense.index
        if by is not None and not index.holds_vectors(index.read(store.path(by) / INDEX, threads=cores(), gpu=False)):
            raise UserError(
                f"search.index: {by.inputs['factory']} holds no document's vector as it is, and neighbours are found "
                "by these; accepted: null, Flat, HNSW32, IVF1024,Flat"
            )
        assert isinstance(numbers, NeighboursRerankConfig)
        context = min(numbers.context, self.dense.k)
        return parse(Stage, {**numbers.model_dump(), "context": context, "of": names(self.dense)}, where="neighbours")
