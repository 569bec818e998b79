"""The board of what was measured, one entry a system and seed; and what a recipe hands back."""

from dataclasses import dataclass, field
from typing import Any

from components.measures import asks_for_answers
from workflows.dag import Step, step
from workflows.parts import Base, Collection, Refreshed, seeded
from workflows.steps.analyse import analyse
from workflows.steps.evaluate import averages, evaluate, results
from workflows.steps.exclude import exclude
from workflows.steps.ingest import ingest
from workflows.steps.search import search


@dataclass
class Board:
    """What was measured: one entry a system and seed."""

    collection: Collection
    config: Base
    entries: list[dict[str, Any]] = field(default_factory=list)
    rankings: dict[str, Step] = field(default_factory=dict)
    name: str | None = None
    """What the collection is called in tables; null for what its source is called."""

    def add(
        self, system: str, ranking: Step, *, seed: int, round: int | None = None, entropy: bool = False,
        queries: int | None = None,
    ) -> None:  # fmt: skip
        """Measure a system's ranking, perhaps of a sample of the queries.

        A system without training has the same numbers for every seed.
        """
        asked = self.config.evaluate
        # A ranking that every seed shares is measured once.
        whose = seeded(system, seed, self.config) if f"(seed {seed})" in ranking.label else system
        measured = ranking
        answers = None
        if any(asks_for_answers(name) for name in asked.measures):
            measured = self.collection.answering(ranking, [asked.split])
            answers = self.config.answers
        metrics = step(
            f"{whose} measures", evaluate, data=self.collection.data, ranking=measured, split=asked.split,
            measures=asked.measures, entropy=asked.entropy if entropy else None, queries=queries,
        )  # fmt: skip
        entry = {
            "system": system, "round": round, "collection": self.name or name_of(self.config.data),
            "split": asked.split, "seed": seed, "metrics": metrics, "answers": answers,
        }  # fmt: skip
        vectors = _vectors(ranking)
        if self.config.analyse is not None and vectors is not None:
            entry["analysis"] = step(
                f"{whose} analysis", analyse, data=self.collection.data, tokens=self.collection.tokens["retriever"],
                vectors=vectors, ranking=ranking, split=asked.split, config=self.config.analyse,
            )  # fmt: skip
        self.entries.append(entry)
        judged = [name for name in asked.measures if not asks_for_answers(name)]
        for name, source in asked.also.items():
            others = step(
                f"{whose} measures ({name})", evaluate, data=step(f"data ({name})", ingest, source=source),
                ranking=ranking, split=asked.split, measures=judged, queries=queries,
            )  # fmt: skip
            about = {key: value for key, value in entry.items() if key != "analysis"}
            self.entries.append({**about, "collection": name, "metrics": others, "answers": None})
        if seed == self.config.seeds[-1]:
            self.rankings[system] = ranking

    def add_measures(self, system: str, measures: Step, *, seed: int) -> None:
        """A system whose measures are not of a ranking: what is made of one, such as a reader's answers."""
        self.entries.append({
            "system": system, "round": None, "collection": self.name or name_of(self.config.data),
            "split": self.config.evaluate.split, "seed": seed, "metrics": measures, "answers": None,
        })  # fmt: skip

    def results(self, comparisons: list[tuple[str, str]]) -> Step:
        """All measures, and the comparisons asked for."""
        return gathered(self.entries, comparisons)


def _vectors(ranking: Step) -> Step | None:
    """The vectors that a ranking was found by; None where it was found or put in order in another way."""
    if ranking.function is exclude:
        ranking = ranking.inputs["ranking"]
    return ranking.inputs["vectors"] if ranking.function is search else None


def gathered(entries: list[dict[str, Any]], comparisons: list[tuple[str, str]]) -> Step:
    """Measures and comparisons of a system with its baseline, as `metrics.json` has them."""
    return step(
        "results", results, systems=entries,
        comparisons=[{"system": system, "baseline": baseline} for system, baseline in comparisons],
        seed=0, rounds=10_000,
    )  # fmt: skip


def averaged(entries: list[dict[str, Any]], comparisons: list[tuple[str, str]]) -> Step:
    """The same with each system's averages over the collections, as if that were one more collection."""
    steps = gathered(entries, comparisons)
    return step("results", averages, **steps.inputs)


def name_of(source: Any) -> str:
    """A collection's name for tables: the last part of its path or id, or its format."""
    for key in ("path", "id", "name"):
        if isinstance(getattr(source, key, None), str):
            return str(getattr(source, key)).rstrip("/").rsplit("/", 1)[-1]
    return str(source.format)


@dataclass(frozen=True)
class Spent:
    """Time that a query takes of a step: its time over what it, or another step, counted."""

    step: Step
    per: str = "queries"
    """A count in a step's summary."""
    over: Step | None = None
    """The step that counted; None for the same."""
    share: tuple[str, str] | None = None
    """Of its time only as great a part as these seconds of its summary are of those; None for all."""


@dataclass(frozen=True)
class Cost:
    """What a system takes to build, and for a query (paper 002, Table 3.11)."""

    system: str
    index: tuple[Step, ...]
    """What is done once for the collection. The last one's artifact is what is searched."""
    expand: tuple[Spent, ...] = ()
    rerank: tuple[Spent, ...] = ()
    retrieve: tuple[Spent, ...] = ()
    measured: str | None = None
    """What it is called among the measures; None for the same."""


@dataclass(frozen=True)
class Outcome:
    """A recipe's graph: the step that everything leads to, and what the commands show, search and export."""

    results: Step
    data: Step
    found: Refreshed
    """What the last retriever finds."""
    ranker: Step | None
    rankings: dict[str, Step]
    split: str
    """The split that was measured."""
    note: str
    """What a reader of the results must know about the start model."""
    examples: tuple[str, str] | None = None
    """The system and the baseline whose won and lost queries the report shows."""
    pictures: tuple[Step, ...] = ()
    """Further pages of the report: steps that write `pictures.json` or `study.json`."""
    costs: tuple[Cost, ...] = ()
    """Systems whose cost the report sets side by side."""


MINILM = (
    "The start model is all-MiniLM-L6-v2. Its card lists SQuAD, CodeSearchNet, Natural Questions, TriviaQA, MS MARCO "
    "and S2ORC among its training data, so its row is no zero-shot result."
)


def note_on(model: str) -> str:
    """What is known of a start model's training data."""
    if "minilm-l6-v2" in model.lower():
        return MINILM
    return f"The start model is {model}; what it was trained on is for its card to say."
