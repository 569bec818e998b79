"""The measures of a run for people: systems by measures, and what each comparison means."""

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
    "reciprocal": "fused by ranks, reciprocal rank fusion",
    "interpolated": "fused by a weighted sum of scores",
    "RM3": "BM25 once more, with words of the first documents that it found",
    "by neighbours": "in another order, by nearest neighbours that documents and query share",
    "warm": "as trained before the first round",
    "ranker": "a model that reads a query with a document, and orders anew what the system behind `over` finds",
}
"""What words in the names of systems mean."""


def by_collection(metrics: Json) -> list[Json]:
    """For each collection and split: systems by measures, means over the seeds, and the comparisons."""
    places = list(dict.fromkeys((row["collection"], row["split"]) for row in metrics["rows"]))
    means = {(row["collection"], row["split"]) for row in metrics["rows"] if "over" in row}
    return [_result(*place, metrics) for place in places if place not in means]


def _result(collection: str, split: str, metrics: Json) -> Json:
    here = {
        part: [one for one in metrics[part] if (one["collection"], one["split"]) == (collection, split)]
        for part in ("rows", "means", "comparisons")
    }
    names = list(dict.fromkeys(one["measure"] for one in here["means"]))
    cells: dict[str, dict[str, Cell]] = {}
    for one in here["means"]:
        cells.setdefault(one["system"], {})[one["measure"]] = _cell_of(one, here["rows"])
    counts = {(one["system"], one["measure"]): one["queries"] for one in here["means"]}
    most_of = {name: max(counts.get((system, name), 0) for system in cells) for name in names}
    most = max(most_of.values())
    systems: list[Json] = [
        {
            "system": system,
            "cells": [of.get(name) for name in names],
            "queries": min((counts[system, name] for name in of if counts[system, name] < most_of[name]), default=most),
        }
        for system, of in cells.items()
    ]
    # Systems that were measured on a sample of the queries do not compare with those measured on all.
    best = [
        max((cell.mean for s in systems if s["queries"] == most and (cell := s["cells"][at])), default=math.inf)
        for at in range(len(names))
    ]
    comparisons = _comparisons(here["comparisons"])
    return {
        "collection": collection,
        "split": split,
        "measures": names,
        "terms": [(name, meaning) for name in names if (meaning := _meaning(name, here["rows"]))]
        + [(name, f"of {_queries(most_of[name])}") for name in names if most_of[name] < most]
        + [
            (word, meaning) for word, meaning in WORDS.items() if any(re.search(rf"\b{word}\b", name) for name in cells)
        ],
        "systems": systems,
        "best": best,
        "queries": most,
        "seeds": _seeds(here["rows"]),
        "comparisons": comparisons,
        "about_tests": _about_tests(comparisons),
        "rows": here["rows"],
    }


def _queries(count: int) -> str:
    return f"{count:,} {'query' if count == 1 else 'queries'}"


def _seeds(rows: Sequence[Json]) -> list[int]:
    """The seeds of the system that has the most."""
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["system"], set()).add(row["seed"])
    return max((sorted(own) for own in seeds.values()), key=len)


def _cell_of(mean: Json, rows: Sequence[Json]) -> Cell:
    """A mean with its interval, and the deviation over its seeds that the rows have."""
    same = ("system", "collection", "measure")
    values = (row["value"] for row in rows if all(row[key] == mean[key] for key in same))
    return Cell(mean["value"], _half(mean), mean_and_deviation(values)[1])


def _half(found: Json) -> float | None:
    return None if found["low"] is None else (found["high"] - found["low"]) / 2


def across(metrics: Json) -> list[Json]:
    """For each measure that has averages: collections by systems, means over the seeds, the averages last."""
    tables = []
    for measure in dict.fromkeys(one["measure"] for one in metrics["means"] if one["collection"] == AVERAGE):
        own = _counted([one for one in metrics["means"] if one["measure"] == measure])
        found = {(one["collection"], one["system"]): Cell(one["value"], _half(one), None) for one in own}
        systems = [one["system"] for one in own if one["collection"] == AVERAGE]
        lines = []
        for name in dict.fromkeys(one["collection"] for one in own):
            cells = [found[name, system] for system in systems]
            counts = {one["system"]: one["queries"] for one in own if one["collection"] == name}
            most = max(counts[of] for of in systems)
            whole = [cell.mean for cell, of in zip(cells, systems, strict=True) if counts[of] == most]
            lines.append({"collection": name, "cells": cells, "best": max(whole)})
        several = any(len(one["seeds"]) > 1 for one in own)
        tables.append({"measure": measure, "systems": systems, "lines": lines, "several": several})
    return tables


