"""The reader, which answers questions from retrieved passages (Chuang et al., 2023, section 3.4.6)."""

from typing import Self

from sparring.workflows.recipes.ear.config import ReaderPhase
from sparring.workflows.recipes.ear.dense import DenseRetriever
from sparring.workflows.recipes.ear.setting import READING, Setting
from sparring.workflows.stages.learning import learnt
from sparring.workflows.steps.read import evaluate_answers, reading_groups
from sparring.workflows.steps.tokenize import tokenize
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.read import Read
from sparring.workflows.systems.system import System


class Reader:
    """The reader on one collection."""

    def __init__(
        self, setting: Setting, config: ReaderPhase, dense: DenseRetriever, trained: Self | None = None
    ) -> None:
        """If `trained` is the reader of another collection, its model reads here. If None, train on this collection."""
        self._setting, self._config, self._dense, self._trained = setting, config, dense, trained
        self._start = setting.collection.initial_model("start reader", config.model, objective="reader")

    @in_phase(READING)
    def train(self, seed: int) -> Model:
        """Return the reader, trained if the config asks for it."""
        config, data, begun = self._config, self._setting.collection.data, self._start
        if config.train is None:
            return begun
        bm25 = config.learn_from == "BM25"
        ranking = self._setting.bm25_for("train") if bm25 else self._dense.retrieve(seed).ranking("train")
        rows = step(
            self._setting.label("reader groups", seed),
            reading_groups,
            data=data,
            ranking=ranking,
            split="train",
            passages=config.passages,
            visits=config.visits,
            seed=[seed, "reader"],
        )
        answer_tokens = step(
            self._setting.label("reader answer tokens", seed),
            tokenize,
            data=rows,
            model=begun.step,
            config=self._setting.config.tokens,
        )
        return begun.after(
            learnt(
                self._setting.label("reader", seed),
                begun.objective,
                config.train,
                start=begun.step,
                rows=rows,
                data=data,
                tokens=begun.tokens,
                seed=[seed, "reader"],
                part="reading",
                answer_tokens=answer_tokens,
            )
        )

    def read(self, systems: dict[str, System], seed: int) -> dict[str, Read]:
        """Add the reader to some systems, at each depth."""
        reader = self._start.after((self._trained or self).train(seed).step)
        data, label = self._setting.collection.data, self._setting.label
        return {
            (name := f"{system} + reader k={depth}"): Read(
                label(name, seed), data, over, reader, self._config.read.model_copy(update={"passages": depth})
            )
            for system, over in systems.items()
            for depth in self._config.depths
        }

    @in_phase(READING)
    def measure(self, name: str, system: Read, seed: int) -> Step:
        """Measure the answers of a system with the reader."""
        answers = system.answers(self._setting.split)
        label = self._setting.label(f"{name} measures", seed)
        return step(label, evaluate_answers, data=self._setting.collection.data, answers=answers)
