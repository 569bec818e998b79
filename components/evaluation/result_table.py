"""The measures of a run for people: systems by measures, and what each comparison means."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from components.evaluation.measures import description, mean_and_deviation

WIDTH = 110
"""Columns of the plain-text table."""
CLEAR = 0.05
"""A difference is called clear below this p."""

AVERAGE = "average"
"""What averages over collections have in place of a collection's name."""

Json = dict[str, Any]


def by_collection(metrics: Json) -> list[Json]:
    """For each collection and split: systems by measures, means over the seeds, and the comparisons."""
    places = list(dict.fromkeys((row["collection"], row["split"]) for row in metrics["rows"]))
    means = {(row["collection"], row["split"]) for row in metrics["rows"] if "over" in row}
    return [_result(*place, metrics) for place in places if place not in means]


def _result(collection: str, split: str, metrics: Json) -> Json:
    def here(entry: Json) -> bool:
        return bool(entry["collection"] == collection and entry["split"] == split)

    rows = [row for row in metrics["rows"] if here(row)]
    names = list(dict.fromkeys(row["measure"] for row in rows))
    values: dict[str, dict[str, list[float]]] = {}
    queries: dict[str, int] = {}
    for row in rows:
        values.setdefault(row["system"], {}).setdefault(row["measure"], []).append(row["value"])
        queries[row["system"]] = row["queries"]
    systems: list[Json] = []
    for system, measured in values.items():
        cells = [mean_and_deviation(measured[name]) if name in measured else None for name in names]
        systems.append({"system": system, "cells": cells, "queries": queries[system]})
    most = max(queries.values())
    # Systems that were measured on a sample of the queries do not compare with those measured on all.
    best = [
        max((cell[0] for s in systems if s["queries"] == most and (cell := s["cells"][at])), default=math.inf)
        for at in range(len(names))
    ]
    return {
        "collection": collection,
        "split": split,
        "measures": [{"name": name, "meaning": _meaning(name, rows)} for name in names],
        "systems": systems,
        "best": best,
        "queries": most,
        "seeds": sorted({row["seed"] for row in rows}),
        "comparisons": _comparisons([entry for entry in metrics["comparisons"] if here(entry)]),
        "rows": rows,
    }


def averages_of(rows: list[Json], parts: Mapping[str, str]) -> list[Json]:
    """A row for each system, measure and seed that was measured on all collections: the mean over them.

    `parts` names, for a collection that is a part of one, the whole. A whole is the mean over its parts, has rows of
    its own, and counts once in the average, as CQADupStack's twelve forums do in BEIR (Thakur et al., 2021).
    """
    wholes: list[Json] = []
    for whole in dict.fromkeys(parts.values()):
        wholes += _means(whole, [row for row in rows if parts.get(row["collection"]) == whole])
    counted = [row for row in rows if row["collection"] not in parts] + wholes
    return wholes + _means(AVERAGE, counted)


def _means(name: str, rows: list[Json]) -> list[Json]:
    """The means over all collections among the rows, as rows of a collection `name`; `over` has their names."""
    places = list(dict.fromkeys((row["collection"], row["split"]) for row in rows))
    groups: dict[tuple[str, str, int], list[Json]] = {}
    for row in rows:
        groups.setdefault((row["system"], row["measure"], row["seed"]), []).append(row)
    return [
        {
            "system": system, "round": None, "collection": name, "split": "all", "seed": seed, "measure": measure,
            "value": sum(row["value"] for row in of) / len(of), "queries": sum(row["queries"] for row in of),
            "over": [collection for collection, _ in places],
        }
        for (system, measure, seed), of in groups.items() if len(of) == len(places)
    ]  # fmt: skip


