"""Follow a run or a tuning that another shell started: the steps that are done, those that run with their progress, and
the next ones. Only files are read."""

import shutil
import sys
import time
from pathlib import Path

from sparring.components.config import UserError, listing
from sparring.components.yaml_files import read_yaml
from sparring.workflows.estimating.run_time import read_estimate
from sparring.workflows.experiments.loading import CONFIG, Experiment, other_runs
from sparring.workflows.quantities import between
from sparring.workflows.report.differences import changes, text_of
from sparring.workflows.report.run_folder import is_at_work
from sparring.workflows.report.scores import Scores
from sparring.workflows.running.view import bar, columns
from sparring.workflows.store import s3
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.planner import pending
from sparring.workflows.store.progress import describe
from sparring.workflows.store.store import FAILURE, Artifact, Store
from sparring.workflows.tuning.report import format_table
from sparring.workflows.tuning.trials import TrialTable

NEXT = 4
"""Number of waiting steps that are named."""
MEASURED = 12
"""Number of measured systems that are shown with their scores: the last ones."""
SHOWN = 3
"""Number of another run's values that are shown."""


def watch(experiment: Experiment, store: Store, again: str, *, seconds: float = 1.0) -> None:
    """Show a run until it is finished, or until Ctrl-C. A terminal is redrawn in place. Elsewhere, print whenever a
    step begins or ends."""
    live, before, drawn, followed = sys.stdout.isatty(), "", 0, False
    while True:
        waiting = pending(experiment.wanted, store)
        trials = trials_in(experiment.run)
        tuning = trials is not None and trials.under_way
        followed = followed or tuning
        if trials is not None and tuning:
            text = trials_view(trials, "; watching until then (Ctrl-C ends this)")
            busy = _of_trials(trials, experiment, store)
            key = text + listing(busy)
            text = "\n".join([text, *busy.values()])
        else:
            if not store.holders(waiting):
                time.sleep(seconds)  # it may be between two steps
                waiting = pending(experiment.wanted, store)
            text = view(experiment, store, waiting, again)
            held = store.holders(waiting)
            if waiting and not held:
                text += "\n  watching until it goes on (Ctrl-C ends this)"
            key = text if live else text.partition(" to run")[0] + listing(held)
        if key != before:
            if live:
                text = fitted(text)
                print(f"\033[{drawn}F\033[J" if drawn else "", end="")
            print(text, flush=True)
            before, drawn = key, text.count("\n") + 1
        if not waiting or (followed and not tuning):
            return
        time.sleep(seconds)


def fitted(text: str) -> str:
    """Cut a text to the terminal, so that it can be erased: lines that wrap or scroll away cannot."""
    lines, rows = text.splitlines(), shutil.get_terminal_size((100, 24)).lines - 1
    return "\n".join(line[: columns()] for line in lines[:rows])


def trials_in(run: Path) -> TrialTable | None:
    """Read the trials of a tuning in a run's folder. Trials whose driver was killed are waiting again."""
    trials = TrialTable.read(run)
    if trials is not None and not is_at_work(run):
        for trial in trials.trials:
            trial.state = "waiting" if trial.state == "running" else trial.state
    return trials


def trials_view(trials: TrialTable, until_then: str = "") -> str:
    """Describe a tuning as it is now. If nothing is at work on it, say how to resume it and add `until_then`."""
    idle = trials.under_way and not is_at_work(trials.folder)
    return format_table(trials) + (f"\n  nothing is running; repeat `tune` to resume{until_then}" if idle else "")


def _of_trials(trials: TrialTable, experiment: Experiment, store: Store) -> dict[str, str]:
    """Return a line for each running step of trials, by the artifact's name."""
    steps: dict[str, Step | Artifact] = {node.name: node for node in graph(experiment.wanted)}
    nodes = [steps.get(name) or Artifact(name, name) for name in trials.artifacts]
    held = store.holders(nodes)
    return {node.name: _busy(node, store, held) for node in nodes if node.name in held}


