"""A run or a tuning seen from another shell: what is done, what is at work and how far, what comes next.

Files are read, nothing else.
"""

import shutil
import sys
import time

from components.config import listing
from workflows.dag import Step, graph
from workflows.progress import bar
from workflows.recipes import Experiment
from workflows.store import FAILURE, Store, todo
from workflows.trials import Book, table

NEXT = 4
"""Steps that are named of those that wait."""


def watch(experiment: Experiment, store: Store, *, seconds: float = 1.0) -> None:
    """Show a run until it is finished, or Ctrl-C: in place on a terminal, elsewhere whenever a step begins or ends."""
    live, before, drawn = sys.stdout.isatty(), "", 0
    while True:
        waiting = todo(experiment.wanted, store)
        book = Book.read(experiment.run)
        if book is not None and book.at_work:
            text = key = table(book)
        else:
            text = view(experiment, store, waiting)
            key = text if live else text.partition("\n")[0] + listing(store.held(waiting))
        if key != before:
            if live and drawn:
                print(f"\033[{drawn}F\033[J", end="")
            print(text, flush=True)
            before, drawn = key, text.count("\n") + 1
        if not waiting or (book is not None and not book.at_work):
            return
        time.sleep(seconds)


def view(experiment: Experiment, store: Store, waiting: list[Step]) -> str:
    """A run as it is now, a line for each step at work."""
    whole = len(graph(experiment.wanted))
    lines = [f"{experiment.name}: {whole - len(waiting)} of {whole} steps done, {len(waiting)} to run"]
    width = shutil.get_terminal_size((100, 24)).columns - 1
    held = store.held(waiting)
    busy = [node for node in waiting if node.name in held]
    for node in busy:
        state = store.progress(node)
        far = bar(node.label, state, state["seconds"], width) if state is not None else node.label
        lines.append(f"  {far}  ({held[node.name]})" if state is None else f"  {far}")
    if waiting and not busy:
        lines.append("  nobody is at it: python -m workflows run goes on")
    lines += [f"  failed: {node.label}: {why}" for node in waiting if node not in busy and (why := _why(node, store))]
    later = [node.label for node in waiting if node not in busy]
    if later:
        more = f" and {len(later) - NEXT} more" if len(later) > NEXT else ""
        lines.append(f"  then: {listing(later[:NEXT])}{more}")
    return "\n".join(lines)


def _why(node: Step, store: Store) -> str:
    """The last line of what went wrong the last time, if it did."""
    path = store.path(node) / FAILURE
    try:
        return path.read_text().strip().splitlines()[-1]
    except (FileNotFoundError, IndexError):
        return ""