def averages_compared(metrics: Json) -> Json:
    """The comparisons of the averages over collections, and what their tests count; of no wholes but the last."""
    comparisons = _comparisons([one for one in metrics["comparisons"] if one["collection"] == AVERAGE])
    names = dict.fromkeys(one["name"] for entry in comparisons for one in entry["measures"])
    return {"comparisons": comparisons, "measures": list(names), "about_tests": _about_tests(comparisons)}


def _counted(means: list[Json]) -> list[Json]:
    """A measure's means on the collections that its averages count, and these averages."""
    counted = {name for one in means for name in one.get("over", ())}
    return [one for one in means if "over" in one or one["collection"] in counted]


def _meaning(name: str, rows: list[Json]) -> str:
    """What a measure says; for answers also where and how they were looked for."""
    row = next(row for row in rows if row["measure"] == name)
    return description(name, answers_in=row.get("fields", "text"), patterns=row.get("mode") == "regex")


def _comparisons(entries: list[Json]) -> list[Json]:
    """The comparisons of each system with its baseline: for each measure both tests, and the verdict of the one that
    counts more sources of chance."""
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
    """A measure's difference, with the interval and the verdict of the test that counts most."""
    method, training = tests.get(THE_METHOD), tests[THIS_TRAINING]
    most = method or training
    word = verdict(most["difference"], most["p_holm"])
    return {
        "name": name,
        "difference": most["difference"],
        "half": _half(most),
        "word": word,
        "method": method,
        "training": training,
    }


def _about_tests(comparisons: list[Json]) -> list[str]:
    """What the tests count as chance, and what their p is corrected for, in words."""
    measures = [one for entry in comparisons for one in entry["measures"]]
    if not measures:
        return []
    training = (
        "this training: p counts the queries alone as chance (paired randomization) and takes the trained models as "
        "they are."
    )
    holm = (
        f"Holm: p corrected for the {len(measures)} differences of this table. Where none is real, the chance that "
        "even one is called better or worse is about 5 %."
    )
    if not any(one["method"] for one in measures):
        return [f"{training} One seed says nothing of the method: another seed makes other models.", holm]
    method = "the method: p counts queries and trainings as chance (crossed over seeds and queries)."
    return [method, training, f"{holm} Words and ± are those of the method, where it has p."]


def verdict(difference: float, p: float) -> str:
    """Whether a difference is clear, and which way it goes, in words."""
    if p >= CLEAR or difference == 0:
        return "no clear difference"
    return "better" if difference > 0 else "worse"


def p_number(p: float) -> str:
    """`<.001`, `.021`, `.21`, `1.00`."""
    if p < 0.001:
        return "<.001"
    return f"{p:.3f}".replace("0.", ".") if p < 0.1 else f"{p:.2f}".replace("0.", ".")


def p_text(p: float) -> str:
    """`p < .001`, `p = .021`, `p = .21`."""
    return f"p < {p_number(p)[1:]}" if p < 0.001 else f"p = {p_number(p)}"


def leading_sentence(metrics: Json) -> str:
    """The comparison that leads in words, and how it came to; "" where there is none, or results have averages."""
    lead = metrics.get("leading")
    if lead is None or lead["system"] is None or across(metrics):
        return ""
    if lead["why"]:
        chosen = f"{lead['system']} against {lead['baseline']}; no dev queries chose these two ({lead['why']})."
    elif lead["selected_on"] and "deploy" in lead:  # where nothing was trained, these two are no trained and untrained
        chosen = f"{lead['system']} against {lead['baseline']}, both selected on {chosen_on(lead)}."
    elif lead["selected_on"]:
        chosen = f"Best trained system on {chosen_on(lead)}: {lead['system']}; best untrained: {lead['baseline']}."
    else:
        chosen = f"{lead['system']} against {lead['baseline']}."
    if (entry := leading_entry(metrics, lead["measure"])) is None:
        return chosen
    measure, (ours, theirs) = entry["measure"], _means_of(entry, metrics["rows"])
    counted = "this training" if entry["test"] == THIS_TRAINING else "the method"
    chance = f"{signed(entry['difference'])}, {p_text(entry['p'])}, {counted}"
    return f"{chosen} On {entry['split']}: {measure} {unsigned(ours)} against {unsigned(theirs)} ({chance})."


