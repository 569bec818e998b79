"""The measures of a run as text: a table of systems, the comparisons with their p, and the verdict."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparring.components.evaluation.averages import AVERAGE
from sparring.components.evaluation.measures import description, mean_and_deviation
from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING

WIDTH = 110
"""Columns of the plain-text table."""
CLEAR = 0.05
"""A difference is called clear below this p."""
BETTER, WORSE, UNCLEAR = "better", "worse", "no clear difference"
"""Outcomes of a comparison."""

Json = dict[str, Any]


class Cell(NamedTuple):
    """A system's mean of a measure."""

    mean: float
    half: float | None
    """Half of its 95 % interval; None of one query."""
    deviation: float | None
    """The standard deviation over the seeds; None of one seed."""


WORDS = {
    "start model": "`model` of the config as it is, before any training here",
    "whole start model": "the start model with all its layers",
    "reciprocal": "reciprocal rank fusion: a sum over ranks",
    "interpolated": "fusion by a weighted sum of scores",
    "RM3": "BM25 with query expansion: words of its first results are added to the query",
    "by neighbours": "results reordered by the nearest neighbours that a document shares with the query",
    "warm": "after the warm-up training, before the first round",
    "ranker": "a reranker (cross-encoder): reorders the results of the system named after `over`",
}
"""Explanations of words in the names of systems."""


def by_collection(metrics: Json) -> list[Json]:
    """Tabulate each collection and split: systems by measures, means over the seeds, and the comparisons."""
    places = list(dict.fromkeys((row["collection"], row["split"]) for row in metrics["rows"]))
    means = {(row["collection"], row["split"]) for row in metrics["rows"] if "over" in row}
    return [_result(*place, metrics) for place in places if place not in means]


def _result(collection: str, split: str, metrics: Json) -> Json:
    entries = {
        part: [entry for entry in metrics[part] if (entry["collection"], entry["split"]) == (collection, split)]
        for part in ("rows", "means", "comparisons")
    }
    names = list(dict.fromkeys(mean["measure"] for mean in entries["means"]))
    cells: dict[str, dict[str, Cell]] = {}
    for mean in entries["means"]:
        cells.setdefault(mean["system"], {})[mean["measure"]] = _cell_of(mean, entries["rows"])
    counts = {(mean["system"], mean["measure"]): mean["queries"] for mean in entries["means"]}
    most_of = {name: max(counts.get((system, name), 0) for system in cells) for name in names}
    most = max(most_of.values())
    systems: list[Json] = [
        {
            "system": system,
            "cells": [by_measure.get(name) for name in names],
            "queries": min(
                (counts[system, name] for name in by_measure if counts[system, name] < most_of[name]), default=most
            ),
        }
        for system, by_measure in cells.items()
    ]
    # Systems that were measured on a sample of the queries do not compare with those measured on all.
    best = [
        max((cell.mean for s in systems if s["queries"] == most and (cell := s["cells"][column])), default=math.inf)
        for column in range(len(names))
    ]
    comparisons = _comparisons(entries["comparisons"])
    return {
        "collection": collection,
        "split": split,
        "measures": names,
        "terms": [(name, meaning) for name in names if (meaning := _meaning(name, entries["rows"]))]
        + [(name, f"of {_queries(most_of[name])}") for name in names if most_of[name] < most]
        + [
            (word, meaning) for word, meaning in WORDS.items() if any(re.search(rf"\b{word}\b", name) for name in cells)
        ],
        "systems": systems,
        "best": best,
        "queries": most,
        "seeds": _seeds(entries["rows"]),
        "comparisons": comparisons,
        "about_tests": _about_tests(comparisons),
        "rows": entries["rows"],
    }


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"