def across(metrics: Json) -> list[Json]:
    """For each measure that has averages: collections by systems, means over the seeds, the averages last."""
    rows = metrics["rows"]
    tables = []
    for measure in dict.fromkeys(row["measure"] for row in rows if row["collection"] == AVERAGE):
        own = [row for row in rows if row["measure"] == measure]
        systems = list(dict.fromkeys(row["system"] for row in own if row["collection"] == AVERAGE))
        lines = []
        for name in dict.fromkeys(row["collection"] for row in own):
            of = [[r["value"] for r in own if (r["collection"], r["system"]) == (name, one)] for one in systems]
            cells = [mean_and_deviation(values)[0] for values in of]
            lines.append({"collection": name, "cells": cells, "best": max(cells)})
        tables.append({"measure": measure, "systems": systems, "lines": lines})
    return tables


def _meaning(name: str, rows: list[Json]) -> str:
    """What a measure says; for answers also where and how they were looked for."""
    row = next(row for row in rows if row["measure"] == name)
    return description(name, answers_in=row.get("fields", "text"), patterns=row.get("mode") == "regex")


def _comparisons(entries: list[Json]) -> list[Json]:
    """The comparisons of each system with its baseline, one entry a measure with its verdict."""
    pairs: dict[tuple[str, str], Json] = {}
    for entry in entries:
        key = (entry["system"], entry["baseline"])
        names = {"system": key[0], "baseline": key[1], "seeds": entry["seeds"], "measures": []}
        difference, p = entry["difference"], entry["p"]
        measured = {"name": entry["measure"], "difference": difference, "p": p, "word": verdict(difference, p)}
        pairs.setdefault(key, names)["measures"].append(measured)
    return list(pairs.values())


def verdict(difference: float, p: float) -> str:
    """Whether a difference is clear, and which way it goes, in words."""
    if p >= CLEAR or difference == 0:
        return "no clear difference"
    return "better" if difference > 0 else "worse"


def p_text(p: float) -> str:
    """`p < .001`, `p = .021`, `p = .21`."""
    if p < 0.001:
        return "p < .001"
    return f"p = {p:.3f}".replace("0.", ".") if p < 0.1 else f"p = {p:.2f}".replace("0.", ".")


def leading_sentence(metrics: Json) -> str:
    """The comparison that leads in words, and how it came to; "" where there is none, or results have averages."""
    lead = metrics.get("leading")
    if lead is None or lead["system"] is None or across(metrics):
        return ""
    if lead["why"]:
        chosen = f"Nothing was selected ({lead['why']}): {lead['system']} against {lead['baseline']}."
    elif lead["selected_on"]:
        chosen = f"Best trained system on {lead['selected_on']}: {lead['system']}; best untrained: {lead['baseline']}."
    else:
        chosen = f"{lead['system']} against {lead['baseline']}."
    entries = [e for e in metrics["comparisons"] if (e["system"], e["baseline"]) == (lead["system"], lead["baseline"])]
    if not entries:  # the two were measured on nothing in common
        return chosen
    entry = next((e for e in entries if e["measure"] == lead["measure"]), entries[0])
    ours, theirs = _means_of(entry, metrics["rows"])
    difference = f"{entry['difference']:+.3f}".replace("0.", ".")
    values = f"{entry['measure']} {_short(ours)} against {_short(theirs)} ({difference}, {p_text(entry['p'])})"
    return f"{chosen} On {entry['split']}: {values}."


def _means_of(entry: Json, rows: list[Json]) -> tuple[float, float]:
    """A system's mean and its baseline's on the queries that they were compared on: one that was measured on more has
    another in the table."""
    means = {}
    for name in (entry["system"], entry["baseline"]):
        own = [row for row in rows if row["system"] == name and row["seed"] in entry["seeds"]
               and all(row[key] == entry[key] for key in ("collection", "split", "measure", "queries"))]  # fmt: skip
        if own:
            means[name] = mean_and_deviation(row["value"] for row in own)[0]
    ours = means.get(entry["system"], means.get(entry["baseline"], 0.0) + entry["difference"])
    return ours, ours - entry["difference"]


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def table(metrics: Json) -> str:
    """The measures in plain text, for the end of a run."""
    if not metrics["rows"]:
        return "No measures yet."
    lead = [textwrap.fill(sentence, WIDTH)] if (sentence := leading_sentence(metrics)) else []
    parts = [_across_lines(one) for one in across(metrics)] or [
        _result_lines(result) for result in by_collection(metrics)
    ]
    return "\n\n".join([*lead, *("\n".join(lines) for lines in parts)])