def leading_entry(metrics: Json, measure: str | None) -> Json | None:
    """The comparison that leads, by a measure or else the first, and by the test that counts the most; None where its
    two systems were measured on nothing in common. It is of the first collection: other judgements come behind."""
    lead = metrics["leading"]
    entries = [e for e in metrics["comparisons"] if (e["system"], e["baseline"]) == (lead["system"], lead["baseline"])]
    same = [
        entry
        for entry in entries
        if all(entry[key] == entries[0][key] for key in ("collection", "split"))
        and entry["measure"] == (measure or entries[0]["measure"])
    ]
    return same[-1] if same else None


def chosen_on(lead: Json) -> str:
    """The queries that systems were selected by, in words; of older records the split alone."""
    return f"the {lead['queries']:,} queries of {lead['selected_on']}" if "queries" in lead else lead["selected_on"]


def _means_of(entry: Json, rows: list[Json]) -> tuple[float, float]:
    """A system's mean and its baseline's on the queries that they were compared on: one that was measured on more has
    another in the table."""
    means = {}
    for name in (entry["system"], entry["baseline"]):
        own = [
            row
            for row in rows
            if row["system"] == name
            and row["seed"] in entry["seeds"]
            and all(row[key] == entry[key] for key in ("collection", "split", "measure", "queries"))
        ]
        if own:
            means[name] = mean_and_deviation(row["value"] for row in own)[0]
    ours = means.get(entry["system"], means.get(entry["baseline"], 0.0) + entry["difference"])
    return ours, ours - entry["difference"]


def unsigned(value: float) -> str:
    """`.123`, `1.000`, `-.020`."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def signed(value: float) -> str:
    """`+.123`, `-1.000`."""
    return ("+" if value >= 0 else "") + unsigned(value)


def closing_sentences(metrics: Json) -> list[str]:
    """Which system to deploy, in words; none where none was chosen."""
    return list(metrics.get("deploy", {}).get("sentences", []))


def _below_each_other(sentences: list[str]) -> str:
    first, *others = sentences
    indented = [textwrap.fill(one, WIDTH, initial_indent="  ", subsequent_indent="    ") for one in others]
    return "\n".join([textwrap.fill(first, WIDTH, subsequent_indent="    "), *indented])


def table(metrics: Json) -> str:
    """The measures in plain text, for the end of a run."""
    if not metrics["rows"]:
        return textwrap.fill(metrics.get("unmeasured", "No measures yet."), WIDTH)
    close = [_below_each_other(sentences)] if (sentences := closing_sentences(metrics)) else []
    lead = [textwrap.fill(sentence, WIDTH)] if not close and (sentence := leading_sentence(metrics)) else []
    averaged = across(metrics)
    rest = [result for result in by_collection(metrics) if _says_more(result, averaged)]
    compared = _comparison_lines(averages_compared(metrics))
    between = [["Averages over collections, compared", *compared]] if compared else []
    parts = [*(_across_lines(one) for one in averaged), *between, *(_result_lines(result) for result in rest)]
    paper = ["\n".join(_expected_lines(metrics["expected"]))] if "expected" in metrics else []
    notes = [textwrap.fill(note, WIDTH) for note in metrics.get("notes", [])]
    return "\n\n".join([*lead, *("\n".join(lines) for lines in parts), *paper, *notes, *close])


def _says_more(result: Json, averaged: list[Json]) -> bool:
    """Whether a collection has a value that no table over collections does: no average counts it, or it is of a system
    that was not measured on all."""
    told = {
        (one["measure"], system)
        for one in averaged
        for system in one["systems"]
        if any(line["collection"] == result["collection"] for line in one["lines"])
    }
    return any(
        cell is not None and (name, entry["system"]) not in told
        for entry in result["systems"]
        for name, cell in zip(result["measures"], entry["cells"], strict=True)
    )


def _expected_lines(expected: Json) -> list[str]:
    """What a paper has beside what was measured."""
    rows = expected["rows"]
    if not rows:
        return [textwrap.fill(f"{expected['source']}: {expected['unsaid']}.", WIDTH)]
    several = any(row["collection"] for row in rows)
    names = [f"{row['collection']}: {row['system']}" if several else row["system"] for row in rows]
    first, second = (
        max(len(head), *map(len, of)) + 2
        for head, of in (("system", names), ("measure", [row["measure"] for row in rows]))
    )
    lines = [f"{expected['source']}: theirs beside this run's", ""]
    lines.append(f"  {'system':{first}}{'measure':{second}}{'theirs':>6}   {'this run':15} difference   theirs lies")
    for name, row in zip(names, rows, strict=True):
        cell = _cell(None if row["value"] is None else Cell(row["value"], _half(row), None), None).strip()
        less = "-" if row["difference"] is None else f"{row['difference']:+.3f}"
        lines.append(
            f"  {name:{first}}{row['measure']:{second}}{row['expected']:6.3f}   {cell:15} {less:>10}   {row['lies']}"
        )
    why = dict.fromkeys(row["sentence"] for row in rows if row["lies"] == "not comparable")
    return [
        *lines,
        "",
        *(textwrap.fill(one, WIDTH, initial_indent="  ", subsequent_indent="  ") for one in why),
        "  within, above or below the 95 % interval of this run. What else differs is in the config.",
    ]


def _across_lines(one: Json) -> list[str]:
    """A measure's table over collections."""
    lines = [(line["collection"], line["cells"], [line["best"]] * len(line["cells"]), "") for line in one["lines"]]
    return [one["measure"], "", *_grid("collection", one["systems"], lines), *_about_cells("row", one["several"], None)]


