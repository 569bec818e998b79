"""Checks of waiting steps' inputs, made as soon as these inputs exist and not hours later, when the step begins."""

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
"""Parameter of a check that is the run's machine, and no input of the step."""


@dataclass(frozen=True)
class _Question:
    """A check of some inputs of a step."""

    step: Step
    refuses: Callable[..., None]
    inputs: dict[str, Any]


def _questions(nodes: Iterable[Step]) -> dict[tuple[Any, str], _Question]:
    """Collect the checks (`Description.refuses`) of steps, each once."""
    questions: dict[tuple[Any, str], _Question] = {}
    for node in nodes:
        if (refuses := node.description.refuses) is not None:
            names = [name for name in inspect.signature(refuses).parameters if name != MACHINE]
            inputs = {name: node.inputs[name] for name in names}
            questions.setdefault((refuses, repr(canonical(inputs))), _Question(node, refuses, inputs))
    return questions


def select_shared_checks(first: Iterable[Step], *rest: Iterable[Step]) -> list[Step]:
    """Return those of the first steps whose check occurs in each of the remaining groups of steps too."""
    shared = [_questions(nodes).keys() for nodes in rest]
    return [question.step for key, question in _questions(first).items() if all(key in keys for keys in shared)]


class Refusals:
    """The checks of waiting steps (`Description.refuses`), each made once."""

    def __init__(self, nodes: Iterable[Step], store: Store, machine: Machine | None) -> None:
        """Collect the checks. If `machine` is None, checks of the machine are skipped."""
        nodes = list(nodes)
        self._store, self._machine, self._lock = store, machine, threading.Lock()
        self._undone = {node.fingerprint for node in nodes}
        self._open = _questions(nodes)

    def check(self, *, artifacts: bool = True) -> None:
        """Raise UserError, as the step itself would, if a step refuses its inputs.

        Steps that take an unfinished artifact are not checked. Without `artifacts`, steps that take any artifact are
        not checked either, because it may have to be fetched.
        """
        for key, question in list(self._open.items()):
            upstream = list(steps_in(question.inputs))
            on_machine = MACHINE in inspect.signature(question.refuses).parameters
            if on_machine and self._machine is None:
                continue
            if any(node.fingerprint in self._undone for node in upstream) or (upstream and not artifacts):
                continue
            del self._open[key]
            try:
                self._store.fetch_inputs(question.step, upstream)
                machine = {MACHINE: self._machine} if on_machine else {}
                question.refuses(**resolve_inputs(question.inputs, self._store), **machine)
            except UserError as error:
                raise mistake(question.step, error) from None
            except Exception:
                continue  # such as an unreadable file: the step itself fails and keeps the traceback

    def after(self, node: Step) -> None:
        """Check again after a step is done."""
        with self._lock:  # parallel steps may end at the same time
            self._undone.discard(node.fingerprint)
            self.check()