def _across_lines(one: Json) -> list[str]:
    """A measure's table over collections."""
    first = max(len(AVERAGE), *(len(line["collection"]) for line in one["lines"])) + 2
    column = max(9, *(len(name) + 3 for name in one["systems"]))
    lines = [
        one["measure"],
        "",
        "  " + "collection".ljust(first) + "".join(f"{n} ".rjust(column) for n in one["systems"]),
    ]
    for line in one["lines"]:
        cells = "".join(_cell((cell, None), line["best"]).rjust(column) for cell in line["cells"])
        lines.append("  " + line["collection"].ljust(first) + cells.rstrip())
    return [*lines, "", "  Higher is better; * is the best of its row."]


def _result_lines(result: Json) -> list[str]:
    seeds = f", mean ± standard deviation over {len(result['seeds'])} seeds" if len(result["seeds"]) > 1 else ""
    lines = [f"{result['collection']}, {result['split']} split: {result['queries']:,} queries{seeds}", ""]
    names = [measure["name"] for measure in result["measures"]]
    first = min(44, max(len("system"), *(len(entry["system"]) for entry in result["systems"]))) + 2
    column = max(9, *(len(name) + 3 for name in names), 17 if seeds else 0)
    fits = max(1, (WIDTH - 2 - first) // column)
    for start in range(0, len(names), fits):
        block = range(start, min(start + fits, len(names)))
        lines.append("  " + "system".ljust(first) + "".join(f"{names[at]} ".rjust(column) for at in block).rstrip())
        for entry in result["systems"]:
            whole = entry["queries"] == result["queries"]
            cells = "".join(
                _cell(entry["cells"][at], result["best"][at] if whole else None).rjust(column) for at in block
            )
            name = textwrap.shorten(entry["system"], first - 2, placeholder="…")
            sampled = "" if whole else f"  of {entry['queries']:,} queries"
            lines.append("  " + name.ljust(first) + cells.rstrip() + sampled)
        lines.append("")
    lines += _comparison_lines(result)
    lines += [f"  {measure['name']}: {measure['meaning']}." for measure in result["measures"] if measure["meaning"]]
    return [*lines, "  Higher is better; * is the best of its column."]


def _cell(cell: tuple[float, float | None] | None, best: float | None) -> str:
    if cell is None:
        return "- "
    mean, deviation = cell
    return f"{mean:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "") + ("*" if mean == best else " ")


def _comparison_lines(result: Json) -> list[str]:
    if not result["comparisons"]:
        return []
    lines = ["  Is the difference more than chance? (paired randomization over the queries)", ""]
    for entry in result["comparisons"]:
        texts = [f"{m['name']} {m['difference']:+.3f}: {m['word']}, {p_text(m['p'])}" for m in entry["measures"]]
        over = f" ({len(entry['seeds'])} seeds)" if len(entry["seeds"]) > 1 else ""
        lines.append(f"  {entry['system']} against {entry['baseline']}{over}")
        for text in texts:
            if len(lines[-1]) + len(text) + 3 > WIDTH or text is texts[0]:
                lines.append(" " * 6 + text)
            else:
                lines[-1] += ";  " + text
    if sum(len(entry["measures"]) for entry in result["comparisons"]) > 1:
        lines += ["", "  p is of each difference by itself: where nothing differs, about 1 in 20 is still below .05."]
    return [*lines, ""]
