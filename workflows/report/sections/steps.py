"""The time and place of every step and part, the speed of each training, and the code and machines."""

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from statistics import median

from sparring.workflows.report.finished import Finished, Json
from sparring.workflows.report.timeline import efficiency, longest_chain, timeline
from sparring.workflows.store.store import Store

_SEED = re.compile(r" \(seed \d+\)")


def without_seed(label: str) -> str:
    """Return the label that a step has in all seeds.

    >>> without_seed("retriever 1 (seed 2) groups")
    'retriever 1 groups'
    """
    return _SEED.sub("", label)


def run_steps(steps: Finished, store: Store, executed: Collection[str]) -> Json:
    """Return the steps, parts, code and machines of a run, with sizes, times and, if the profile has a price, money."""
    line, total = timeline(steps, executed)
    nodes = {node.name: node for node, _ in steps}
    prices = {node.name: (record["cluster"] or {}).get("price_per_hour") for node, record in steps}
    for step, size in zip(line, store.sizes([nodes[step["name"]] for step in line]), strict=True):
        step["bytes"] = size
        price = prices[step["name"]]
        step["money"] = None if price is None else price * step["seconds"] / 3600
    records = [record for _, record in steps]
    codes = dict.fromkeys(_code(record) for record in records)
    profiles = dict.fromkeys(str((record["cluster"] or {}).get("mode", "")) for record in records)
    ended = max((record["started"] + record["seconds"] for record in records), default=0.0)
    return {
        "steps": line,
        "total": total,
        "chain": longest_chain(line),
        "efficiency": efficiency(line),
        "trainings": trainings(list(_trainings(steps))),
        "codes": [code for code in codes if code],
        "hosts": list(dict.fromkeys(record["host"] for record in records)),
        "profiles": [profile for profile in profiles if profile],
        "finished": datetime.fromtimestamp(ended, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def trainings(summaries: Sequence[tuple[str, Json]]) -> list[Json]:
    """Return seconds a batch and groups a second of every training, the median over its seeds (Zhang et al., 2022,
    Table 4).

    Takes labels and summaries of training steps, with the seconds that a teacher took for a batch. Both together are
    the paper's latency, as its code asks the ranker inside the training loop.
    """
    runs: dict[str, list[Json]] = {}
    for label, summary in summaries:
        runs.setdefault(without_seed(label), []).append(summary)
    keys = ("updates", "seconds_per_update", "teacher_seconds_per_update", "rows_per_second")
    return [
        {"training": label, "seeds": len(seeds), **{key: median(entry[key] for entry in seeds) for key in keys}}
        for label, seeds in runs.items()
    ]


def _trainings(steps: Finished) -> Iterator[tuple[str, Json]]:
    """Yield the labels and summaries of trainings, with the seconds that the teacher took to score one of their
    batches."""
    scored = {
        node.fingerprint: record.get("time", {}).get("compute", 0.0)
        for node, record in steps
        if node.description.models == "scoring"
    }
    for node, record in steps:
        summary = record["summary"]
        if "seconds_per_update" in summary:
            teacher = sum(scored.get(before.fingerprint, 0.0) for before in node.upstream)
            yield node.label, {**summary, "teacher_seconds_per_update": teacher / max(1, summary["updates"])}


def _code(record: Json) -> str:
    code = record["code"]
    return f"{code['commit'][:12]}{' (changed since)' if code.get('changed') else ''}" if code.get("commit") else ""
