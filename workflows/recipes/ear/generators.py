"""Query expansions, and what each of them retrieves (Chuang et al., 2023, sections 3.2.1 and 3.3.1)."""

from dataclasses import dataclass
from typing import Self

from sparring.workflows.recipes.ear.config import Writer
from sparring.workflows.recipes.ear.setting import EXPANSIONS, Setting
from sparring.workflows.stages.learning import learnt
from sparring.workflows.steps.answers import answering
from sparring.workflows.steps.choose import answer_ranks
from sparring.workflows.steps.expand import expand_by_model, expand_by_relevance, expand_from_file, with_question
from sparring.workflows.steps.start import start
from sparring.workflows.steps.targets import targets
from sparring.workflows.steps.tokenize import tokenize
from sparring.workflows.store.dag import Step, in_phase, step


@dataclass(frozen=True)
class Expansions:
    """A generator's expansions of some queries, what each retrieves, and its quality."""

    name: str
    """Name of the generator, and of the splits."""
    expanded: Step
    """Collection in which each expanded query is a query."""
    ranking: Step
    """BM25's ranking for the expanded queries."""
    ranks: Step
    """Minimum answer rank of each expansion."""


@dataclass(frozen=True)
class Generators:
    """The generators of expansions, on one collection."""

    setting: Setting
    trained: Self | None = None
    """Generators of another collection, whose language models write here. If None, train on this collection."""

    @in_phase(EXPANSIONS)
    def issue(self, name: str, splits: list[str]) -> Expansions:
        """Expand the queries of some splits with a generator, and issue the expansions to BM25."""
        config, title = self.setting.config, f"{name} ({', '.join(splits)})"
        expanded = self.expand(name, splits)
        ranking = judged = self.setting.retrieve(f"{title} found", expanded, splits)
        by_answer = config.relevant_by == "answers"
        if by_answer:
            judged = step(
                f"{title} answers", answering, data=expanded, ranking=ranking, splits=splits, config=config.answers
            )
        ranks = step(f"{title} ranks", answer_ranks, expanded=expanded, ranking=judged, by_answer=by_answer)
        return Expansions(title, expanded, ranking, ranks)

    @in_phase(EXPANSIONS)
    def expand(self, name: str, splits: list[str]) -> Step:
        """Return a generator's expansions, with the question as it is among them if the config asks for it."""
        generated = self.generate(name, splits)
        if not self.setting.config.include_question:
            return generated
        return step(
            f"{generated.label} and the question",
            with_question,
            data=self.setting.collection.data,
            expanded=generated,
            splits=splits,
        )

    def generate(self, name: str, splits: list[str]) -> Step:
        """Let a generator write for the queries of some splits."""
        config, data = self.setting.config, self.setting.collection.data
        label, seed, generator = (
            f"{name} expansions ({', '.join(splits)})",
            [config.generator_seed, name],
            config.generators[name],
        )
        if generator.file is not None:
            return step(label, expand_from_file, data=data, splits=splits, config=generator.file)
        if generator.relevance is not None:
            return step(
                label,
                expand_by_relevance,
                data=data,
                ranking=self.setting.bm25_for(*splits),
                splits=splits,
                seed=seed,
                config=generator.relevance,
            )
        assert generator.writer is not None
        return step(
            label,
            expand_by_model,
            data=data,
            models=self.writers(name, generator.writer, splits),
            splits=splits,
            seed=seed,
            config=generator.writer.generate,
        )

    def writers(self, name: str, writer: Writer, splits: list[str]) -> list[Step]:
        """Return the language models that write for some splits. For queries that were trained on there is one for each
        fold, which has not seen that fold."""
        if self.trained is not None:
            return [self.trained.writer(name, writer)]
        folds = self.folds(name) if "train" in splits else 0
        return [self.writer(name, writer, fold) for fold in range(folds)] or [self.writer(name, writer)]

    def folds(self, name: str) -> int:
        """Return the number of models that write a generator's training examples. It is 0 if the model that was trained
        on all queries writes them."""
        writer = self.setting.config.generators[name].writer
        return (writer.learn.folds or 0) if writer is not None and writer.learn is not None else 0

    @in_phase(EXPANSIONS)
    def writer(self, name: str, writer: Writer, fold: int | None = None) -> Step:
        """Return a generator's language model. If a fold of the queries is named, the model is trained without it."""
        config, collection = self.setting.config, self.setting.collection
        begun = step(f"{name} start generator", start, config=writer.model)
        learn = writer.learn
        if learn is None:
            return begun
        if config.answers.mode == "regex" and learn.targets.kind == "answer":
            raise ValueError(
                f"generators: {name}: targets: kind: answer: with answers.mode: regex an answer is a "
                "pattern, which nobody writes; accepted: sentence, title"
            )
        title = name if fold is None else f"{name} fold {fold + 1}"
        by_answer = learn.targets.kind != "answer" and learn.targets.documents == "answering"
        rows = step(
            f"{title} targets",
            targets,
            data=collection.data,
            splits=["train"],
            ranking=collection.answering(self.setting.bm25_for("train"), ["train"]) if by_answer else None,
            leave_out=None if fold is None else [fold, learn.folds],
            mode=config.answers.mode,
            config=learn.targets,
        )
        tokens = step(f"{title} target tokens", tokenize, data=rows, model=begun, config=config.tokens)
        return learnt(
            f"{title} generator",
            "generator",
            learn.train,
            start=begun,
            rows=rows,
            data=rows,
            tokens=tokens,
            seed=[config.generator_seed, "generator", name, fold or 0],
            part="expansions",
        )
