"""Running the steps that are not done: one after another, or at once where the profile says so."""

import queue
import threading
import time
from collections.abc import Callable

from workflows import room
from workflows.cluster import Cluster, ray_session
from workflows.dag import Step
from workflows.observe import Tracker, followed
from workflows.progress import View
from workflows.store import Store, execute

Execute = Callable[[str, Step], bool]


def run_steps(waiting: list[Step], store: Store, cluster: Cluster, tracker: Tracker | None = None) -> set[str]:
    """Execute the steps, inputs first; the fingerprints of those that this driver and not another one did.

    What they measure meanwhile is handed to the tracker.

    Where a step fails none is begun any more, and what is under way beside it is ended first.
    """
    began = time.monotonic()
    with View() as view:

        def perform(title: str, node: Step) -> bool:
            def waits(holder: str) -> None:
                view.say(f"{title}: waiting for {holder}, which is at it")

            store.path(node).mkdir(parents=True, exist_ok=True)
            started = time.monotonic()
            with view.step(title, store.path(node)), followed(tracker, node.label, store.path(node)):
                ours = execute(node, store, cluster, on_wait=waits)
            seconds, whole = time.monotonic() - started, time.monotonic() - began
            done = "done" if ours else "done by another driver"
            view.say(f"{title}: {done} in {seconds:.1f} s  ({_clock(whole)} since the start)")
            return ours

        if cluster.steps == 1:
            total = len(waiting)
            return {node.fingerprint for at, node in enumerate(waiting, 1) if perform(_title(at, total, node), node)}
        if waiting:
            ray_session(cluster)  # here: Ray's processes end with the thread that started them
        return _at_once(waiting, cluster.steps, perform)


def _at_once(waiting: list[Step], most: int, perform: Execute) -> set[str]:
    """Up to so many in threads; of those that could begin, the one with the longest chain of others behind it."""
    left = {node.fingerprint: node for node in waiting}
    chains, ended = _chains(waiting), queue.SimpleQueue[tuple[Step, bool | BaseException]]()
    under_way: set[str] = set()
    executed: set[str] = set()
    failure: BaseException | None = None

    def work(title: str, node: Step) -> None:
        try:
            with room.turn():
                ours: bool | BaseException = perform(title, node)
        except BaseException as error:
            ours = error
        ended.put((node, ours))

    started = 0
    while under_way or (left and failure is None):
        ready = [node for node in left.values() if not _stands_on(node, left.keys() | under_way)]
        for node in sorted(ready, key=lambda node: -chains[node.fingerprint])[: most - len(under_way)]:
            if failure is None:
                started += 1
                del left[node.fingerprint]
                under_way.add(node.fingerprint)
                threading.Thread(target=work, args=(_title(started, len(waiting), node), node), daemon=True).start()
        node, result = ended.get()
        under_way.remove(node.fingerprint)
        if isinstance(result, BaseException):
            failure = failure or result
        elif result:
            executed.add(node.fingerprint)
    if failure is not None:
        raise failure
    return executed


def _stands_on(node: Step, others: set[str]) -> bool:
    return any(before.fingerprint in others for before in node.upstream)


def _chains(waiting: list[Step]) -> dict[str, int]:
    """For each step how many follow one another from it on."""
    lengths = {node.fingerprint: 1 for node in waiting}
    for node in reversed(waiting):
        for before in node.upstream:
            if before.fingerprint in lengths:
                lengths[before.fingerprint] = max(lengths[before.fingerprint], lengths[node.fingerprint] + 1)
    return lengths


def _title(number: int, total: int, node: Step) -> str:
    return f"[{number}/{total}] {node.label}"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
