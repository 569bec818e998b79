"""The description of a deployed system, `system.json`: its stages in order, each of which reads earlier ones.

The last stage's ranking is the result, or a reader's answer with the ranking that it read. Paths are relative to the
system's folder.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, SerializeAsAny, WrapValidator, model_validator

from sparring.components import modules
from sparring.components.config import Config, Damaged, Invalid, UserError, listing, parse
from sparring.components.files import check_whole
from sparring.components.retrieval.kind import index_kind_named
from sparring.components.retrieval.stage import FirstStage, StageConfig
from sparring.components.systems.searching import LaterStage
from sparring.components.systems.stages.reader import ReaderStage
from sparring.components.yaml_files import read_text

S = TypeVar("S", bound=StageConfig)

SYSTEM = "system.json"
FOLDER = "system"
"""The system's folder among what `export` writes."""
DOCUMENTS = "documents.jsonl"
"""The documents as BEIR's `corpus.jsonl` has them, in the order of the dense index's rows."""
VERSION = 2
AGAIN = "export the system again"
"""Advice for a folder that differs from the export."""


@cache
def _later_stage(kind: str) -> type[LaterStage] | None:
    """Find the class of the stages of a kind that read other stages' rankings. None if no module has the kind's
    name."""
    module = f"components.systems.stages.{kind}"
    stage: type[LaterStage] | None = None if modules.file_of(module) is None else modules.load(module).Stage
    return stage


def _of_its_kind(value: Any, validate: Callable[[Any], StageConfig]) -> StageConfig:
    """Read a stage as the kind that it names: a module of `stages`, or a retriever kind."""
    if not isinstance(value, dict):
        return validate(value)
    name = value.get("kind")
    if not isinstance(name, str):
        raise Invalid("kind: it is needed, and is not there", "missing-key")
    try:
        stage: type[StageConfig] = _later_stage(name) or index_kind_named(name).stage
    except UserError as error:
        raise Invalid(str(error), error.code) from None
    return stage.model_validate(value)


Stage = Annotated[SerializeAsAny[StageConfig], WrapValidator(_of_its_kind)]


class SystemConfig(Config):
    """A system: named stages, each of which reads earlier ones."""

    version: Literal[2]
    name: str
    """Its name in the tables of the run that measured it."""
    documents: int = Field(ge=1)
    """Number of documents."""
    stages: dict[str, Stage] = Field(min_length=1)
    """In order. The result is the ranking of the last one. If that is a reader, the result is its answer and the
    ranking that it read."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, stage in self.stages.items():
            earlier = list(self.stages)[: list(self.stages).index(name)]
            for source in stage.inputs:
                if source not in earlier:
                    raise Invalid(f"stages.{name}: it reads {source!r}; accepted: {listing(earlier)}", "unknown-stage")
                if self.stages[source].is_last:
                    message = f"stages.{name}: {source!r} is a reader; accepted: a reader as the last stage"
                    raise Invalid(message, "reads-a-reader")
            if isinstance(stage, LaterStage):
                stage.check(name, self)
        read = {source for stage in self.stages.values() for source in stage.inputs}
        if unread := [name for name in list(self.stages)[:-1] if name not in read]:
            message = f"stages: no stage reads {listing(unread)}; accepted: without it, or as the last one"
            raise Invalid(message, "unread-stage")
        return self

    @property
    def reader(self) -> ReaderStage | None:
        """The reader that answers queries. None if the system only ranks documents."""
        last = list(self.stages.values())[-1]
        return last if isinstance(last, ReaderStage) else None

    @property
    def answer(self) -> str:
        """Name of the stage whose ranking is the result."""
        return list(self.stages)[-1] if self.reader is None else self.reader.of

    @property
    def limit(self) -> int:
        """Largest number of documents that the system can rank. A single list can be extended to all documents; with
        several lists, their lengths are part of the system."""
        return self.reach(self.answer)

    def reach(self, name: str) -> int:
        """Return the largest number of documents that a stage can rank."""
        stage = self.stages[name]
        if isinstance(stage, LaterStage):
            return stage.reach(self)
        assert isinstance(stage, FirstStage)
        return self.documents if self.has_one_list else stage.k

    @property
    def has_one_list(self) -> bool:
        """True if a single stage searches the documents, and once for a query."""
        first = list(self.of_kind(FirstStage))
        return len(first) == 1 and not any(stage.searches for _, stage in self.of_kind(LaterStage))

    def check_k(self, k: int, key: str = "k") -> None:
        """Raise UserError, naming `key`, if the system cannot rank `k` documents."""
        if not 1 <= k <= self.limit:
            limited = "the collection has" if self.limit == self.documents else "the system ranks at most"
            raise UserError(f"{key}: got {k}, but {limited} {self.limit} documents. Use 1 to {self.limit}.")

    def length(self, name: str, k: int) -> int:
        """Return the number of documents that a searching stage must list so that the system can rank `k`."""
        stage = self.stages[name]
        assert isinstance(stage, FirstStage)
        if not self.has_one_list:
            return min(stage.k, self.documents)
        depths = [later.depth_read for _, later in self.of_kind(LaterStage)]
        return min(max([k, *depths]), self.documents)

    def is_lexical(self, name: str) -> bool:
        """Tell whether a stage's scores are BM25's, in which 0 means that no word is shared."""
        return self.stages[name].is_lexical(self)

    def data_is_read(self, name: str) -> bool:
        """Tell whether another stage reads a stage's data: the documents' vectors, or the index of words."""
        return any(stage.needs and stage.of == name for _, stage in self.of_kind(LaterStage))

    @property
    def has_models(self) -> bool:
        """True if a stage has a model."""
        return any(stage.precisions for stage in self.stages.values())

    def of_kind(self, kind: type[S]) -> Iterator[tuple[str, S]]:
        """List the names and descriptions of the stages of a kind, in order."""
        return ((name, stage) for name, stage in self.stages.items() if isinstance(stage, kind))

    @property
    def parts(self) -> list[str]:
        """Files and folders of the system, without its description."""
        return [DOCUMENTS, *dict.fromkeys(path for stage in self.stages.values() for path in stage.contents)]


def read(folder: Path) -> SystemConfig:
    """Read the description of a system in a folder. UserError if the folder is no complete system."""
    path = folder / SYSTEM
    if not path.exists():
        inside = folder / FOLDER
        meant = f"; did you mean {inside}?" if (inside / SYSTEM).exists() else ""
        raise UserError(
            f"{folder}: no {SYSTEM}; accepted: a system's folder, as `export` writes it{meant}", code="missing-file"
        )
    try:
        tree = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}", key=str(path), code="other-format") from None
    version = tree.get("version") if isinstance(tree, dict) else None
    if version != VERSION:
        raise UserError(f"{path}: version: got {version!r}; accepted: {VERSION}; {AGAIN}", code="other-version")
    config = parse(SystemConfig, tree, where=str(path))
    for part in config.parts:
        if not (folder / part).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: {part!r} is outside of the folder; accepted: names inside it", code="outside")
        if not (folder / part).exists():
            raise UserError(f"{folder}: no {part}, which {SYSTEM} names; {AGAIN}", code="missing-file")
        try:
            check_whole(folder / part)
        except Damaged as error:
            raise UserError(f"{error}; {AGAIN}") from None
    return config
