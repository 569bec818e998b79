"""Collects the rows that a recipe measures on one collection."""

from dataclasses import dataclass, field, replace

from sparring.components.evaluation.measures import needs_answers
from sparring.components.sources.base import Source
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig, seeded
from sparring.workflows.stages.retrieval import refresh
from sparring.workflows.steps.analyse import analyse
from sparring.workflows.steps.evaluate import evaluate
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import COLLECTION
from sparring.workflows.systems.rows import Row, gathered, name_of, system_names
from sparring.workflows.systems.system import System


@dataclass
class Results:
    """Measures on one collection: one entry per system and seed."""

    collection: Collection
    config: CollectionConfig
    rows: list[Row] = field(default_factory=list)
    name: str | None = None
    """The collection's name in tables. If None, that of its source."""

    def add(
        self,
        name: str,
        system: System,
        *,
        seed: int,
        round: int | None = None,
        entropy: bool = False,
        queries: int | None = None,
        oracle: bool = False,
        contender: bool = False,
    ) -> None:
        """Measure a system's ranking, perhaps on a sample of the queries, and what its vectors are like.

        An oracle is measured and never selected. A system without training has the same numbers for every seed.
        """
        evaluation, collection = self.config.evaluate, self.collection
        ranking = system.ranking(evaluation.split)
        # A ranking that every seed shares is measured once.
        label = seeded(name, seed, self.config) if f"(seed {seed})" in ranking.label else name
        judged = [measure for measure in evaluation.measures if not needs_answers(measure)]
        by_answer = len(judged) < len(evaluation.measures)
        metrics = step(
            f"{label} measures",
            evaluate,
            data=collection.data,
            ranking=collection.answering(ranking, [evaluation.split]) if by_answer else ranking,
            split=evaluation.split,
            measures=evaluation.measures,
            entropy=evaluation.entropy if entropy else None,
            queries=queries,
        )
        analysis = None
        if self.config.analyse is not None and isinstance(system, Dense) and system.has_vectors:
            analysis = step(
                f"{label} analysis",
                analyse,
                data=collection.data,
                tokens=collection.tokens,
                vectors=system.vectors,
                queries=system.queries(evaluation.split),
                ranking=ranking,
                split=evaluation.split,
                config=self.config.analyse,
            )
        measured = Row(
            name,
            round,
            self._collection,
            evaluation.split,
            seed,
            metrics,
            collection.data,
            ranking,
            system,
            answers=self.config.answers if by_answer else None,
            analysis=analysis,
            queries=queries,
            oracle=oracle,
            contender=contender,
        )
        self.rows.append(measured)
        for title, source in evaluation.other_qrels.items():
            with in_phase(COLLECTION):
                data = step(f"data ({title})", ingest, source=self._in_form(source))
            metrics = step(
                f"{label} measures ({title})",
                evaluate,
                data=data,
                ranking=ranking,
                split=evaluation.split,
                measures=judged,
                queries=queries,
            )
            self.rows.append(
                replace(measured, collection=title, metrics=metrics, data=data, answers=None, analysis=None)
            )

    def _in_form(self, source: Source) -> Source:
        """Read the ids of other judgements as the collection's are read: rankings have those."""
        ids = self.config.data.ids
        return source if ids is None else source.model_copy(update={"ids": ids})

    def refresh(
        self, name: str, retriever: Model, *, seed: int, round: int | None = None, entropy: bool = False
    ) -> Dense:
        """Encode the collection with a retriever, and measure what it retrieves."""
        retrieval = refresh(seeded(name, seed, self.config), self.collection, retriever, self.config)
        self.add(name, retrieval, seed=seed, round=round, entropy=entropy)
        return retrieval

    def add_measures(
        self, name: str, measures: Step, *, seed: int, system: System | None = None, encoder: Dense | None = None
    ) -> None:
        """Add measures of something else than a ranking: of a system's answers, or of an encoder's vectors."""
        split, data = self.config.evaluate.split, self.collection.data
        row = Row(name, None, self._collection, split, seed, measures, data, system=system, encoder=encoder)
        self.rows.append(row)

    def gather(self, comparisons: list[tuple[str, str]]) -> Step:
        """Gather all measures and the comparisons. The leading system and the one to deploy are also compared with
        contenders and with rankings of files."""
        imported = self.config.evaluate.other_rankings.keys() & system_names(self.rows)
        further = [(None, name) for name in [*self.config.contenders, *sorted(imported)]] if comparisons else []
        return gathered(self.rows, [*comparisons, *further])

    @property
    def _collection(self) -> str:
        return self.name or name_of(self.config.data)
