"""The graph of steps: their functions, their identities, and the steps that they depend on.

A step is a function `f(out, machine, *, ...inputs)` that fills the directory `out` and may return a JSON summary. Its
inputs are other steps, configs and plain values. Together with the function's name and version they are the step's
identity, which decides its place in the store. The source of functions and modules outside this repository that it
names is part of the identity too. The machine is not.
"""

import hashlib
import inspect
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from types import NoneType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from sparring.components import modules
from sparring.components.config import UserError, listing
from sparring.components.functions import FunctionRef
from sparring.components.training.terms import declared

Function = Callable[..., dict[str, Any] | None]
F = TypeVar("F", bound=Function)

_signature = cache(inspect.signature)  # a graph has hundreds of steps of a few functions

MOST_STEPS = 100_000
"""Maximum number of steps of one experiment."""

Artifact = Literal["collection", "groups", "taught groups", "pairs", "screened ranking", "imported ranking"]
"""Kinds of artifacts: the tables of a collection; training groups, without and with a teacher's scores; groups of one
document each; a ranking without the candidates that a screening removed; a ranking from a file."""

PLAIN = (str, bool, int, float, NoneType)
"""Types of values that are their own JSON form and contain no steps."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Description of a step function, as the decorator above it.

    Only the version, and the source of what `modules` names, is part of the identity. A function without a description
    is a step like any other.

    Example: `@Description(part="encoding", models="encoding", droppable=("documents-*.npy",))`
    """

    part: str = "other"
    """Part of a run that the step belongs to, in the report's table of where time went."""
    version: int = 1
    """Version of the results. A new number says that the same inputs give other results than before, and moves the
    artifacts to new places."""
    modules: tuple[str, ...] = ()
    """Inputs that name an objective's module by its dotted path. A name without a dot is a file of this repository, and
    the `version` that the file declares is part of the identity."""
    makes: Artifact | None = None
    """Kind of artifact that the step makes, by which other code finds the step in a graph. None if no code does."""
    models: Literal["training", "encoding", "scoring", "predicting"] | None = None
    """Work of models in the step. If None, no model is at work."""
    droppable: tuple[str, ...] = ()
    """Files of the artifact (glob patterns) that nothing needs once the run is finished, unless the run's outcome names
    the step, which is then searched with these files."""
    carried: tuple[str, ...] = ()
    """Files of the artifact (glob patterns) that are read only by a step that carries on from this one."""
    carries: Mapping[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)
    """Predicates, by the name of an input that the step may carry on from. A predicate gets all inputs and says whether
    the step reads the `carried` files of that artifact. Once the step is finished, nothing needs these files."""
    workers_read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files (glob patterns) that only the step's workers read, by the name of the input whose artifact has them. `out`
    stands for the step's own artifact, and `*` for all inputs that are not named. The step's own process leaves these
    files on an object store and downloads all others."""
    in_worker: bool = False
    """The function runs whole in a worker, without a machine of its own. The run's process reads neither the inputs nor
    the results, apart from the summary. `workers_read` then has the files that the worker leaves on an object store."""
    shows: tuple[str, ...] = ()
    """Files of the artifact that the report shows."""
    refuses: Callable[..., None] | None = None
    """Function that raises UserError for inputs that the step refuses. Its parameters are the inputs that it checks;
    `machine` stands for the run's machine. A run calls it as soon as these inputs are there, so that nobody waits for
    earlier steps in vain."""
    alone: bool = False
    """True if the step measures time, so that no other step runs at the same time."""
    heading: str = ""
    """Heading in the report over the charts of the artifact. `{x}` stands for the name of their horizontal axis."""

    def __call__(self, function: F) -> F:
        """Attach the description to a step function."""
        function.description = self  # type: ignore[attr-defined]
        return function


class Composite(ABC):
    """An input that is read from the artifacts of several steps, such as a system that answers queries."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A key that equal inputs share."""

    @property
    @abstractmethod
    def steps(self) -> Sequence["Step"]:
        """The steps whose artifacts it is read from."""

    @abstractmethod
    def resolved(self, store: Any) -> Any:
        """Return what the step function gets, once the steps are finished in a store."""


UNDESCRIBED = Description()


class StepFailed(Exception):
    """Failure of a step, or of the work around it, that is not a user's mistake. The message of a step names its label
    and the file with the traceback."""


