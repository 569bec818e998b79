"""Display of a run: on a terminal its phases with a bar for each running step, elsewhere plain lines."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm
from tqdm.utils import disp_len, disp_trim

from sparring.workflows.quantities import between, duration
from sparring.workflows.running.forecast import Forecast
from sparring.workflows.running.polling import repeated
from sparring.workflows.store.dag import Step
from sparring.workflows.store.progress import PROGRESS, read_progress

STARTED, FIRST, LONGEST = 2.0, 15.0, 120.0
"""In plain lines: seconds after which a line says that a step is running, and how far it is. Further lines follow
whenever twice as much time has passed, and at least every two minutes."""
SHORT = 5.0
"""Seconds of the longest step from which on a finished phase names it."""
BAR = 24
"""Most characters of a bar."""
LABEL = 30
"""Most characters of a step's label beside a bar."""
UPCOMING = 5
"""Most phases to come that are listed one below the other."""


@dataclass
class Running:
    """A step that this driver runs, or waits for."""

    title: str
    """Number, phase and label."""
    node: Step
    out: Path
    began: float
    holder: str = ""
    """The other driver that is running the step."""

    @property
    def seconds(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self.began

    def named(self, name: str) -> str:
        """Return a name of the step, with the other driver that is running it."""
        return f"{name} (in {self.holder})" if self.holder else name


class ProgressView:
    """The running steps and the time that is left, printed as plain lines: when a step ends, and now and then while it
    runs, at growing intervals."""

    def __init__(self, forecast: Forecast | None = None) -> None:
        self._forecast, self._due = forecast, dict[str, float]()
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()

    @contextmanager
    def step(self, title: str, node: Step, out: Path) -> Iterator[None]:
        """Show a step's progress while the block runs."""
        with self._lock:
            self._running[title] = Running(title, node, out, time.monotonic())
            self._begin(node)
        try:
            yield
        except BaseException:
            with self._lock:
                self._fail(node)
            raise
        finally:
            with self._lock:
                del self._running[title]
                self._due.pop(title, None)

    def wait(self, title: str, holder: str) -> None:
        """Name the driver whose progress is shown until this one starts the step."""
        with self._lock:
            self._running[title].holder = holder
            self._say(f"{title}: waiting for {holder}, which is running this step")

    def start(self, title: str) -> None:
        """Show this driver's own progress. If the step was stopped before, say how far it was."""
        with self._lock:
            running = self._running[title]
            running.holder = ""
            if state := read_progress(running.out):
                self._write(f"{self._name(running)}: stopped before at {units(state)}; unsaved work is repeated\n")
        (running.out / PROGRESS).unlink(missing_ok=True)

    def done(
        self, title: str, node: Step, seconds: float, *, executed: bool, notes: str, scores: Sequence[str]
    ) -> None:
        """Show that a step is done, with its notes and the scores that it measured."""
        with self._lock:
            since, time_left = clock(time.monotonic() - self._began), f", {rest}" if (rest := self.time_left()) else ""
            word = "done" if executed else "done by another driver"
            self._write(f"{title}: {word} in {seconds:.1f} s  ({since} since the start{time_left})\n")
            for text in [*(f"{title}: {note}" for note in notes.splitlines()), *scores]:
                self._write(f"{text}\n")

    def look(self) -> None:
        """Print a line for each step that is due for one."""
        with self._lock:
            for title, running in self._running.items():
                seconds, state = running.seconds, read_progress(running.out)
                if seconds < self._due.get(title, STARTED):
                    continue
                name = running.named(title)
                if seconds < FIRST:
                    self._due[title] = FIRST
                    self._write(f"{name}: running\n")
                    continue
                self._due[title] = min(2 * seconds, seconds + LONGEST)
                time_left = f"; whole run: {rest}" if (rest := self.time_left()) else ""
                self._write(f"{line(name, state, seconds)}{time_left}\n")

    def close(self, *, failed: bool) -> None:
        """End the view. If the run `failed`, say what is open."""

    def time_left(self) -> str:
        """Describe the remaining time of the whole run. Empty if nothing was estimated."""
        if self._forecast is None or not self._forecast.total or self._forecast.over:
            return ""
        running = {entry.out.name: (entry.seconds, read_progress(entry.out)) for entry in self._running.values()}
        return f"{between(*self._forecast.left_between(running))} left"

    def _begin(self, node: Step) -> None:
        """Note that a step begins."""

    def _fail(self, node: Step) -> None:
        """Note that a step failed or was interrupted."""

    def _name(self, running: Running) -> str:
        """Return what a line about a step begins with."""
        return running.title

    def _say(self, text: str) -> None:
        """Print a line that a view of phases does not need."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)


@dataclass
class Phase:
    """The steps of a phase that are to run, folded into one line."""

    name: str
    steps: int
    finished: int = 0
    running: int = 0
    since: float = 0.0
    """When the first of the running steps began."""
    seconds: float = 0.0
    """Time in which at least one step ran, without that of `running` steps."""
    longest: tuple[float, str] = (0.0, "")
    """The seconds and the label of the step that took longest."""
    stopped: list[str] = field(default_factory=list)
    """Labels of steps that failed or were interrupted."""

    @property
    def begun(self) -> bool:
        """True if a step has begun."""
        return bool(self.finished or self.running or self.stopped)

    def begin(self) -> None:
        """Count a step as running."""
        self.since = self.since if self.running else time.monotonic()
        self.running += 1

    def end(self) -> None:
        """Count a step as no longer running."""
        self.running -= 1
        if not self.running:
            self.seconds += time.monotonic() - self.since

    def took(self) -> float:
        """Return the seconds in which at least one step ran."""
        return self.seconds + (time.monotonic() - self.since if self.running else 0.0)


class Screen(Protocol):
    """A place that can be redrawn."""

    def write(self, text: str) -> None:
        """Print a text that stays, and erase what was drawn."""

    def draw(self, lines: list[str]) -> None:
        """Draw lines in place of those that were drawn before."""


class Terminal:
    """A terminal, whose last lines are redrawn."""

    def __init__(self) -> None:
        self._drawn = 0

    def write(self, text: str) -> None:
        """Print a text over the drawn lines."""
        up = f"\033[{self._drawn - 1}A" if self._drawn > 1 else ""
        print(f"{up}\r\033[J" if self._drawn else "", text, sep="", end="", file=sys.stderr, flush=True)
        self._drawn = 0

    def draw(self, lines: list[str]) -> None:
        """Draw as many of the last lines as the terminal has rows for."""
        rows = shutil.get_terminal_size((100, 24)).lines - 1
        self.write("\n".join(lines[-rows:]))
        self._drawn = min(len(lines), rows)


class Notebook:
    """An output area of a notebook, and the cell's output above it."""

    def __init__(self, area: Any) -> None:
        self._area = area

    def write(self, text: str) -> None:
        """Print a text on stdout, as notebooks colour what goes to stderr as an error."""
        self._area.update({"text/plain": ""}, raw=True)
        print(text, end="", flush=True)

    def draw(self, lines: list[str]) -> None:
        """Draw lines in the area."""
        self._area.update({"text/plain": "\n".join(lines)}, raw=True)


class PhasesView(ProgressView):
    """The phases of a run. Their finished steps are folded into a line for each phase, and running steps have bars.
    Scores and finished phases stay on the screen; the lines below them are redrawn."""

    def __init__(self, screen: Screen, steps: Sequence[Step], forecast: Forecast | None = None) -> None:
        super().__init__(forecast)
        self._screen = screen
        self._phases: dict[str, Phase] = {}
        for node in steps:
            self._phases.setdefault(node.phase, Phase(capitalised(node.phase) or "Steps", 0)).steps += 1
        self._width = max(len(name) for name in ("Whole run", *(phase.name for phase in self._phases.values())))
        self._colours = isinstance(screen, Terminal) and "NO_COLOR" not in os.environ

    def look(self) -> None:
        """Redraw the open phases, their running steps and the run's time left."""
        with self._lock:
            if self._running:
                self._screen.draw(self._lines())

    def done(
        self, title: str, node: Step, seconds: float, *, executed: bool, notes: str, scores: Sequence[str]
    ) -> None:
        """Fold a step into its phase and print the scores that it measured. Its notes stand below the table of results
        when the run ends."""
        with self._lock:
            phase = self._phases[node.phase]
            phase.end()
            phase.finished += 1
            phase.longest = max(phase.longest, (seconds, node.label))
            for score in scores:
                self._write(f"{score}\n")
            if phase.finished == phase.steps:
                self._write(self._line("done", phase, how_long(phase)) + "\n")

    def close(self, *, failed: bool) -> None:
        """Erase what is redrawn. If the run `failed`, say how far the open phases are."""
        with self._lock:
            self._write("")
            for phase in self._open() if failed else ():
                labels = [*phase.stopped, *(entry.node.label for entry in self._in(phase))]
                stopped = f", stopped in {', '.join(labels)}" if labels else ""
                self._write(self._line("failed" if stopped else "", phase, f"{how_far(phase)}{stopped}") + "\n")

    def _begin(self, node: Step) -> None:
        self._phases[node.phase].begin()

    def _fail(self, node: Step) -> None:
        self._phases[node.phase].end()
        self._phases[node.phase].stopped.append(node.label)

    def _name(self, running: Running) -> str:
        """Return the label, indented as a phase's name."""
        return f"  {running.node.label}"

    def _say(self, text: str) -> None:
        """Print nothing: the running step's line names the other driver."""

    def _open(self) -> list[Phase]:
        """Return the phases that have begun and are not over."""
        return [phase for phase in self._phases.values() if phase.begun and phase.finished < phase.steps]

    def _in(self, phase: Phase) -> list[Running]:
        """Return a phase's running steps."""
        return [entry for entry in self._running.values() if self._phases[entry.node.phase] is phase]

    def _lines(self) -> list[str]:
        """Return the lines of the phases that are not over, and of the whole run."""
        width, lines = columns(), list[str]()
        for phase in self._open():
            lines.append(self._line("running" if phase.running else "", phase, how_far(phase)))
            for entry in self._in(phase):
                state = read_progress(entry.out)
                lines.append(f"    {bar(entry.named(entry.node.label), state, entry.seconds, width - 4)}")
        upcoming = [phase for phase in self._phases.values() if not phase.begun]
        lines += [self._line("", phase, counted_steps(phase.steps)) for phase in upcoming[:UPCOMING]]
        if len(upcoming) > UPCOMING:
            lines.append(f"  and {len(upcoming) - UPCOMING} more phases")
        finished, steps = (sum(getattr(phase, key) for phase in self._phases.values()) for key in ("finished", "steps"))
        time_left = f", {rest}" if (rest := self.time_left()) else ""
        seconds = duration(time.monotonic() - self._began)
        name = "Whole run".ljust(self._width)
        return [*lines, disp_trim(f"  {name}  {finished} of {counted_steps(steps)}, {seconds}{time_left}", width)]

    def _line(self, state: str, phase: Phase, text: str) -> str:
        """Format a phase's line, as wide as the terminal at most."""
        mark, colour = marks()[state]
        name = phase.name.ljust(self._width)
        rest = disp_trim(f"{name}  {text}", columns() - 2).removeprefix(name)
        if not self._colours or not mark.strip():
            return f"{mark} {name}{rest}"
        return f"\033[{colour}m{mark}\033[0m \033[1m{name}\033[0m{rest}"

    def _write(self, text: str) -> None:
        self._screen.write(text)


@contextmanager
def progress_view(steps: Sequence[Step] = (), forecast: Forecast | None = None) -> Iterator[ProgressView]:
    """Show the steps that are to run, until the block ends."""
    view = open_view(steps, forecast)
    failed = True
    try:
        with repeated(0.25, view.look):
            yield view
        failed = False
    finally:
        view.close(failed=failed)


def open_view(steps: Sequence[Step], forecast: Forecast | None) -> ProgressView:
    """Open a view of phases on a terminal and in a notebook, and one of plain lines elsewhere."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return PhasesView(Terminal(), steps, forecast)
    area = notebook_area()
    return ProgressView(forecast) if area is None else PhasesView(Notebook(area), steps, forecast)


def notebook_area() -> Any:
    """Open an output area of the notebook that this process serves, which can be redrawn. None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):  # a terminal, or none
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)


