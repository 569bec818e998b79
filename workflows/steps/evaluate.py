"""Measure a ranking, and gather a run's measures into `metrics.json`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.config import Config, UserError, listing
from sparring.components.data.examples import FILE as RATED
from sparring.components.data.groups import measured_queries
from sparring.components.data.tables import ANSWERED, QRELS, QUERIES, RANKING, TEXT, by_query, read, rows_in
from sparring.components.evaluation import ties
from sparring.components.evaluation.averages import Measured, averages_of, comparisons_of, means_of
from sparring.components.evaluation.measures import (
    PER_QUERY,
    PER_QUERY_FILE,
    answer_hits_per_query,
    by_measure,
    canonical,
    cutoff,
    mean_entropy,
    means,
    needs_answers,
    per_query,
)
from sparring.components.evaluation.selection import leading
from sparring.components.evaluation.significance import compare, corrected
from sparring.components.files import read_json, replacing, write_json
from sparring.workflows.store.dag import Description

ROWS = 200_000
"""Number of rows of a ranking that are measured at once. It changes no result."""


class EntropyConfig(Config):
    """Entropy of a retriever's distribution over its first documents (Zhang et al., 2022, Table 6)."""

    documents: int = Field(15, ge=1)
    """Number of first documents of each query."""
    temperature: float = Field(1.0, gt=0)
    """Temperature that the scores are divided by before the softmax."""


def _refuses(data: Path, split: str, measures: list[str], queries: int | None) -> None:
    """Refuse a split that lacks what the measures need."""
    _Asking(data, split, measures, queries)


@Description(
    part="evaluation", version=2, refuses=_refuses, in_worker=True, workers_read={"data": ("documents.parquet",)}
)
def evaluate(
    out: Path,
    machine: Any,
    *,
    data: Path,
    ranking: Path,
    split: str,
    measures: list[str],
    entropy: EntropyConfig | None = None,
    queries: int | None = None,
) -> dict[str, Any]:
    """Measure a ranking on every query of the split that has a relevant document or, for `Answer@k`, an answer.

    `Answer@k` needs a ranking that the step `answering` wrote. `queries` measures on a sample of that size, as `rerank`
    does. The summary's note names measures whose cutoff is beyond the end of the ranking, if the collection has more
    documents. The note also says if the order of documents with equal scores decides a measure for many queries.
    """
    asking = _Asking(data, split, measures, queries)
    tables, first, ranked_parts, deepest = [], [asking.schema.empty_table()], list[pa.Array](), 0
    decided = [ties.DECIDED.empty_table()]
    for piece in by_query(ranking / "ranking.parquet", asking.schema, rows=ROWS):
        documents = piece.filter(pc.is_in(piece["query_id"], value_set=asking.queries))
        ranked_parts.append(pc.unique(documents["query_id"]))
        deepest = max(deepest, pc.max(documents["rank"]).as_py() or 0)
        tables.append(asking.measured(documents, ranked_parts[-1]))
        decided.append(asking.decided(documents, ranked_parts[-1]))
        if entropy is not None:
            first.append(documents.filter(pc.less_equal(documents["rank"], entropy.documents)))
    ranked = pa.chunked_array(ranked_parts, TEXT)
    lost = asking.queries.filter(pc.invert(pc.is_in(asking.queries, value_set=ranked)))
    values = asking.in_order(pa.concat_tables([*tables, asking.measured(asking.schema.empty_table(), lost)]))
    with replacing(out / PER_QUERY_FILE) as path:
        pq.write_table(values, path)

    measured = pc.unique(values["query_id"])
    summary: dict[str, Any] = {
        "measures": means(values),
        "queries": len(measured),
        "without_results": pc.sum(pc.invert(pc.is_in(measured, value_set=ranked))).as_py() or 0,
    }
    if entropy is not None:
        best = pa.concat_tables(first)
        best = best.filter(pc.is_in(best["query_id"], value_set=measured))
        summary["entropy"] = mean_entropy(best, documents=entropy.documents, temperature=entropy.temperature)
        summary["entropy_documents"] = entropy.documents
    remarks = _short(measures, deepest, rows_in(data / "documents.parquet"))
    remarks += [ties.remark(pa.concat_tables(decided), values)]
    note = "\n".join(sentence for sentence in remarks if sentence)  # each is a separate remark
    return summary | ({"note": note} if note else {})


def _short(measures: Sequence[str], deepest: int, documents: int) -> list[str]:
    """Describe the measures whose cutoff is beyond the end of a ranking, if there are any."""
    short = [name for name in measures if min(cutoff(name) or 0, documents) > deepest > 0]
    return [f"The ranking ends at rank {deepest:,}, so {listing(short)} may be too low."] if short else []


