"""Running the pending steps: one after another, or several at once where the cluster profile allows it."""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from sparring.workflows.distributed import leftovers, resources
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.running.executor import execute
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.running.refusals import Refusals
from sparring.workflows.running.tracking import Tracker, track_step
from sparring.workflows.running.view import progress_view
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store

RunStep = Callable[[str, Step], bool]
"""Runs a step under a title; False if another driver finished it."""


def run_steps(
    waiting: list[Step],
    store: Store,
    machine: Machine,
    tracker: Tracker | None = None,
    forecast: Forecast | None = None,
    *,
    later: Sequence[Step] = (),
    first: Collection[str] = (),
    on_waited: Callable[[float], object] = lambda seconds: None,
    on_done: Callable[[Step], Iterable[str]] = lambda node: (),
) -> set[str]:
    """Run the steps, inputs first. Return the fingerprints of those that this driver ran itself.

    Steps that read only collections and pre-trained models come first: a mistake in one of them is known before
    anything is trained. The tracker gets their measurements. The forecast estimates the remaining time.

    After a failure no further step starts. Steps that are running then are finished before the error is raised. If a
    step refuses its inputs, of these or of the `later` steps that another call runs, that is an error as soon as it can
    be known. `on_waited` gets the seconds of each wait for another driver. `on_done` returns lines to print below a
    finished step.

    If steps run at once, those with fingerprints in `first` start as soon as their inputs are ready: they are short,
    and somebody waits for their results.
    """
    waiting = sorted(waiting, key=lambda node: bool(node.upstream))
    leftovers.mark()
    refusals = Refusals([*waiting, *later], store, machine)
    refusals.check()
    with progress_view(waiting, forecast) as view:

        def run_step(title: str, node: Step) -> bool:
            waiting_since: float | None = None

            def on_wait(holder: str) -> None:
                nonlocal waiting_since
                waiting_since = waiting_since or time.monotonic()
                view.wait(title, holder)

            def on_start() -> None:
                if waiting_since is not None:
                    on_waited(time.monotonic() - waiting_since)
                view.start(title)

            store.path(node).mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            with view.step(title, node, store.path(node)), track_step(tracker, node.label, store.path(node)):
                executed = execute(node, store, machine, on_wait=on_wait, on_start=on_start)
            seconds = time.monotonic() - started
            if forecast is not None:
                forecast.finish(node.name, seconds)
            notes = (store.record(node) or {}).get("summary", {}).get("note", "")
            view.done(title, node, seconds, executed=executed, notes=notes, scores=list(on_done(node)))
            refusals.after(node)
            return executed

        if machine.cluster.parallel_steps == 1:
            total = len(waiting)
            return {
                node.fingerprint
                for number, node in enumerate(waiting, 1)
                if run_step(_title(number, total, node), node)
            }
        if waiting:
            ray_session(machine.cluster)  # here, as Ray's processes end with the thread that started them
        return _run_parallel(waiting, machine.cluster.parallel_steps, run_step, first)


def _run_parallel(waiting: list[Step], limit: int, run_step: RunStep, first: Collection[str]) -> set[str]:
    """Run up to `limit` steps at once, in threads.

    Of the steps that are ready, the `first` start first, then those with the longest chain. A step that runs `alone`
    starts once no other step runs or is ready.
    """
    remaining = {node.fingerprint: node for node in waiting}
    chains, ended = _chain_lengths(waiting), queue.SimpleQueue[tuple[Step, bool | BaseException]]()
    running: set[str] = set()
    exclusive = {node.fingerprint for node in waiting if node.description.alone}
    executed: set[str] = set()
    failure: BaseException | None = None

    def work(title: str, node: Step) -> None:
        try:
            with resources.driver_lock():
                outcome: bool | BaseException = run_step(title, node)
        except BaseException as error:
            outcome = error
        ended.put((node, outcome))

    started = 0
    while running or (remaining and failure is None):
        ready = [node for node in remaining.values() if not _depends_on(node, remaining.keys() | running)]
        ready.sort(key=lambda node: (node.fingerprint not in first, -chains[node.fingerprint]))
        together = [node for node in ready if not node.description.alone]
        if together or running:
            startable = [] if running & exclusive else together[: limit - len(running)]
        else:
            startable = ready[:1]
        for node in startable:
            if failure is None:
                started += 1
                del remaining[node.fingerprint]
                running.add(node.fingerprint)
                threading.Thread(target=work, args=(_title(started, len(waiting), node), node), daemon=True).start()
        node, result = ended.get()
        running.remove(node.fingerprint)
        if isinstance(result, BaseException):
            failure = failure or result
        elif result:
            executed.add(node.fingerprint)
    if failure is not None:
        raise failure
    return executed


def _depends_on(node: Step, unfinished: set[str]) -> bool:
    return any(source.fingerprint in unfinished for source in node.upstream)


def _chain_lengths(waiting: list[Step]) -> dict[str, int]:
    """Return for each step the length of the longest chain of steps that begins with it."""
    lengths = {node.fingerprint: 1 for node in waiting}
    for node in reversed(waiting):
        for before in node.upstream:
            if before.fingerprint in lengths:
                lengths[before.fingerprint] = max(lengths[before.fingerprint], lengths[node.fingerprint] + 1)
    return lengths


def _title(number: int, total: int, node: Step) -> str:
    return f"[{number}/{total}{f' {node.phase}' if node.phase else ''}] {node.label}"