@dataclass(frozen=True, eq=False)
class Step:
    """A node of the graph: a function and its inputs, with a label for people."""

    label: str
    """Name in plans, logs and links. It is not part of the identity."""
    function: Function
    inputs: Mapping[str, Any]
    fingerprint: str
    code: Mapping[str, str]
    """Digests of the modules outside this repository whose code the step runs, by their dotted paths."""
    part: str = "other"
    """Part of a run that the step belongs to."""
    phase: str = ""
    """Phase of the run in which the step is made. It is not part of the identity. Empty if the recipe names none."""

    @property
    def description(self) -> Description:
        """Return the description of the step's function."""
        return description(self.function)

    @property
    def name(self) -> str:
        """Return the directory's name in the store."""
        return f"{self.function.__name__}-{self.fingerprint[:12]}"

    @cached_property
    def upstream(self) -> list["Step"]:
        """Return the steps among the inputs, in order."""
        return list(steps_in(self.inputs))

    def reads(self, before: "Step", files: str) -> bool:
        """Check whether the step reads files (a glob pattern) of an input's artifact."""
        carries = self.description.carries
        return files not in before.description.carried or any(
            self.inputs[name].fingerprint == before.fingerprint and does(self.inputs) for name, does in carries.items()
        )

    def leaves(self, before: "Step", file: str) -> bool:
        """Check whether only the step's workers read a file of an input's artifact, or of the step's own."""
        read = self.description.workers_read
        parts = [
            read.get(name, read.get("*", ()))
            for name, value in self.inputs.items()
            if any(source.fingerprint == before.fingerprint for source in steps_in(value))
        ]
        return all(any(fnmatch(file, part) for part in of_input) for of_input in parts or [read.get("out", ())])


def function_name(function: Function) -> str:
    """Return the dotted path of a step's function, as identities and records have it."""
    return modules.canonical(f"{function.__module__}.{function.__qualname__}")


def description(function: Function) -> Description:
    """Return the description of a step function."""
    return getattr(function, "description", UNDESCRIBED)


@contextmanager
def counted() -> Iterator[None]:
    """Raise ValueError if this block makes more than `MOST_STEPS` steps, as an absurd number in a config would."""
    if _counter.get() is not None:  # an outer block counts already
        yield
        return
    token = _counter.set(itertools.count(1))
    try:
        yield
    finally:
        _counter.reset(token)


_counter: ContextVar[Iterator[int] | None] = ContextVar("counter", default=None)


@contextmanager
def in_phase(name: str) -> Iterator[None]:
    """Assign the steps that this block makes to a phase of the run, such as `warm-up` or `round 1`. The innermost block
    counts. A phase tells people how far a run is. Neither identity nor order depends on it."""
    token = _phase.set(name)
    try:
        yield
    finally:
        _phase.reset(token)


_phase: ContextVar[str] = ContextVar("phase", default="")


def step(label: str, function: Function, *, part: str | None = None, **inputs: Any) -> Step:
    """Bind a step function to its inputs.

    UserError names all inputs that are missing or unknown, or an input without a stable form. ValueError for too many
    steps inside `counted`.

    `part` is the part of a run that this step belongs to. It is neither an input nor identity. Functions that serve
    more than one part, such as `train`, need it.
    """
    counter = _counter.get()
    if counter is not None and next(counter) > MOST_STEPS:
        raise ValueError(f"it makes more than {MOST_STEPS:,} steps; accepted: fewer (rounds, seeds, folds)")
    try:
        bound = _signature(function).bind(None, None, **inputs)
    except TypeError:
        raise UserError(_misfit(label, function, inputs)) from None
    bound.apply_defaults()  # defaults are identity too: another default gives other results
    inputs |= {name: value for name, value in bound.kwargs.items() if name not in inputs}
    try:
        forms = canonical(inputs)
    except TypeError as error:
        raise UserError(f"{_bound_by(label)}: {error}") from None
    identity = {
        "function": function_name(function),
        "version": description(function).version,
        "inputs": forms,
    }
    built_in = [
        name for name in description(function).modules if "." not in inputs[name]
    ]  # modules outside this repository count by their source
    if versions := {name: number for name in built_in if (number := declared(inputs[name], "version")) is not None}:
        identity["versions"] = versions
    code = foreign_code(function, inputs)
    if code:
        identity["code"] = code
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    part_of_run = part if part is not None else description(function).part
    return Step(
        label=label,
        function=function,
        inputs=inputs,
        fingerprint=digest,
        code=code,
        part=part_of_run,
        phase=_phase.get(),
    )


