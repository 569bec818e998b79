"""What a run came to: the table at its end, `metrics.json`, and the report, one HTML file that needs no network."""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from components.analysis import Change, changes, course, efficiency, longest_chain, of_floor, part_of, trainings, work
from components.clock import KINDS
from components.embedding_space import numbers
from components.files import replacing, write_json
from components.measures import spread
from components.plots import Chart, Point, charts, svg
from components.scoreboard import CLEAR, across, boards, p_text
from components.scoreboard import table as table  # the plain-text one, for the end of a run
from components.space_plots import DISTRIBUTIONS, distributions, scatter
from components.tables import records
from workflows.board import Cost, Spent
from workflows.dag import Step, graph
from workflows.store import Store

METRICS = "metrics.json"
REPORT = "report.html"
TABLES = ("documents.parquet", "queries.parquet", "qrels.parquet")
STUDY = "study.json"
SEARCHED = ("index/**/*", "*.faiss", "documents-*.npy")
"""What of an artifact is an index: Lucene's, FAISS's, or vectors."""
WORDS = {"compute": "computing", "files": "files", "start": "starting", "waiting": "waiting"}
"""What a reader is told that a step was at."""
EXAMPLES = 4
"""Won queries shown, and lost ones."""
SLOWEST = 3
"""Steps that a run names at its end."""
AT_ONCE = 0.1
"""Seconds by which steps overlap at least that ran at once: two clocks measure when one ends and the next begins."""
MODELS = {
    "training": ["train"], "encoding": ["encode", "encode_queries"], "scoring": ["judge", "rerank"],
    "predicting": ["predict"],
}  # fmt: skip
"""What models are at, for a reader, and the functions of those steps."""

ABOUT = (
    "A retriever finds documents for a query in a whole collection; a ranker reads the query together with each "
    "document found and puts them in a better order. Sparring trains the two against each other in rounds, and "
    "this page says how good each of them became on queries that none of them was trained on."
)

Json = dict[str, Any]


def write(
    run: Path,
    *,
    title: str,
    wanted: Iterable[Step],
    results: Step | None,
    store: Store,
    executed: Collection[str],
    config: Json,
    about: str = ABOUT,
    note: str = "",
    examples: tuple[str, str] | None = None,
    costs: Sequence[Cost] = (),
) -> Json:
    """Write `metrics.json` and `report.html` of a run, and return the metrics.

    `results` is the step that gathered the measures (None, or not finished, where there are none yet), `executed`
    the fingerprints of the steps that ran just now, `about` what this is in a sentence or two, `note` what a reader
    must know about the start model, `examples` the system and its baseline whose won and lost queries are shown, by
    default the first comparison's, and `costs` are systems whose cost is set side by side.
    """
    done = [(node, record) for node in graph(wanted) if (record := store.record(node)) is not None]
    store.bring([node for node, _ in done], "pictures.json", "cases.json", "analysis.json")
    metrics = metrics_of(results, done, store, executed)
    page = {
        "title": title,
        "about": about,
        "note": note,
        "boards": [{**board, "charts": _charts(board["rows"])} for board in boards(metrics)],
        "pictures": _pictures(done, store),
        "across": across(metrics),
        "entropies": _entropies(results, store),
        "examples": _examples(results, store, metrics, examples),
        "screens": _screens(done, store),
        "studies": [json.loads(path.read_text()) for node, _ in done if (path := store.path(node) / STUDY).exists()],
        "costs": list(_costs(costs, store, metrics["rows"])),
        "spaces": _spaces(results, store),
        "config": config,
        **_course(done, store, executed),
    }
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / METRICS, metrics)
    write_page(run / REPORT, page)
    return metrics


def metrics_of(results: Step | None, done: list[tuple[Step, Json]], store: Store, executed: Collection[str]) -> Json:
    """The rows and comparisons of the results step, and every finished step's time."""
    gathered: Json = {"rows": [], "comparisons": []}
    if results is not None and store.done(results):
        store.bring([results], METRICS)
        gathered = json.loads((store.path(results) / METRICS).read_text())
    steps = [
        {
            "label": node.label,
            "function": node.function.__name__,
            "executed": node.fingerprint in executed,
            **_time(record),
        }
        for node, record in done
    ]
    return {"rows": gathered["rows"], "comparisons": gathered["comparisons"], "steps": steps}