class _Asking:
    """Queries of a split and the measures to compute on them."""

    def __init__(self, data: Path, split: str, measures: list[str], count: int | None) -> None:
        self._by_answer = [name for name in measures if needs_answers(name)]
        self._judged = [name for name in measures if name not in self._by_answer]
        self.schema = ANSWERED if self._by_answer else RANKING
        sample = None if count is None else pa.array(measured_queries(data, split, count), TEXT)

        def sampled(table: pa.Table) -> pa.Table:
            return table if sample is None else table.filter(pc.is_in(table["query_id"], value_set=sample))

        self._judgements = sampled(_judgements(data, split) if self._judged else QRELS.empty_table())
        answerable = _with_answers(data, split) if self._by_answer else QUERIES.empty_table()
        self._answerable = sampled(answerable)["query_id"]
        self.queries = pc.unique(
            pa.chunked_array([*self._judgements["query_id"].chunks, *self._answerable.chunks], TEXT)
        )

    def measured(self, documents: pa.Table, queries: pa.Array) -> pa.Table:
        """Measure some queries. The table must have all their rows."""
        tables = [PER_QUERY.empty_table()]
        if len(judgements := self._judgements.filter(pc.is_in(self._judgements["query_id"], value_set=queries))):
            tables.append(per_query(documents, judgements, self._judged))
        if len(answerable := self._answerable.filter(pc.is_in(self._answerable, value_set=queries))):
            tables.append(answer_hits_per_query(documents, answerable.to_pylist(), self._by_answer))
        return pa.concat_tables(tables)

    def decided(self, documents: pa.Table, queries: pa.Array) -> pa.Table:
        """Return the queries whose measures the order of equal scores decides (`components.evaluation.ties`)."""
        judgements = self._judgements.filter(pc.is_in(self._judgements["query_id"], value_set=queries))
        return ties.decided(documents, judgements, self._judged)

    def in_order(self, values: pa.Table) -> pa.Table:
        """Sort values by measure, then by query."""
        names = pa.array(dict.fromkeys(map(canonical, [*self._judged, *self._by_answer])), TEXT)
        place = pc.index_in(values["measure"], value_set=names)
        ordered = values.append_column("place", place).sort_by([("place", "ascending"), ("query_id", "ascending")])
        return ordered.select(PER_QUERY.names)


def _judgements(data: Path, split: str) -> pa.Table:
    """Read a split's judgements. UserError if none of them is relevant."""
    judgements = read(data / "qrels.parquet", QRELS)
    of_split = judgements.filter(pc.equal(judgements["split"], split))
    if not len(of_split.filter(pc.greater(of_split["relevance"], 0))):
        relevant = judgements.filter(pc.greater(judgements["relevance"], 0))
        splits = listing(sorted(pc.unique(relevant["split"]).to_pylist()))
        pairs = "; of rated pairs those count whose score is `data.positive` or more" if (data / RATED).exists() else ""
        raise UserError(
            f"split {split!r} has no query with a relevant document; splits that have some: {splits}{pairs}"
        )
    return of_split


def _with_answers(data: Path, split: str) -> pa.Table:
    """Read a split's queries that have an answer. UserError if none has one."""
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "answers", "split"])
    has = pc.and_(pc.equal(queries["split"], split), pc.greater(pc.list_value_length(queries["answers"]), 0))
    answerable = queries.filter(has)
    if not len(answerable):
        raise UserError(f"measures: Answer@k needs queries with answers, and no query of the split {split!r} has one")
    return answerable


@Description(part="evaluation", version=3, in_worker=True)
def results(
    out: Path,
    machine: Any,
    *,
    systems: list[dict[str, Any]],
    comparisons: list[dict[str, Any]],
    seed: int = 0,
    rounds: int = 10_000,
    selection: Path | str | None = None,
) -> dict[str, Any]:
    """Gather the measures of all systems in `metrics.json`, with rows and means, and compare the requested pairs.

    A system is {system, round, collection, split, seed, metrics, answers}. `metrics` is any artifact with per-query
    values. `answers` says how answers were searched for, if they were. An analysis of the system's vectors may be added
    for the report. A comparison is {system, baseline}, made on every collection and split that both were measured on.
    If its system is None, the leading system and the system to deploy are compared with the baseline, unless they are
    the baseline. `selection` is the artifact of `select`. Its pair is compared first, or it says why nothing was
    selected; `leading` in the metrics has the outcome.
    """
    lead = leading(selection, comparisons)
    first = [{name: lead[name] for name in ("system", "baseline")}] if lead["system"] is not None else []
    leading_systems = [name for name in dict.fromkeys([lead.get("deploy"), lead["system"]]) if name is not None]
    budget = lead.get("budget", {})
    without = budget["without"] if budget.get("kept") else None  # the better system that the budget excludes
    excluded = [{"system": without, "baseline": name} for name in leading_systems[:1] if without is not None]
    comparisons = [
        {"system": name, "baseline": comparison["baseline"]}
        for comparison in [*first, *excluded, *comparisons]
        for name in ([comparison["system"]] if comparison["system"] is not None else leading_systems)
        if name != comparison["baseline"]
    ]
    comparisons = [
        comparison for number, comparison in enumerate(comparisons) if comparison not in comparisons[:number]
    ]
    measured = _by_system(systems)
    rows = [row for entry in systems for row in _rows(entry, measured[_place(entry)][entry["seed"]])]
    compared = [
        row for comparison in comparisons for row in _comparisons(comparison, measured, seed=seed, rounds=rounds)
    ]
    metrics = {"rows": rows, "means": means_of(measured), "comparisons": corrected(compared), "leading": lead}
    write_json(out / "metrics.json", metrics)
    return {"systems": len(systems), "comparisons": len(comparisons)}