def _result_lines(result: Json) -> list[str]:
    """A collection's table of systems by measures, and its comparisons."""
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
    """Lines of a name, its cells, the best of each cell's kind and a remark, in blocks of as many columns as fit."""
    texts = [[_cell(cell, at) for cell, at in zip(cells, best, strict=True)] for _, cells, best, _ in lines]
    first = min(44, max(len(head), *(len(name) for name, *_ in lines))) + 2
    column = 3 + max(len(text.rstrip()) for text in [*names, *(text for row in texts for text in row)])
    remark = max(len(about) for *_, about in lines)
    fits = max(1, (WIDTH - 2 - first - remark) // column)
    made = []
    for start in range(0, len(names), fits):
        block = slice(start, start + fits)
        made.append("  " + head.ljust(first) + "".join(f"{name} ".rjust(column) for name in names[block]).rstrip())
        for (name, *_, about), row in zip(lines, texts, strict=True):
            short = textwrap.shorten(name, first - 2, placeholder="…").ljust(first)
            made.append("  " + short + "".join(text.rjust(column) for text in row[block]).rstrip() + about)
        made.append("")
    return made


def _cell(cell: Cell | None, best: float | None) -> str:
    if cell is None:
        return "- "
    half = "" if cell.half is None else f" ± {cell.half:.3f}"
    deviation = "" if cell.deviation is None else f" ({cell.deviation:.3f})"
    return f"{cell.mean:.3f}{half}{deviation}" + ("*" if cell.mean == best else " ")


def _about_cells(line: str, several: bool, seeds: int | None) -> list[str]:
    """What the numbers of a table are."""
    over = "queries and trainings" if several else "the queries"
    deviation = f"; in brackets the deviation over the {seeds} seeds" if seeds else ""
    return [
        f"  ± is half of the 95 % interval over {over}{deviation}.",
        f"  Higher is better; * is the best of its {line}.",
    ]


def _comparison_lines(result: Json) -> list[str]:
    """Each comparison, a line a measure: the difference, the verdict and p of both tests, and what they mean."""
    if not result["comparisons"]:
        return []
    entries = result["comparisons"]
    tests = {"method": "the method", "training": "this training"}
    if all(one["method"] is None for entry in entries for one in entry["measures"]):
        del tests["method"]
    name = max(len(one["name"]) for entry in entries for one in entry["measures"])
    left = 6 + name + 2 + len("+0.000 ± 0.000") + 2 + len("no clear difference")
    lines = ["", "  Is the difference more than chance?", ""]
    lines.append(" " * left + "".join(f"   {words:>14}" for words in tests.values()))
    lines.append(" " * left + "   " + "   ".join(f"{'p':>6}{'Holm':>8}" for _ in tests))
    for entry in entries:
        over = f" ({len(entry['seeds'])} seeds)" if len(entry["seeds"]) > 1 else ""
        lines.append(f"  {entry['system']} against {entry['baseline']}{over}")
        for one in entry["measures"]:
            half = "" if one["half"] is None else f" ± {one['half']:.3f}"
            said = f"{one['name']:{name}}  {one['difference']:+.3f}{half:8}  {one['word']:19}"
            ps = [_ps(one[test]) for test in tests]
            lines.append(" " * 6 + said + "".join(f"   {text}" for text in ps))
    return [*lines, "", *(f"  {line}" for text in result["about_tests"] for line in textwrap.wrap(text, WIDTH - 2))]


def _ps(entry: Json | None) -> str:
    return f"{'-':>6}{'-':>8}" if entry is None else f"{p_number(entry['p']):>6}{p_number(entry['p_holm']):>8}"
