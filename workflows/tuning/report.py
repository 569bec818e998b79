"""Report trials: lines for the log, a table in plain text, the best trial's config, and a page."""

import json
import textwrap
from pathlib import Path
from typing import Any

from sparring.components.charts.scatter_plot import Dot, Scatter, svg
from sparring.components.evaluation.measures import within
from sparring.components.evaluation.result_table import WIDTH, unsigned
from sparring.components.files import replacing
from sparring.components.yaml_files import yaml_text
from sparring.workflows.report import page as pages
from sparring.workflows.report.verdict import in_prose
from sparring.workflows.tuning.trials import Trial, TrialTable

PAGE = "tune.html"
LUCK = "The best of many trials is partly lucky. On queries that chose no trial, expect a little less."
NORMAL = 1.96
"""A 95 % interval ends so many standard errors from the mean."""


def verdict(table: TrialTable) -> list[str]:
    """Say which trial is best, how good it is with its 95 % interval over the queries, and against what."""
    best = table.best
    if best is None:
        return []
    value, interval = best.measures[-1], ""
    if table.error is not None:
        low, high = within(table.measure, value - NORMAL * table.error, value + NORMAL * table.error)
        interval = f" [{unsigned(low)}, {unsigned(high)}]"
    of_best = (
        f"{table.measure} {unsigned(value)}{interval} for {in_prose(table.systems[-1])} on the {table.split} queries"
    )
    baseline = baseline_trial(table)
    if not best.point:
        return [f"No trial was better than the config as it is: {of_best}.", LUCK]
    compared = "" if baseline is None else f", against {unsigned(baseline.measures[-1])} with the config as it is"
    return [f"Trial {best.number} is the best of {len(table.trials)}: {of_best}{compared}.", LUCK]


def baseline_trial(table: TrialTable) -> Trial | None:
    """Return the finished trial of the config as it is, if there is one."""
    return next((trial for trial in table.trials if not trial.point and trial.state == "done"), None)


def format_value(value: Any) -> str:
    """Write the value of a key in a few characters."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def column_names(names: list[str]) -> list[str]:
    """Shorten dotted keys to their shortest distinct ends."""
    parts = [name.split(".") for name in names]

    def shortest(key: list[str]) -> str:
        for length in range(1, len(key)):
            if sum(part[-length:] == key[-length:] for part in parts) == 1:
                return ".".join(key[-length:])
        return ".".join(key)

    return [shortest(key) for key in parts]


def format_trial(table: TrialTable, trial: Trial) -> str:
    """Write a line for the log about a trial that has a new measure or has ended."""
    values = ", ".join(f"{name}={format_value(trial.values[name])}" for name in table.names if name in trial.values)
    baseline = "as it is: " if not trial.point else ""
    if trial.state == "failed":
        outcome = f"failed: {trial.reason}"
    elif trial.measures:
        outcome = f"{table.measure} {trial.measures[-1]:.3f} of {table.systems[len(trial.measures) - 1]}"
        outcome += ", stopped" if trial.state == "stopped" else ""
    else:
        outcome = "stopped at a validation"
    return f"trial {trial.number}: {outcome}  ({baseline}{values})"


def format_table(table: TrialTable) -> str:
    """Write the trials as plain text, the best first."""
    best = table.best
    rows = [["trial", *column_names(table.names), *table.systems, ""]]
    for trial in table.best_first:
        measures = [f"{value:.3f}" for value in trial.measures]
        measures += [""] * (len(table.systems) - len(measures))
        remark: str = "best" if trial is best else "" if trial.state == "done" else trial.state
        if best is not None and remark == "" and measures[-1] == f"{best.measures[-1]:.3f}":
            remark = "as good"
        if not trial.point:
            remark = ", ".join(part for part in (remark, "the config as it is") if part)
        values = [format_value(trial.values[name]) if name in trial.values else "" for name in table.names]
        rows.append([str(trial.number), *values, *measures, remark])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join(["", *cells, row[-1]]).rstrip())
    reasons = [f"  trial {trial.number} failed: {trial.reason}" for trial in table.trials if trial.state == "failed"]
    heading = f"{table.measure}, {table.split} split; {table.counts}"
    closing = ["", textwrap.fill(" ".join(verdict(table)), WIDTH)] if best is not None else []
    return "\n".join([heading, "", *lines, *([""] if reasons else []), *reasons, *closing])


def write_best(table: TrialTable, config: dict[str, Any], source: Path, *, results_split: str, then: str) -> Path:
    """Write the best trial's config as a file for `run`.

    Its comment gives the next command, `then`, and the `--set` that measures the config on `results_split`.
    """
    best, path = table.best, table.best_config
    assert best is not None
    values = ", ".join(f"{name}={format_value(value)}" for name, value in best.values.items())
    comment = (
        f"# The best of {table.counts} of {source}: {table.measure} {best.measures[-1]:.3f} of {table.systems[-1]},\n"
        f"# {table.split} split (trial {best.number}): {values or 'the config as it is'}.\n"
        f"#     {then}\n"
        f"# On queries that it was not chosen by: --set evaluate.split={results_split}\n"
    )
    with replacing(path) as temporary:
        temporary.write_text(comment + yaml_text(config), encoding="utf-8")
    return path


def write_page(
    table: TrialTable,
    *,
    title: str,
    source: Path,
    config: dict[str, Any],
    log_keys: set[str],
    results_split: str,
    then: str,
) -> Path:
    """Write the page of a table with a best trial.

    It has the trials, the command `then` that runs the best config, and a chart of the measure against each key. The
    axes of `log_keys` are logarithmic.
    """
    from markupsafe import Markup  # marks the SVG, whose texts are escaped already

    charts = [
        {"name": name, "svg": Markup(svg(chart))}
        for name in table.names
        if (chart := scatter(table, name, log=name in log_keys)) is not None
    ]
    page = {
        "title": title,
        "table": table,
        "best": table.best,
        "results": results_split,
        "baseline": baseline_trial(table),
        "stopped": any(trial.state == "stopped" for trial in table.trials),
        "charts": charts,
        "source": source,
        "columns": column_names(table.names),
        "format_value": format_value,
        "sentences": verdict(table),
        "then": then,
        "config": config,
        "seconds": sum(trial.seconds for trial in table.trials),
    }
    table.folder.mkdir(parents=True, exist_ok=True)
    pages.write_page(table.folder / PAGE, page, template=PAGE)
    return table.folder / PAGE


def scatter(table: TrialTable, name: str, *, log: bool) -> Scatter | None:
    """Describe the chart of each trial's last measure against a key; None if no trial has both."""
    dots = [
        Dot(
            setting=trial.values[name],
            value=trial.measures[-1],
            kind="best" if trial is table.best else "whole" if trial.state == "done" else "part",
            name=f"trial {trial.number}: {table.systems[len(trial.measures) - 1]}"
            f"{'' if trial.point else ', the config as it is'}",
        )
        for trial in table.trials
        if trial.measures and name in trial.values
    ]
    return Scatter(measure=table.measure, key=name, dots=dots, log=log) if dots else None