@Description(part="evaluation", in_worker=True)
def nothing_measured(out: Path, machine: Any, *, after: Path) -> dict[str, Any]:
    """Write the `results` of an experiment that measures nothing. They are there once the step `after` is done."""
    return results(out, machine, systems=[], comparisons=[])


@Description(part="evaluation", version=4, in_worker=True)
def averages(
    out: Path,
    machine: Any,
    *,
    systems: list[dict[str, Any]],
    comparisons: list[dict[str, str]],
    parts: dict[str, str | None],
    seed: int = 0,
    rounds: int = 10_000,
) -> dict[str, Any]:
    """Write `results` with the mean of each measure over the collections, for systems that were measured on all of
    them.

    Each collection counts alike, and `queries` is the number over all. The comparisons are made of these means too.
    `parts` maps a collection to the whole that it is a part of, or to None if it does not count. The parts of one whole
    count as one collection.
    """
    summary = results(out, machine, systems=systems, comparisons=comparisons, seed=seed, rounds=rounds)
    metrics = read_json(out / "metrics.json")
    metrics["rows"] += averages_of(metrics["rows"], parts)
    measured, means = _by_system(systems), metrics["means"]
    pairs = [(comparison["system"], comparison["baseline"]) for comparison in comparisons]
    compared = [comparisons_of(measured, means, parts, *pair, seed=seed, rounds=rounds) for pair in pairs]
    metrics["comparisons"] += corrected([entry for of_pair in compared for entry in of_pair])
    metrics["means"] = means_of(measured, parts)
    write_json(out / "metrics.json", metrics)
    return summary


def _by_system(systems: list[dict[str, Any]]) -> Measured:
    """Group the measured values of each query by system, collection and split, and by seed."""
    measured: dict[tuple[str, str, str], dict[int, pa.Table]] = {}
    for entry in systems:
        seeds = measured.setdefault(_place(entry), {})
        if entry["seed"] in seeds:
            raise ValueError(f"{entry['system']!r} is given twice for seed {entry['seed']}")
        seeds[entry["seed"]] = pq.read_table(entry["metrics"] / PER_QUERY_FILE)
    return measured


def _place(entry: dict[str, Any]) -> tuple[str, str, str]:
    return entry["system"], entry["collection"], entry["split"]


def _rows(entry: dict[str, Any], table: pa.Table) -> list[dict[str, Any]]:
    """Return a row for each measure of a system."""
    identity = {key: entry[key] for key in ("system", "round", "collection", "split", "seed")}
    answers = entry["answers"].model_dump() if entry.get("answers") else {}
    return [
        {
            **identity,
            "measure": measure,
            "value": float(values.mean()),
            "queries": len(queries),
            **(answers if needs_answers(measure) else {}),
        }
        for measure, (queries, values) in by_measure(table).items()
    ]


def _comparisons(comparison: dict[str, str], measured: Measured, *, seed: int, rounds: int) -> list[dict[str, Any]]:
    """Compare a system with its baseline, over all seeds that both have, on each collection and split."""
    system, baseline = comparison["system"], comparison["baseline"]
    names = list(dict.fromkeys(name for name, _, _ in measured))
    for name in (system, baseline):
        if name not in names:
            raise ValueError(f"a comparison names the system {name!r}, which was not measured; there are: {names}")
    compared = []
    for name, collection, split in measured:
        tables, baseline_tables = measured[name, collection, split], measured.get((baseline, collection, split), {})
        seeds = sorted(tables.keys() & baseline_tables.keys())
        if name != system or not seeds:
            continue
        pair = [tables[s] for s in seeds], [baseline_tables[s] for s in seeds]
        identity = {"system": system, "baseline": baseline, "collection": collection, "split": split, "seeds": seeds}
        compared += [{**identity, **entry} for entry in compare(*pair, seed=seed, rounds=rounds)]
    return compared
