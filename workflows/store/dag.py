"""The graph of steps: what a step is, who it is, and what it stands on.

A step is a function `f(out, cluster, *, ...inputs)` that fills the directory `out` and may return a JSON
summary. Its inputs are other steps, configs and plain values; together with the function's name and version
they are its identity, and identity decides its place in the store. The cluster is not part of it.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from pydantic import BaseModel

Function = Callable[..., dict[str, Any] | None]

_signature = cache(inspect.signature)  # a graph has hundreds of steps of a few functions


@dataclass(frozen=True, eq=False)
class Step:
    """A node of the graph: what to call with what, under which name for people."""

    label: str
    """For people: plans, logs and links. Not part of the identity."""
    function: Function
    inputs: Mapping[str, Any]
    fingerprint: str

    @property
    def name(self) -> str:
        """The directory's name in the store."""
        return f"{self.function.__name__}-{self.fingerprint[:12]}"

    @cached_property
    def upstream(self) -> list["Step"]:
        """The steps among the inputs, in order."""
        return list(_steps_in(self.inputs))


def version(number: int) -> Callable[[Function], Function]:
    """Mark a step function: same inputs, other results than before. Moves its artifacts to new places."""

    def mark(function: Function) -> Function:
        function.version = number  # type: ignore[attr-defined]
        return function

    return mark


def step(label: str, function: Function, **inputs: Any) -> Step:
    """Bind a step function to its inputs. A typo, a missing input or one without a stable form is a TypeError."""
    bound = _signature(function).bind(None, None, **inputs)
    bound.apply_defaults()  # a default is identity too: with another one the results are others
    inputs |= {name: value for name, value in bound.kwargs.items() if name not in inputs}
    identity = {
        "function": f"{function.__module__}.{function.__qualname__}",
        "version": getattr(function, "version", 1),
        "inputs": canonical(inputs),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return Step(label=label, function=function, inputs=inputs, fingerprint=digest)


def canonical(value: Any) -> Any:
    """The JSON form that stands for a value in a fingerprint; TypeError where there is no stable one."""
    if isinstance(value, Step):
        return {"step": value.fingerprint}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {_text_key(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an input of type {type(value).__name__} has no stable form to identify it by: {value!r}")


def _text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a mapping among the inputs has the key {key!r}; keys must be text")
    return key


def _steps_in(value: Any) -> Iterator[Step]:
    if isinstance(value, Step):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _steps_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _steps_in(item)


def graph(wanted: Iterable[Step]) -> list[Step]:
    """Every step that the wanted ones stand on, each once, inputs first."""
    ordered: dict[str, Step] = {}

    def visit(node: Step) -> None:
        if node.fingerprint not in ordered:
            for before in node.upstream:
                visit(before)
            ordered[node.fingerprint] = node

    for node in wanted:
        visit(node)
    return list(ordered.values())


def relabelled(wanted: Step, labels: Mapping[str, str]) -> Step:
    """The same graph with other labels for some of its steps, by fingerprint."""
    done: dict[str, Step] = {}

    def now(value: Any) -> Any:
        if isinstance(value, Step):
            return done[value.fingerprint]
        if isinstance(value, Mapping):
            return {key: now(item) for key, item in value.items()}
        return [now(item) for item in value] if isinstance(value, (list, tuple)) else value

    for node in graph([wanted]):
        label = labels.get(node.fingerprint, node.label)
        done[node.fingerprint] = replace(node, label=label, inputs=now(node.inputs))
    return done[wanted.fingerprint]