def write_page(path: Path, page: Json, *, template: str = REPORT) -> None:
    """Fill a template of this folder by one atomic write."""
    import jinja2
    import yaml

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "size": size, "number": "{:,}".format, "p": p_text}
    config = yaml.safe_dump(page["config"], sort_keys=False, allow_unicode=True)
    text = environment.get_template(template).render(**{**page, "config": config}, clear=CLEAR, kinds=WORDS)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _charts(rows: list[Json]) -> list[Json]:
    from markupsafe import Markup  # our own drawing, escaped where it is made

    return [{"measure": chart.measure, "svg": Markup(svg(chart))} for chart in charts(rows)]


def _pictures(done: list[tuple[Step, Json]], store: Store) -> dict[str, list[Json]]:
    """What the recipe drew beside the measures, by heading."""
    from markupsafe import Markup

    found: dict[str, list[Json]] = {}
    for node in (node for node, _ in done if (store.path(node) / "pictures.json").exists()):
        for one in json.loads((store.path(node) / "pictures.json").read_text()):
            along = node.function.__name__ == "along"
            heading = f"By {one['x']}" if along else "Labels and what was learned from them"
            curves = {name: [Point(*point) for point in points] for name, points in one["curves"].items()}
            drawn = Markup(svg(Chart(one["title"], curves, axis=one["x"])))
            found.setdefault(heading, []).append({"title": one["title"], "about": one["about"], "svg": drawn})
    return found


def timeline(done: Iterable[tuple[Step, Json]], executed: Collection[str]) -> tuple[list[Json], float]:
    """Finished steps in the order in which they began, and how long all took, pauses between them left out."""
    ordered = sorted(done, key=lambda pair: pair[1]["started"])
    begun, total = course([(record["started"], record["seconds"]) for _, record in ordered])
    steps = []
    for at, (node, record) in zip(begun, ordered, strict=True):
        function = node.function.__name__
        steps.append({
            "label": node.label, "function": function, "part": part_of(function, node.label), "name": node.name,
            "upstream": record["upstream"],
            "at": at, "work": work(record["summary"]), **_time(record),
            "executed": node.fingerprint in executed,
        })  # fmt: skip
    return steps, total


