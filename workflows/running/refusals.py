"""What waiting steps would refuse hours later, found as soon as what they take is there."""

import inspect
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sparring.components.config import UserError
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.running.executor import mistake, resolve_inputs
from sparring.workflows.store.dag import Step, canonical, steps_in
from sparring.workflows.store.store import Store

MACHINE = "machine"
"""The parameter that is no input, but what the run runs on."""


@dataclass(frozen=True)
class _Question:
    """Whether a step refuses some of its inputs."""

    step: Step
    refuses: Callable[..., None]
    inputs: dict[str, Any]


def _questions(nodes: Iterable[Step]) -> dict[tuple[Any, str], _Question]:
    """What is asked of steps, each thing once."""
    found: dict[tuple[Any, str], _Question] = {}
    for node in nodes:
        if (refuses := node.description.refuses) is not None:
            names = [name for name in inspect.signature(refuses).parameters if name != MACHINE]
            inputs = {name: node.inputs[name] for name in names}
            found.setdefault((refuses, repr(canonical(inputs))), _Question(node, refuses, inputs))
    return found


def asked_by_all(first: Iterable[Step], *others: Iterable[Step]) -> list[Step]:
    """Of the first steps those of which the same is asked as of some of each of the others."""
    asked = [_questions(nodes).keys() for nodes in others]
    return [one.step for key, one in _questions(first).items() if all(key in keys for keys in asked)]


class Refusals:
    """What steps refuse (`Description.refuses`), each thing asked once."""

    def __init__(self, nodes: Iterable[Step], store: Store, machine: Machine | None) -> None:
        """Without a machine, what a step refuses of one is not asked."""
        nodes = list(nodes)
        self._store, self._machine, self._lock = store, machine, threading.Lock()
        self._undone = {node.fingerprint for node in nodes}
        self._left = _questions(nodes)

    def check(self, *, artifacts: bool = True) -> None:
        """UserError, as the step itself would raise it, where a step refuses its inputs. One that takes an artifact
        which is not there yet is not asked; nor, without `artifacts`, which may have to be fetched, one that takes
        any."""
        for key, asked in list(self._left.items()):
            taken, on_machine = list(steps_in(asked.inputs)), MACHINE in inspect.signature(asked.refuses).parameters
            if on_machine and self._machine is None:
                continue
            if any(node.fingerprint in self._undone for node in taken) or (taken and not artifacts):
                continue
            del self._left[key]
            try:
                self._store.fetch(taken)
                machine = {MACHINE: self._machine} if on_machine else {}
                asked.refuses(**resolve_inputs(asked.inputs, self._store), **machine)
            except UserError as error:
                raise mistake(asked.step, error) from None
            except Exception:
                continue  # such as a file that cannot be had: the step itself fails by it, and keeps the traceback

    def after(self, node: Step) -> None:
        """The same when a step is done."""
        with self._lock:  # steps that run at once are done at once
            self._undone.discard(node.fingerprint)
            self.check()
