"""A reader that answers queries from what a system retrieves, as a system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.files import read_json
from sparring.components.models.reader_configs import ReadConfig, ReaderConfig
from sparring.components.systems import model_folder
from sparring.components.systems.stages.reader import ReaderStage as Stage
from sparring.workflows.steps.read import read_answers
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.system import Cost, Names, System, TimeSpent, path_for

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.library import Library, Plan


@dataclass(frozen=True, eq=False)
class Read(System):
    """A system with a reader, which answers from the first documents of its rankings. The rankings stay as they are."""

    label: str
    data: Step
    over: System
    """The system whose rankings are read."""
    reader: Model
    config: ReadConfig

    stage = "reader"
    expense = 4

    @property
    def parts(self) -> Sequence[System]:
        """The system whose rankings are read."""
        return [self.over]

    def ranking(self, split: str) -> Step:
        """Return the ranking that is read."""
        return self.over.ranking(split)

    def answers(self, split: str) -> Step:
        """Answer a split's queries that have right answers."""
        return step(
            f"{self.label} answers",
            read_answers,
            data=self.data,
            tokens=self.reader.tokens,
            ranking=self.over.ranking(split),
            split=split,
            reader=self.reader.step,
            config=self.config,
        )

    @property
    def identity(self) -> str:
        """A key that equal systems share."""
        return self.answers("queries").fingerprint

    def cost(self, split: str) -> Cost:
        """The parts, and reading."""
        return super().cost(split) + Cost(rerank=(TimeSpent(self.answers(split)),), models=(self.reader.step,))

    @property
    def models(self) -> list[Step]:
        """The reader."""
        return [self.reader.step]

    def describe(self, name: str, store: Store, names: Names) -> Stage:
        """Describe the reader, and what it reads."""
        model = ReaderConfig.model_validate(read_json(store.path(self.reader.step) / "model" / MODEL_CONFIG))
        return Stage(
            of=names(self.over),
            folder=path_for("reader", name),
            passages=self.config.passages,
            passage_tokens=model.passage_tokens,
            template=model.template,
            new_tokens=self.config.new_tokens,
            precision=self.config.precision,
        )

    def open(self, name: str, plan: Plan, library: Library) -> Any:
        """Open the reader."""
        stage = plan.config.stages[name]
        assert isinstance(stage, Stage)
        return library.reader(self.reader.step, stage)

    def write(self, stage: Stage, folder: Path, store: Store) -> None:
        """Copy the reader."""
        model_folder.copy(store.path(self.reader.step) / "model", folder / stage.folder)