def _course(done: list[tuple[Step, Json]], store: Store, executed: Collection[str]) -> Json:
    """Time and place of every step and part, and the code and machines they ran on."""
    steps, total = timeline(done, executed)
    nodes = {node.name: node for node, _ in done}
    for step, size in zip(steps, store.sizes([nodes[step["name"]] for step in steps]), strict=True):
        step["bytes"] = size
    codes = dict.fromkeys(_code(record) for _, record in done)
    profiles = dict.fromkeys(str((record["cluster"] or {}).get("mode", "")) for _, record in done)
    finished = max((record["started"] + record["seconds"] for _, record in done), default=0.0)
    return {
        "steps": steps,
        "total": total,
        "chain": longest_chain(steps),
        "efficiency": efficiency(steps),
        "trainings": trainings(list(_trainings(done))),
        "codes": [code for code in codes if code],
        "hosts": list(dict.fromkeys(record["host"] for _, record in done)),
        "profiles": [profile for profile in profiles if profile],
        "finished": datetime.fromtimestamp(finished, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _time(record: Json) -> Json:
    """How long a step took, with what, and what its models could not have gone below."""
    models = {name: record["summary"].get(name, 0.0) for name in ("model_seconds", "floor_seconds")}
    return {"seconds": record["seconds"], "time": record.get("time", {}), **models}


def where(steps: Sequence[Json], seconds: float) -> str:
    """Where the time of the steps that ran just now went, of so many seconds in all; empty where none ran.

    The steps are those of a timeline. Of steps that ran at once each counts whole: the shares are then of their sum.
    """
    steps = [step for step in steps if step["executed"]]
    if not steps:
        return ""
    together, (_, busy) = sum(s["seconds"] for s in steps), course([(s["at"], s["seconds"]) for s in steps])
    between = max(0.0, seconds - busy)
    whole = together + between
    shares = [f"{WORDS[kind]} {sum(s['time'][kind] for s in steps) / whole:.0%}" for kind in KINDS]
    lines = [f"time: {duration(seconds)}: {', '.join(shares)}, between steps {between / whole:.0%}"]
    if together > busy + AT_ONCE:
        longest, labels = longest_chain(steps)
        lines += [
            f"      these are shares of {duration(whole)}, as steps ran at once and each counts whole",
            f"      no faster with the same workers than the longest chain, {duration(longest)}: {' > '.join(labels)}",
        ]
    if len(steps) > 1:
        slowest = sorted(steps, key=lambda step: -step["seconds"])[:SLOWEST]
        named = [f"{step['label']} {duration(step['seconds'])}" for step in slowest]
        lines.append(f"      slowest: {', '.join(named)}")
    reached = {name: of_floor([s for s in steps if s["function"] in functions]) for name, functions in MODELS.items()}
    floors = [f"{name} {share:.0%}" for name, share in reached.items() if share is not None]
    if floors:
        lines.append(f"      of what this processor's matrix products alone allow: {', '.join(floors)}")
    return "\n".join(lines)


def _trainings(done: list[tuple[Step, Json]]) -> Iterator[tuple[str, Json]]:
    """Labels and summaries of trainings, with what the ranker took to judge one of their batches."""
    judged = {
        node.fingerprint: r.get("time", {}).get("compute", 0.0) for node, r in done if node.function.__name__ == "judge"
    }
    for node, record in done:
        summary = record["summary"]
        if "seconds_per_step" in summary:
            teacher = sum(judged.get(before.fingerprint, 0.0) for before in node.upstream)
            yield node.label, {**summary, "teacher_seconds_per_step": teacher / max(1, summary["steps"])}


def _code(record: Json) -> str:
    code = record["code"]
    return f"{code['commit'][:12]}{' (changed since)' if code.get('changed') else ''}" if code.get("commit") else ""


def _entropies(results: Step | None, store: Store) -> list[Json]:
    """Systems whose evaluation measured how sharp the retriever's choice is, each the mean over its seeds."""
    found: dict[tuple[str, str, str], list[Json]] = {}
    for entry in _systems(results):
        summary = (store.record(entry["metrics"]) or {"summary": {}})["summary"]
        if "entropy" in summary:
            found.setdefault((entry["system"], entry["collection"], entry["split"]), []).append(summary)
    tables = []
    for (system, collection, split), over in found.items():
        mean, deviation = spread(summary["entropy"] for summary in over)
        documents = over[0]["entropy_documents"]
        tables.append({
            "system": system, "collection": collection, "split": split, "documents": documents,
            "entropy": (mean, deviation), "choices": math.exp(mean), "even": math.log(documents),
        })  # fmt: skip
    return tables


def _spaces(results: Step | None, store: Store) -> list[Json]:
    """For each collection and split numbers of each system's space, the mean over its seeds, and pictures of the last
    seed's."""
    from markupsafe import Markup

    found: dict[tuple[str, str], dict[str, list[Json]]] = {}
    for entry in _systems(results):
        path = store.path(entry["analysis"]) / "analysis.json" if "analysis" in entry else None
        if path is not None and path.exists():
            boards = found.setdefault((entry["collection"], entry["split"]), {})
            boards.setdefault(entry["system"], []).append(json.loads(path.read_text()))
    spaces = []
    for (collection, split), systems in found.items():
        last = {system: seeds[-1] for system, seeds in systems.items()}
        curves = [
            (title, distributions(title, {system: one[key]["histogram"] for system, one in last.items()}, span))
            for key, title, span in DISTRIBUTIONS
        ]
        maps = [(system, scatter(system, **one["map"])) for system, one in last.items() if one["map"]]
        spaces.append({
            "collection": collection, "split": split, "queries": max(one["queries"] for one in last.values()),
            "systems": [{"system": system, **numbers(seeds)} for system, seeds in systems.items()],
            "pictures": [{"title": title, "svg": Markup(drawing)} for title, drawing in curves],
            "maps": [{"system": system, "svg": Markup(drawing)} for system, drawing in maps],
        })  # fmt: skip
    return spaces


def _systems(results: Step | None) -> list[Json]:
    """The systems that the results step was given; what measured each is still a step."""
    return list(results.inputs["systems"]) if results is not None else []


def _examples(results: Step | None, store: Store, metrics: Json, pair: tuple[str, str] | None) -> Json | None:
    """Queries that a system wins and loses against its baseline; None where the rankings are not there (any more)."""
    if pair is None and metrics["comparisons"]:
        pair = metrics["comparisons"][0]["system"], metrics["comparisons"][0]["baseline"]
    if pair is None:
        return None
    system, baseline = (next((e for e in _systems(results) if e["system"] == name), None) for name in pair)
    if system is None or baseline is None:
        return None
    try:
        inputs = system["metrics"].inputs
        store.bring([e["metrics"].inputs["ranking"] for e in (system, baseline)], "ranking.parquet")
        store.bring([inputs["data"]], *TABLES)
        after, before = (store.path(e["metrics"].inputs["ranking"]) / "ranking.parquet" for e in (system, baseline))
        data, split = store.path(inputs["data"]), inputs["split"]
        qrels = pq.read_table(data / "qrels.parquet", filters=[("split", "=", split)])
        found = changes(pq.read_table(before), pq.read_table(after), qrels)
        won, lost = ([c for c in found if c.gain > 0], [c for c in reversed(found) if c.gain < 0])
        shown = {"won": _texts(won[:EXAMPLES], data), "lost": _texts(lost[:EXAMPLES], data)}
    except (KeyError, FileNotFoundError):
        return None
    counts = {"won": len(won), "lost": len(lost), "same": len(found) - len(won) - len(lost)}
    return {"system": pair[0], "baseline": pair[1], "counts": counts, **shown}


def _texts(chosen: Sequence[Change], data: Path) -> list[Json]:
    """What the queries and documents of some changes say."""
    queries = records(data / "queries.parquet", "query_id", [c.query_id for c in chosen])
    documents = records(data / "documents.parquet", "doc_id", [d for c in chosen for d in (c.doc_id, c.first) if d])
    return [
        {
            "query": queries[c.query_id]["text"],
            "right": documents.get(c.doc_id),
            "first": documents.get(c.first or ""),
            "before": c.before,
            "after": c.after,
        }
        for c in chosen
    ]


def _costs(costs: Iterable[Cost], store: Store, rows: list[Json]) -> Iterator[Json]:
    """Of each system whose steps are all there: what its index takes, and what a query does, in seconds (paper 002,
    Table 3.11), beside how good it is. Starting workers is left out, as it does not grow with the queries."""
    names = list(dict.fromkeys(row["measure"] for row in rows))
    measure = next((name for name in names if name.endswith("@5")), names[0] if names else "")
    for cost in costs:
        parts = {"expand": cost.expand, "rerank": cost.rerank, "retrieve": cost.retrieve}
        needed = [
            *cost.index,
            *(one for of in parts.values() for spent in of for one in (spent.step, spent.over) if one),
        ]
        there = {node.fingerprint: store.record(node) for node in needed}
        if any(record is None for record in there.values()):
            continue
        times = {name: [_each(one, there) for one in of] for name, of in parts.items()}
        system = cost.measured or cost.system
        values = [row["value"] for row in rows if (row["system"], row["measure"]) == (system, measure)]
        files = (path for pattern in SEARCHED for path in store.path(cost.index[-1]).glob(pattern))
        yield {
            "system": cost.system,
            "build": sum(_busy(there[node.fingerprint] or {}) for node in cost.index)
            - sum(_of(spent, there) for of in parts.values() for spent in of if spent.step in cost.index),
            "bytes": sum(path.stat().st_size for path in files if path.is_file()),
            **{name: sum(of) if of else None for name, of in times.items()},
            "query": sum(map(sum, times.values())),
            "measure": measure,
            "value": spread(values)[0] if values else None,
        }


def _each(spent: Spent, records: dict[str, Json | None]) -> float:
    """Seconds of a step over what was counted."""
    counted = records[(spent.over or spent.step).fingerprint] or {}
    return _of(spent, records) / max(1, counted["summary"][spent.per])


def _of(spent: Spent, records: dict[str, Json | None]) -> float:
    """Seconds of a step that are meant."""
    record = records[spent.step.fingerprint] or {}
    part, whole = (record["summary"].get(name, 0.0) for name in spent.share or ("", ""))
    return _busy(record) * (part / whole if whole else 1.0)


def _busy(record: Json) -> float:
    """How long a step computed, read and wrote; all its time where that was not looked at."""
    time = record.get("time") or {}
    return float(time["compute"] + time["files"] if time else record["seconds"])


def _screens(done: list[tuple[Step, Json]], store: Store) -> list[Json]:
    """What false-negative control removed and why, with some cases in words."""
    found = []
    for node, record in done:
        path = store.path(node) / "cases.json"
        if node.function.__name__ == "screen" and path.exists():
            store.bring([node.inputs["data"]], *TABLES)
            cases, data = json.loads(path.read_text()), store.path(node.inputs["data"])
            queries = records(data / "queries.parquet", "query_id", [case["query_id"] for case in cases])
            ids = [one for case in cases for one in (case["doc_id"], case["positive"], case.get("copy_of")) if one]
            documents = records(data / "documents.parquet", "doc_id", ids)
            words = [
                {**case, "query": queries[case["query_id"]]["text"], "document": documents[case["doc_id"]],
                 "right": documents.get(case["positive"] or ""), "copied": documents.get(case.get("copy_of") or "")}
                for case in cases
            ]  # fmt: skip
            found.append({"label": node.label, **record["summary"], "cases": words})
    return found


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size(count: int) -> str:
    """`12 kB`, `3.4 MB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}" if count < 10 * scale else f"{count / scale:.0f} {unit}"
    return f"{count} B"