def _misfit(label: str, function: Function, inputs: Mapping[str, Any]) -> str:
    """Describe the mistake in a step's inputs, and name the line of the recipe that bound them."""
    parameters = _signature(function).parameters.values()
    takes = {
        parameter.name: parameter for parameter in list(parameters)[2:] if parameter.kind is not parameter.VAR_KEYWORD
    }
    missing = [name for name, parameter in takes.items() if parameter.default is parameter.empty and name not in inputs]
    unknown = [name for name in inputs if name not in takes and len(takes) == len(parameters) - 2]
    wrong = [f"{problem}: {listing(names)}" for problem, names in (("missing", missing), ("unknown", unknown)) if names]
    first = [parameter.name for parameter in list(parameters)[:2]]
    beginning = f"{_bound_by(label)}: {function.__name__} takes"
    if len(first) < 2 or set(first) & inputs.keys():
        return (
            f"{beginning} {listing(first)} first; accepted: `out` and `machine`, which a run gives, before its inputs"
        )
    return f"{beginning} {listing(takes)}; {'; '.join(wrong)}"


def _bound_by(label: str) -> str:
    """Name a step, and the line of the recipe that bound it."""
    caller = next(frame for frame in inspect.stack() if frame.filename != __file__)
    return f"{caller.filename}, line {caller.lineno}: the step {label!r}"


def foreign_code(function: Function, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of the modules outside this repository that a step names.

    These are the modules of its function, its objective, and the losses and samplers in its configs. UserError if one
    of them is not Python.
    """
    named = [inputs[name] for name in description(function).modules if "." in inputs[name]]
    try:
        digests = {name: modules.digest(name) for name in sorted({function.__module__, *named, *_modules_in(inputs)})}
    except ValueError as error:
        raise UserError(str(error)) from None
    return {name: digest for name, digest in digests.items() if digest is not None}


def _modules_in(value: Any) -> Iterator[str]:
    """Yield the modules of the functions and retriever kinds that configs among the inputs name."""
    for leaf in _leaves(value):
        if isinstance(leaf, FunctionRef):
            yield leaf.function.rpartition(".")[0]
        elif isinstance(leaf, BaseModel):
            if "." in (kind := str(getattr(leaf, "kind", ""))):
                yield kind
            yield from _modules_in([getattr(leaf, name) for name in type(leaf).model_fields])


def canonical(value: Any) -> Any:
    """Return the JSON form of a value in a fingerprint. TypeError if the value has no stable form."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Step):
        return {"step": value.fingerprint}
    if isinstance(value, Composite):
        return {"of": value.identity, "steps": [node.fingerprint for node in value.steps]}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {_text_key(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    raise TypeError(
        f"an input of type {type(value).__name__} has no stable form to identify it by: {value!r}; "
        "accepted: steps, configs, texts, numbers, null, and lists and mappings of them"
    )


def _text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a mapping among the inputs has the key {key!r}; keys must be text")
    return key


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to every value of inputs, also inside mappings and lists."""
    if isinstance(value, Mapping):
        return {key: mapped(item, function) for key, item in value.items()}
    return [mapped(item, function) for item in value] if isinstance(value, (list, tuple)) else function(value)


def steps_in(value: Any) -> Iterator[Step]:
    """Yield the steps among inputs, in order."""
    for leaf in _leaves(value):
        if isinstance(leaf, Composite):
            yield from leaf.steps
        elif isinstance(leaf, Step):
            yield leaf


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the leaves of inputs in order, also of mappings and lists. Plain values are left out."""
    if isinstance(value, PLAIN):
        return
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value


def graph(wanted: Iterable[Step]) -> list[Step]:
    """Return the wanted steps and all that they depend on, each once, inputs first."""
    ordered: dict[str, Step] = {}

    def visit(node: Step) -> None:
        if node.fingerprint not in ordered:
            for before in node.upstream:
                visit(before)
            ordered[node.fingerprint] = node

    for node in wanted:
        visit(node)
    return list(ordered.values())


def relabelled(last: Step, labels: Mapping[str, str], phases: Mapping[str, str] | None = None) -> Step:
    """Copy a graph with new labels or phases for some steps, which are named by fingerprint."""
    copies: dict[str, Step] = {}

    for node in graph([last]):
        label = labels.get(node.fingerprint, node.label)
        phase = (phases or {}).get(node.fingerprint, node.phase)
        inputs = mapped(node.inputs, lambda value: copies[value.fingerprint] if isinstance(value, Step) else value)
        copies[node.fingerprint] = replace(node, label=label, phase=phase, inputs=inputs)
    return copies[last.fingerprint]