def _busy(node: Step | Artifact, store: Store, held: dict[str, str]) -> str:
    """Describe a running step: its progress, or who runs it."""
    state = store.progress(node)
    title = f"[{node.phase}] {node.label}" if isinstance(node, Step) and node.phase else node.label
    if state is None:
        return f"  {title}  ({held[node.name]})"
    return f"  {bar(title, state, state['seconds'], columns() - 2)}"


def view(experiment: Experiment, store: Store, waiting: list[Step], again: str) -> str:
    """Describe a run as it is now, with a line per running step. `again` is the command that resumes it."""
    whole = len(graph(experiment.wanted))
    rest = _time_left(experiment, store, waiting)
    place = "" if s3.is_cached(store.root) or store.root.exists() else f"; there is no store at {store.root}"
    lines = [f"{experiment.name}: {whole - len(waiting)} of {whole} steps done, {len(waiting)} to run{rest}{place}"]
    held = store.holders(waiting)
    busy = [node for node in waiting if node.name in held]
    lines += [_busy(node, store, held) for node in busy]
    if waiting and not busy:
        lines.append("  No step is running. A job that was just submitted may still be starting.")
        lines.append(f"  Otherwise resume with: {again} (and the --cluster that it had)")
    if waiting and not busy and (runs := other_runs(experiment)):
        lines.append("  other runs of this config, which `show` takes too:")
        lines += [f"    {folder}{_set(experiment, folder)}" for folder in runs]
    lines += [f"  failed: {node.label}: {line}" for node in waiting if node not in busy and (line := _why(node, store))]
    stopped = {node: describe(store.path(node)) for node in waiting if node not in busy}
    lines += [
        f"  stopped: {node.label} at {how_far}; {_kept(node, store)}" for node, how_far in stopped.items() if how_far
    ]
    later = [node.label for node in waiting if node not in busy]
    if later:
        more = f" and {len(later) - NEXT} more" if len(later) > NEXT else ""
        lines.append(f"  then: {listing(later[:NEXT])}{more}")
    scores = Scores(experiment.outcome.rows, store).before(waiting) if waiting else []
    if scores:
        more = f" (the last {MEASURED} of {len(scores)})" if len(scores) > MEASURED else ""
        lines += [f"  measured{more}:", *(f"  {line}" for line in scores[-MEASURED:])]
    return "\n".join(lines)


def _set(experiment: Experiment, folder: Path) -> str:
    """List the values of another run that differ from this run's, as `--set` takes them."""
    try:
        differences = changes(experiment.config.model_dump(mode="json"), read_yaml(folder / CONFIG))
    except UserError:  # the run that is shown is another one
        return f" (its {CONFIG} cannot be read)"
    values = [f"{key}={text_of(value)}" for key, _, value in differences[:SHOWN]]
    more = f", and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return f": {', '.join(values)}{more}" if values else ""


def _time_left(experiment: Experiment, store: Store, waiting: list[Step]) -> str:
    """Format a run's remaining time, by its estimate and finished steps. Empty if nothing runs or was estimated."""
    forecast, held = read_estimate(experiment.run), store.holders(waiting)
    if forecast is None or not held:
        return ""
    unfinished = {node.name for node in waiting}
    for node in graph(experiment.wanted):
        if node.name not in unfinished and (record := store.record(node)) is not None:
            forecast.finish(node.name, record["seconds"])
    states = {node.name: store.progress(node) for node in waiting if node.name in held}
    running = {name: (state["seconds"] if state else 0.0, state) for name, state in states.items()}
    return f", {between(*forecast.left_between(running))} left"


def _kept(node: Step, store: Store) -> str:
    """Say from where a stopped step continues."""
    if node.description.models != "training":
        return "what was saved of it is kept"
    saved = [int(path.name.partition("-")[2]) for path in store.path(node).glob("checkpoints/update-[0-9]*")]
    return f"it goes on from update {max(saved):,}" if saved else "no checkpoint was saved yet: it begins anew"


def _why(node: Step, store: Store) -> str:
    """Return the last line of the step's last failure. Empty if it has not failed."""
    path = store.path(node) / FAILURE
    try:
        return path.read_text().strip().splitlines()[-1]
    except (FileNotFoundError, IndexError):
        return ""