def _seeds(rows: Sequence[Json]) -> list[int]:
    """Return the seeds of the system that has the most."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["system"], set()).add(row["seed"])
    return max((sorted(numbers) for numbers in seeds.values()), key=len)


def _cell_of(mean: Json, rows: Sequence[Json]) -> Cell:
    """Return a mean with its interval, and the deviation over its seeds."""
    same = ("system", "collection", "measure")
    values = (row["value"] for row in rows if all(row[key] == mean[key] for key in same))
    return Cell(mean["value"], _half(mean), mean_and_deviation(values)[1])


def _half(mean: Json) -> float | None:
    return None if mean["low"] is None else (mean["high"] - mean["low"]) / 2


def across(metrics: Json) -> list[Json]:
    """Tabulate each measure that has averages: collections by systems, means over the seeds, the averages last."""
    tables = []
    for measure in dict.fromkeys(mean["measure"] for mean in metrics["means"] if mean["collection"] == AVERAGE):
        means = _counted([mean for mean in metrics["means"] if mean["measure"] == measure])
        by_place = {(mean["collection"], mean["system"]): Cell(mean["value"], _half(mean), None) for mean in means}
        systems = [mean["system"] for mean in means if mean["collection"] == AVERAGE]
        lines = []
        for name in dict.fromkeys(mean["collection"] for mean in means):
            cells = [by_place[name, system] for system in systems]
            counts = {mean["system"]: mean["queries"] for mean in means if mean["collection"] == name}
            most = max(counts[system] for system in systems)
            whole = [cell.mean for cell, system in zip(cells, systems, strict=True) if counts[system] == most]
            lines.append({"collection": name, "cells": cells, "best": max(whole)})
        trainings = any(len(mean["seeds"]) > 1 for mean in means)
        tables.append({"measure": measure, "systems": systems, "lines": lines, "trainings": trainings})
    return tables


def averages_compared(metrics: Json) -> Json:
    """Return the comparisons of the average over all collections, and what their tests count as chance."""
    comparisons = _comparisons([entry for entry in metrics["comparisons"] if entry["collection"] == AVERAGE])
    names = dict.fromkeys(measure["name"] for entry in comparisons for measure in entry["measures"])
    return {"comparisons": comparisons, "measures": list(names), "about_tests": _about_tests(comparisons)}


def _counted(means: list[Json]) -> list[Json]:
    """Select a measure's averages, and its means on the collections that they count."""
    counted = {name for mean in means for name in mean.get("over", ())}
    return [mean for mean in means if "over" in mean or mean["collection"] in counted]


def _meaning(name: str, rows: list[Json]) -> str:
    """Explain a measure, for answers also where and how they were looked for."""
    row = next(row for row in rows if row["measure"] == name)
    return description(name, answers_in=row.get("fields", "text"), patterns=row.get("mode") == "regex")


def _comparisons(entries: list[Json]) -> list[Json]:
    """Group the comparisons of each system with its baseline. Each measure has both tests, and the verdict of the
    test that counts more sources of chance.
    """
    pairs: dict[tuple[str, str], Json] = {}
    for entry in entries:
        key = (entry["system"], entry["baseline"])
        pair = pairs.setdefault(key, {"system": key[0], "baseline": key[1], "seeds": entry["seeds"], "measures": {}})
        pair["measures"].setdefault(entry["measure"], {})[entry["test"]] = entry
    return [
        {**pair, "measures": [_compared(name, tests) for name, tests in pair["measures"].items()]}
        for pair in pairs.values()
    ]


def _compared(name: str, tests: dict[str, Json]) -> Json:
    """Return a measure's difference, with the interval and the verdict of the test that counts most."""
    method, training = tests.get(THE_METHOD), tests[THIS_TRAINING]
    most = method or training
    return {
        "name": name,
        "difference": most["difference"],
        "half": _half(most),
        "word": outcome(most["difference"], most["p_holm"]),
        "method": method,
        "training": training,
    }


def _about_tests(comparisons: list[Json]) -> list[str]:
    """Explain what the tests count as chance, and what their p is corrected for."""
    measures = [measure for entry in comparisons for measure in entry["measures"]]
    if not measures:
        return []
    training = (
        "this training: p counts only the queries as chance (paired randomization) and takes the trained models as "
        "they are."
    )
    holm = (
        f"Holm: p is corrected for the {len(measures)} differences of this table. If none is real, the chance that "
        "any is called better or worse is about 5 %."
    )
    if not any(measure["method"] for measure in measures):
        return [
            f"{training} Another seed would train other models: one seed says nothing about the method.",
            holm,
        ]
    method = "the method: p counts queries and trainings as chance (crossed over seeds and queries)."
    return [method, training, f"{holm} Words and ± follow the method if it has p."]


def outcome(difference: float, p: float) -> str:
    """Say whether a difference is clear, and which way it goes."""
    if p >= CLEAR or difference == 0:
        return UNCLEAR
    return BETTER if difference > 0 else WORSE


def p_number(p: float) -> str:
    """Format p without its sign: `<.001`, `.021`, `.21`, `1.00`."""
    if p < 0.001:
        return "<.001"
    return f"{p:.3f}".replace("0.", ".") if p < 0.1 else f"{p:.2f}".replace("0.", ".")


def p_text(p: float) -> str:
    """Format p with its sign: `p < .001`, `p = .021`, `p = .21`."""
    return f"p < {p_number(p)[1:]}" if p < 0.001 else f"p = {p_number(p)}"


def leading_entry(metrics: Json, measure: str | None) -> Json | None:
    """Return the leading comparison by a measure, by the test that counts the most sources of chance.

    If `measure` is None, take the comparison's first measure. The comparison is that of the average over all
    collections, or else of the first collection: other judgements come later. Return None if the two systems have no
    measurement in common.
    """
    lead = metrics["leading"]
    pair = [e for e in metrics["comparisons"] if (e["system"], e["baseline"]) == (lead["system"], lead["baseline"])]
    entries = [entry for entry in pair if entry["collection"] == AVERAGE] or pair
    same = [
        entry
        for entry in entries
        if all(entry[key] == entries[0][key] for key in ("collection", "split"))
        and entry["measure"] == (measure or entries[0]["measure"])
    ]
    return same[-1] if same else None