def columns() -> int:
    """Return the width of a line: one less than the terminal has columns, or 99 without a terminal."""
    return shutil.get_terminal_size((100, 24)).columns - 1


def marks() -> dict[str, tuple[str, int]]:
    """Return each state's mark and colour, in characters that the terminal has."""
    done, running, failed = ("✓", "▸", "✗") if has_blocks() else ("+", ">", "!")
    return {"done": (done, 32), "running": (running, 36), "failed": (failed, 31), "": (" ", 0)}


def has_blocks() -> bool:
    """Tell whether what goes to stderr may have marks and blocks."""
    with suppress(UnicodeEncodeError, LookupError):
        "✓▸✗█░".encode(getattr(sys.stderr, "encoding", None) or "utf-8")
        return True
    return False


def bar(title: str, state: dict[str, Any] | None, seconds: float, width: int) -> str:
    """Format a running step's progress in one line: bar, count, rate, time left and note, as far as they fit."""
    if state is None:
        return disp_trim(f"{title}  {duration(seconds)}", width)
    count, total = units(state), state["total"]
    rate, time_left = rate_and_time_left(state)
    for parts in (
        (count, rate, time_left, state["note"]),
        (count, rate, time_left),
        (count, time_left or rate),
        (count,),
    ):
        text = "  ".join(filter(None, parts))
        name = disp_trim(title, LABEL)
        room = width - disp_len(name) - disp_len(text) - 10  # the percentage and gaps of two
        if not total and room >= -6:
            return f"{name}  {text}"
        if total and room >= BAR // 3:
            share, length = min(1.0, state["done"] / total), min(room, BAR)
            return f"{name}  {drawn(share, length)}  {share:4.0%}  {text}"
    return disp_trim(f"{title}  {count}", width)


