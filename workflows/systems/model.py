"""A model at one moment of its training."""

from dataclasses import dataclass, replace

from sparring.components.models.shape import dimensions_of
from sparring.components.retrieval.kind import DEFAULT
from sparring.workflows.store.dag import Step


@dataclass(frozen=True)
class Model:
    """A model at one moment of its training, and what belongs to it at every moment."""

    step: Step
    """The step that wrote it."""
    tokens: Step
    """The token store that it reads."""
    objective: str
    """What trains it: a file's name in `components/objectives`, or with a dot in it a module's path."""

    @property
    def begun(self) -> Step:
        """The step that wrote the model that all trainings began from."""
        begun = self.step
        while "start" in begun.inputs:
            begun = begun.inputs["start"]
        return begun

    @property
    def kind(self) -> str:
        """The kind of a retriever. A model that a step makes of vectors, such as a whitened one, is dense."""
        return getattr(self.begun.inputs.get("config"), "kind", DEFAULT)

    @property
    def dimensions(self) -> int | None:
        """How many a retriever's vectors have, as far as that is known before it is opened."""
        return dimensions_of(self.begun.inputs.get("config"))

    def after(self, training: Step) -> "Model":
        """The same model as a training left it."""
        return replace(self, step=training)
