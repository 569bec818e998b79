"""A model at one moment of its training."""

from dataclasses import dataclass, replace

from sparring.components.models.shape import dimensions_of
from sparring.components.retrieval.kind import DEFAULT
from sparring.workflows.store.dag import Step


@dataclass(frozen=True)
class Model:
    """A model at one moment of its training, with the facts that training does not change."""

    step: Step
    """The step that wrote it."""
    tokens: Step
    """The token store that it reads."""
    objective: str
    """Its objective: a file's name in `components/objectives`, or the dotted path of a module."""

    @property
    def begun(self) -> Step:
        """The step that wrote the model that all trainings began from."""
        begun = self.step
        while "start" in begun.inputs:
            begun = begun.inputs["start"]
        return begun

    @property
    def kind(self) -> str:
        """Kind of a retriever. A model that a step makes of vectors, such as a whitened one, is dense."""
        return getattr(self.begun.inputs.get("config"), "kind", DEFAULT)

    @property
    def dimensions(self) -> int | None:
        """Number of dimensions of a retriever's vectors. None if that is unknown before the model is opened."""
        return dimensions_of(self.begun.inputs.get("config"))

    def after(self, training: Step) -> "Model":
        """Return the same model after a training."""
        return replace(self, step=training)