def means_compared(entry: Json, rows: list[Json]) -> tuple[float, float]:
    """Return a system's mean and its baseline's on the queries that they were compared on.

    A system that was measured on more queries has another mean in the table.
    """
    means = {}
    for name in (entry["system"], entry["baseline"]):
        rows_compared = [
            row
            for row in rows
            if row["system"] == name
            and row["seed"] in entry["seeds"]
            and all(row[key] == entry[key] for key in ("collection", "split", "measure", "queries"))
        ]
        if rows_compared:
            means[name] = mean_and_deviation(row["value"] for row in rows_compared)[0]
    system_mean = means.get(entry["system"], means.get(entry["baseline"], 0.0) + entry["difference"])
    return system_mean, system_mean - entry["difference"]


def unsigned(value: float) -> str:
    """`.123`, `1.000`, `-.020`."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def signed(value: float) -> str:
    """`+.123`, `-1.000`."""
    return ("+" if value >= 0 else "") + unsigned(value)


def table(metrics: Json) -> str:
    """Lay out the measures in plain text, for the end of a run. The verdict comes last, next to the prompt."""
    if not metrics["rows"]:
        return textwrap.fill(metrics.get("unmeasured", "No measures yet."), WIDTH)
    averaged = across(metrics)
    rest = [result for result in by_collection(metrics) if _says_more(result, averaged)]
    compared = _comparison_lines(averages_compared(metrics))
    between = [["Averages over collections, compared", *compared]] if compared else []
    parts = [*(_across_lines(entry) for entry in averaged), *between, *(_result_lines(result) for result in rest)]
    paper = ["\n".join(_expected_lines(metrics["expected"]))] if "expected" in metrics else []
    verdict = metrics.get("verdict") or {"details": [], "sentences": []}
    details = ["\n".join(textwrap.fill(text, WIDTH, break_on_hyphens=False) for text in verdict["details"])]
    spoken = (verdict["sentences"], verdict.get("early", []))
    closing = [textwrap.fill(" ".join(sentences), WIDTH, break_on_hyphens=False) for sentences in spoken]
    notes = [textwrap.fill(note, WIDTH) for note in metrics.get("notes", [])]
    blocks = ["\n".join(lines) for lines in parts] + paper + notes + details + closing
    return "\n\n".join(block for block in blocks if block)


def _says_more(result: Json, averaged: list[Json]) -> bool:
    """Check whether a collection has a value that no table over collections shows.

    Such a collection is in no average, or has a system that was not measured on all collections.
    """
    shown = {
        (table["measure"], system)
        for table in averaged
        for system in table["systems"]
        if any(line["collection"] == result["collection"] for line in table["lines"])
    }
    return any(
        cell is not None and (name, entry["system"]) not in shown
        for entry in result["systems"]
        for name, cell in zip(result["measures"], entry["cells"], strict=True)
    )


def _expected_lines(expected: Json) -> list[str]:
    """Lay out a paper's numbers next to the measured ones."""
    rows = expected["rows"]
    if not rows:
        return [textwrap.fill(f"{expected['source']}: {expected['unsaid']}.", WIDTH)]
    by_collection = any(row["collection"] for row in rows)
    names = [f"{row['collection']}: {row['system']}" if by_collection else row["system"] for row in rows]
    first, second = (
        max(len(head), *map(len, column)) + 2
        for head, column in (("system", names), ("measure", [row["measure"] for row in rows]))
    )
    lines = [f"{expected['source']}: the paper's numbers and this run's", ""]
    lines.append(f"  {'system':{first}}{'measure':{second}}{'paper':>6}   {'this run':15} difference   paper lies")
    for name, row in zip(names, rows, strict=True):
        cell = _cell(None if row["value"] is None else Cell(row["value"], _half(row), None), None).strip()
        less = "-" if row["difference"] is None else f"{row['difference']:+.3f}"
        lines.append(
            f"  {name:{first}}{row['measure']:{second}}{row['expected']:6.3f}   {cell:15} {less:>10}   {row['lies']}"
        )
    sentences = dict.fromkeys(row["sentence"] for row in rows if row["lies"] == "not comparable")
    return [
        *lines,
        "",
        *(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  ") for text in sentences),
        "  within, above or below the 95 % interval of this run. The config lists what else differs.",
    ]


def _across_lines(table: Json) -> list[str]:
    """Lay out a measure's table over collections."""
    lines = [(line["collection"], line["cells"], [line["best"]] * len(line["cells"]), "") for line in table["lines"]]
    return [
        table["measure"],
        "",
        *_grid("collection", table["systems"], lines),
        *_about_cells("row", table["trainings"], None),
    ]


def _result_lines(result: Json) -> list[str]:
    """Lay out a collection's table of systems by measures, and its comparisons."""
    names, seeds = result["measures"], len(result["seeds"])
    lines = []
    for entry in result["systems"]:
        whole = entry["queries"] == result["queries"]
        best = result["best"] if whole else [None] * len(names)
        lines.append((entry["system"], entry["cells"], best, "" if whole else f"  of {_queries(entry['queries'])}"))
    over = f", {seeds} seeds" if seeds > 1 else ""
    return [
        f"{result['collection']}, {result['split']} split: {_queries(result['queries'])}{over}",
        "",
        *_grid("system", names, lines),
        *_about_cells("column", seeds > 1, seeds if seeds > 1 else None),
        *(f"  {name}: {meaning}." for name, meaning in result["terms"]),
        *_comparison_lines(result),
    ]


def _grid(head: str, names: list[str], lines: list[tuple[str, list[Any], list[Any], str]]) -> list[str]:
    """Lay out lines in blocks of as many columns as fit.

    A line has a name, its cells, the best of each cell's kind and a remark.
    """
    texts = [
        [_cell(cell, best_of_kind) for cell, best_of_kind in zip(cells, best, strict=True)]
        for _, cells, best, _ in lines
    ]
    first = min(44, max(len(head), *(len(name) for name, *_ in lines))) + 2
    column = 3 + max(len(text.rstrip()) for text in [*names, *(text for row in texts for text in row)])
    remark = max(len(note) for *_, note in lines)
    fits = max(1, (WIDTH - 2 - first - remark) // column)
    blocks = []
    for start in range(0, len(names), fits):
        block = slice(start, start + fits)
        blocks.append("  " + head.ljust(first) + "".join(f"{name} ".rjust(column) for name in names[block]).rstrip())
        for (name, *_, note), row in zip(lines, texts, strict=True):
            short = textwrap.shorten(name, first - 2, placeholder="…").ljust(first)
            blocks.append("  " + short + "".join(text.rjust(column) for text in row[block]).rstrip() + note)
        blocks.append("")
    return blocks


def _cell(cell: Cell | None, best: float | None) -> str:
    if cell is None:
        return "- "
    half = "" if cell.half is None else f" ± {cell.half:.3f}"
    deviation = "" if cell.deviation is None else f" ({cell.deviation:.3f})"
    return f"{cell.mean:.3f}{half}{deviation}" + ("*" if cell.mean == best else " ")


def _about_cells(line: str, trainings: bool, seeds: int | None) -> list[str]:
    """Explain the numbers of a table."""
    over = "queries and trainings" if trainings else "the queries"
    deviation = f", brackets hold the standard deviation over the {seeds} seeds" if seeds else ""
    return [
        f"  ± is the 95 % interval over {over}{deviation}.",
        f"  Higher is better. * marks the best of its {line}.",
    ]


def _comparison_lines(result: Json) -> list[str]:
    """Lay out each comparison, a line a measure: the difference, the verdict and p of both tests, with notes."""
    if not result["comparisons"]:
        return []
    entries = result["comparisons"]
    tests = {"method": "the method", "training": "this training"}
    if all(measure["method"] is None for entry in entries for measure in entry["measures"]):
        del tests["method"]
    name = max(len(measure["name"]) for entry in entries for measure in entry["measures"])
    indent = 6 + name + 2 + len("+0.000 ± 0.000") + 2 + len("no clear difference")
    lines = ["", "  Is the difference more than chance?", ""]
    lines.append(" " * indent + "".join(f"   {words:>14}" for words in tests.values()))
    lines.append(" " * indent + "   " + "   ".join(f"{'p':>6}{'Holm':>8}" for _ in tests))
    for entry in entries:
        over = f" ({len(entry['seeds'])} seeds)" if len(entry["seeds"]) > 1 else ""
        lines.append(f"  {entry['system']} against {entry['baseline']}{over}")
        for measure in entry["measures"]:
            half = "" if measure["half"] is None else f" ± {measure['half']:.3f}"
            summary = f"{measure['name']:{name}}  {measure['difference']:+.3f}{half:8}  {measure['word']:19}"
            ps = [_ps(measure[test]) for test in tests]
            lines.append(" " * 6 + summary + "".join(f"   {text}" for text in ps))
    return [*lines, "", *(f"  {line}" for text in result["about_tests"] for line in textwrap.wrap(text, WIDTH - 2))]


def _ps(entry: Json | None) -> str:
    return f"{'-':>6}{'-':>8}" if entry is None else f"{p_number(entry['p']):>6}{p_number(entry['p_holm']):>8}"
