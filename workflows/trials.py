"""The trials of a tuning: what each set and came to, kept in `trials.json`, and how a reader is shown them."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from components.files import replacing, write_json
from components.scatter import Dot, Scatter, svg
from components.search_space import Point
from workflows import report as reports

TRIALS = "trials.json"
PAGE = "tune.html"

State = Literal["waiting", "running", "stopped", "done", "failed"]


@dataclass
class Trial:
    """A recipe with other numbers."""

    number: int
    point: Point
    """What it sets, by name; nothing for the config as it is."""
    shown: dict[str, Any]
    """The same for a reader; of the config as it is, what it has there."""
    state: State = "waiting"
    measures: list[float] = field(default_factory=list)
    """Of the systems that it came to, in order."""
    seconds: float = 0.0
    """Work of its own: what others had done already took none."""
    steps: int = 0
    """Steps that it ran: others had done the rest."""
    reason: str = ""
    """Why it failed."""

    @property
    def final(self) -> bool:
        """Whether there is nothing left to do for it."""
        return self.state in ("stopped", "done")


@dataclass
class Book:
    """All trials of a tuning, and what they have in common."""

    folder: Path
    measure: str
    systems: list[str]
    split: str
    goal: Literal["max", "min"]
    names: list[str]
    """Of the keys that are tuned."""
    identity: str
    """Stands for all but how many trials there are: those of another tuning are no trials of this one."""
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Book | None":
        """The book that lies in a run's folder, if one does."""
        try:
            known = json.loads((folder / TRIALS).read_text())
        except FileNotFoundError:
            return None
        listed = [Trial(**trial) for trial in known.pop("trials")]
        return cls(folder=folder, trials=listed, **known)

    def remember(self) -> None:
        """Take up the trials of an earlier run of the same tuning. One that was at work is to go on."""
        known = Book.read(self.folder)
        if known is None or known.identity != self.identity:
            return
        self.trials = known.trials
        for trial in self.trials:
            if not trial.final:
                trial.state, trial.reason = "waiting", ""

    def save(self) -> None:
        """Write `trials.json`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {key: value for key, value in asdict(self).items() if key not in ("folder", "trials")}
        write_json(self.folder / TRIALS, {**about, "trials": [asdict(trial) for trial in self.trials]})

    def better(self, value: float) -> float:
        """A number that is the lower the better a value is."""
        return -value if self.goal == "max" else value

    @property
    def at_work(self) -> bool:
        """Whether there are trials that are to go on."""
        return any(trial.state in ("waiting", "running") for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """Of the trials that came to the last system; of equals the first."""
        done = [trial for trial in self.trials if trial.state == "done"]
        return min(done, key=lambda trial: self.better(trial.measures[-1]), default=None)

    @property
    def ordered(self) -> list[Trial]:
        """The best first; those that came further before those that were stopped earlier."""

        def place(trial: Trial) -> tuple[int, float]:
            return -len(trial.measures), self.better(trial.measures[-1]) if trial.measures else math.inf

        return sorted(self.trials, key=place)

    @property
    def best_config(self) -> Path:
        """Where the best trial's config lies; named so that its run has a name of its own."""
        return self.folder / f"{self.folder.name}-best.yaml"

    @property
    def counts(self) -> str:
        """`12 trials: 5 done, 6 stopped, 1 failed`."""
        states = [trial.state for trial in self.trials]
        some = [f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, key=STATES.index))]
        return f"{len(states)} trial{'s' if len(states) != 1 else ''}: {', '.join(some)}"


STATES: list[State] = ["done", "stopped", "failed", "running", "waiting"]


def said(value: Any) -> str:
    """A value as a table has it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value)


def headings(names: list[str]) -> list[str]:
    """The shortest ends of dotted keys that tell them from each other."""
    parts = [name.split(".") for name in names]

    def short(own: list[str]) -> str:
        for length in range(1, len(own)):
            if sum(other[-length:] == own[-length:] for other in parts) == 1:
                return ".".join(own[-length:])
        return ".".join(own)

    return [short(own) for own in parts]


def table(book: Book) -> str:
    """The trials as plain text, the best first."""
    best = book.best
    rows = [["trial", *headings(book.names), *book.systems, ""]]
    for trial in book.ordered:
        measures = [f"{value:.3f}" for value in trial.measures]
        measures += [""] * (len(book.systems) - len(measures))
        remark: str = "best" if trial is best else "" if trial.state == "done" else trial.state
        if not trial.point:
            remark = ", ".join(part for part in (remark, "the config as it is") if part)
        values = [said(trial.shown[name]) if name in trial.shown else "" for name in book.names]
        rows.append([str(trial.number), *values, *measures, remark])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join(["", *cells, row[-1]]).rstrip())
    reasons = [f"  trial {trial.number} failed: {trial.reason}" for trial in book.trials if trial.state == "failed"]
    return "\n".join([f"{book.measure}, {book.split} split; {book.counts}", "", *lines, *([""] if reasons else []),
                      *reasons])  # fmt: skip


def write_best(book: Book, config: dict[str, Any], source: Path, *, results: str) -> Path:
    """The best trial's config, whole, as a file that `run` takes; it says how to measure it on the results' split."""
    best, path = book.best, book.best_config
    assert best is not None
    text = (
        f"# The best of {book.counts} of {source}: {book.measure} {best.measures[-1]:.3f} of {book.systems[-1]},\n"
        f"# {book.split} split (trial {best.number}).\n"
        f"#     python -m workflows run {path}\n"
        f"# On queries that it was not chosen by: --set evaluate.split={results}\n"
    )
    with replacing(path) as temporary:
        temporary.write_text(text + yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def write_page(
    book: Book, *, title: str, source: Path, config: dict[str, Any], scales: dict[str, str], results: str
) -> Path:
    """The page: the trials, and the measure against each key. `scales` says which keys are even on a log scale."""
    from markupsafe import Markup  # our own drawing, escaped where it is made

    best = book.best
    charts = [
        {"name": name, "svg": Markup(svg(chart))}
        for name in book.names
        if (chart := scatter(book, name, log=scales.get(name) == "loguniform")) is not None
    ]
    as_it_is = next((trial for trial in book.trials if not trial.point and trial.state == "done"), None)
    page = {
        "title": title, "book": book, "best": best, "results": results, "as_it_is": as_it_is,
        "stopped": any(trial.state == "stopped" for trial in book.trials), "charts": charts, "source": source,
        "columns": headings(book.names), "said": said, "path": book.best_config, "config": config,
        "seconds": sum(trial.seconds for trial in book.trials),
    }  # fmt: skip
    book.folder.mkdir(parents=True, exist_ok=True)
    reports.write_page(book.folder / PAGE, page, template=PAGE)
    return book.folder / PAGE


def scatter(book: Book, name: str, *, log: bool) -> Scatter | None:
    """The measure of each trial's last system against one key; None where no trial came to any."""
    dots = [
        Dot(
            at=trial.shown[name], value=trial.measures[-1],
            kind="best" if trial is book.best else "whole" if trial.state == "done" else "part",
            about=f"trial {trial.number}: {book.systems[len(trial.measures) - 1]}"
            f"{'' if trial.point else ', the config as it is'}",
        )
        for trial in book.trials
        if trial.measures and name in trial.shown
    ]  # fmt: skip
    return Scatter(measure=book.measure, key=name, dots=dots, log=log) if dots else None