def drawn(share: float, length: int) -> str:
    """Draw a bar that is filled by a share.

    >>> drawn(0.5, 8)
    '████░░░░'
    """
    blocks = has_blocks()
    text = tqdm.format_meter(share, 1.0, 0.0, ncols=length, bar_format="{bar}", ascii=not blocks)
    return text.replace(" ", "░" if blocks else "-")


def units(state: dict[str, Any]) -> str:
    """`18/900 updates`, or `7 records` if nobody knows how many there are."""
    total = f"/{state['total']:,}" if state["total"] is not None else ""
    return f"{state['done']:,}{total} {state['unit']}"


def rate_and_time_left(state: dict[str, Any]) -> tuple[str, str]:
    """Describe a step's rate and time left, by this run's own work. Empty if they are not known.

    >>> rate_and_time_left({"done": 12, "first": 2, "total": 20, "seconds": 250.0, "unit": "updates"})
    ('25 s per update', '3 min 20 s left')
    """
    count, seconds, unit = state["done"] - state["first"], state["seconds"], state["unit"]
    if count <= 0 or seconds <= 0:
        return "", ""
    rate = count / seconds
    if rate < 1:
        singular = f"{unit[:-3]}y" if unit.endswith("ies") else unit.removesuffix("s")
        words = f"{duration(1 / rate)} per {singular}"
    else:
        words = f"{rate:,.0f} {unit}/s" if rate >= 100 else f"{rate:.3g} {unit}/s"
    if state["total"] is None or state["done"] >= state["total"]:
        return words, ""
    return words, f"{duration((state['total'] - state['done']) / rate)} left"


def line(title: str, state: dict[str, Any] | None, seconds: float) -> str:
    """Format progress in plain words for a log: `[3/9] vectors: 500/4,950 texts, 32.2 texts/s, 2 min 18 s left`.

    For a resumed step, add how much was done before.
    """
    if state is None:
        return f"{title}: running for {duration(seconds)}"
    resumed = f"resumed at {state['first']:,}" if state["first"] else ""
    parts = [units(state), *rate_and_time_left(state), resumed, state["note"]]
    return f"{title}: {', '.join(filter(None, parts))}"


def capitalised(phase: str) -> str:
    """Return a phase's name as a title.

    >>> capitalised("warm-up")
    'Warm-up'
    """
    return phase[:1].upper() + phase[1:]


def counted_steps(count: int) -> str:
    """`1 step`, `12 steps`."""
    return f"{count} step{'s' if count != 1 else ''}"


def how_far(phase: Phase) -> str:
    """Describe an open phase: `3 of 12 steps in 21 s`."""
    return f"{phase.finished} of {counted_steps(phase.steps)} in {duration(phase.took())}"


def how_long(phase: Phase) -> str:
    """Describe a finished phase: `12 steps in 45 s (warm retriever 30 s)`."""
    seconds, label = phase.longest
    longest = f" ({label} {duration(seconds)})" if phase.steps > 1 and seconds >= SHORT else ""
    return f"{counted_steps(phase.steps)} in {duration(phase.took())}{longest}"


def clock(seconds: float) -> str:
    """`1:05`: minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
