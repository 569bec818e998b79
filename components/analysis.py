"""Looking closer: which queries a system wins and loses against another, and where a run's time went."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from components.clock import KINDS


@dataclass(frozen=True)
class Change:
    """A query whose first relevant document stands elsewhere than before; rank None: not found at all."""

    query_id: str
    doc_id: str
    before: int | None
    after: int | None
    first: str | None
    """The document on top in the worse of the two rankings, where that is not a relevant one."""

    @property
    def gain(self) -> float:
        """The change of the reciprocal rank."""
        return (1 / self.after if self.after else 0.0) - (1 / self.before if self.before else 0.0)


def changes(before: pa.Table, after: pa.Table, qrels: pa.Table) -> list[Change]:
    """Every query with a relevant document, the greatest gain first, the greatest loss last."""
    relevant: dict[str, set[str]] = {}
    judged = qrels.filter(pc.greater(qrels["relevance"], 0))
    for query, document in zip(judged["query_id"].to_pylist(), judged["doc_id"].to_pylist(), strict=True):
        relevant.setdefault(query, set()).add(document)
    old, new = (_found(ranking, relevant) for ranking in (before, after))
    found = []
    for query in sorted(relevant):
        (old_rank, old_best, old_top), (new_rank, new_best, new_top) = old[query], new[query]
        lost = new_rank is None or (old_rank is not None and new_rank > old_rank)
        best, top = (old_best, new_top) if lost else (new_best, old_top)
        wrong = top if top not in relevant[query] else None
        found.append(Change(query, best or min(relevant[query]), old_rank, new_rank, wrong))
    return sorted(found, key=lambda change: (-change.gain, change.query_id))


def _found(ranking: pa.Table, relevant: dict[str, set[str]]) -> dict[str, tuple[int | None, str | None, str | None]]:
    """query -> rank and id of its first relevant document, and the id of its first document."""
    found: dict[str, tuple[int | None, str | None, str | None]] = dict.fromkeys(relevant, (None, None, None))
    kept = ranking.filter(pc.is_in(ranking["query_id"], pa.array(list(relevant), pa.string())))
    columns = (kept[name].to_pylist() for name in ("query_id", "doc_id", "rank"))
    for query, document, rank in zip(*columns, strict=True):
        best, first, top = found[query]
        if document in relevant[query] and (best is None or rank < best):
            best, first = rank, document
        found[query] = (best, first, document if rank == 1 else top)
    return found


UNITS = ("documents", "pairs", "groups", "sentences", "steps", "expansions", "queries", "rows")
"""Keys of a step's summary that count its work, the most telling first."""

_PARTS = {
    "ingest": "data", "tokenize": "data", "tokenize_queries": "data", "start": "data",
    "lucene_index": "BM25", "lucene_search": "BM25", "lucene_feedback": "BM25",
    "mine": "groups and negatives", "answering": "groups and negatives", "screen": "groups and negatives",
    "encode": "encoding", "encode_queries": "encoding", "faiss_index": "search", "search": "search",
    "contexts": "soft labels", "smooth": "soft labels",
    "rerank_by_neighbours": "reranking by neighbours", "chosen": "reranking by neighbours",
    "interpolate": "interpolation",
    "judge": "scoring by the ranker", "rerank": "scoring by the ranker",
    "evaluate": "evaluation", "results": "evaluation", "pictures": "evaluation", "along": "evaluation",
    "analyse": "evaluation",
    "averages": "evaluation", "study": "evaluation", "evaluate_answers": "evaluation",
    "fuse": "search", "fuse_expansions": "search", "exclude": "search",
    "expand_by_relevance": "expansions", "expand_by_model": "expansions", "expand_from_file": "expansions",
    "concatenated": "expansions", "with_question": "expansions", "joined_expansions": "expansions",
    "targets": "expansions",
    "answer_ranks": "query reranking", "rank_groups": "query reranking", "candidates": "query reranking",
    "candidates_released": "query reranking", "chosen_queries": "query reranking",
    "predict": "query reranking", "choose": "query reranking", "choose_several": "query reranking",
    "reading_groups": "reading", "read_answers": "reading",
}  # fmt: skip
_TRAININGS = {
    "generator": "expansions",
    "reader": "reading",
    "ri reranker": "query reranking",
    "rd reranker": "query reranking",
    "control": "training of controls",
    "warm": "warm-up",
    "CODER": "retriever training",
    "ranker": "ranker training",
    "retriever": "retriever training",
}
_SEED = re.compile(r" \(seed \d+\)")
_ORDER = (
    "data", "BM25", "expansions", "query reranking", "warm-up", "groups and negatives", "ranker training",
    "scoring by the ranker", "soft labels", "retriever training", "training", "encoding", "search",
    "reranking by neighbours", "interpolation", "training of controls", "reading", "evaluation",
)  # fmt: skip


def part_of(function: str, label: str) -> str:
    """Which part of a recipe's work a step is, from its function and its label."""
    if function == "train":
        whose = label.rpartition(": ")[2]  # an experiment on a board stands before it
        return next((part for word, part in _TRAININGS.items() if word in whose), "training")
    return _PARTS.get(function, function)


def work(summary: dict[str, Any]) -> tuple[str, int] | None:
    """What a step counted and how much of it, from its summary."""
    for unit in UNITS:
        count = summary.get(unit)
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return unit, count
    return None


def efficiency(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps, time, share, work and place on disk of every part, and of the whole (AR2, Table 8).

    A step is {part, seconds, time, model_seconds, floor_seconds, work, bytes}.
    """
    total = sum(step["seconds"] for step in steps) or 1.0
    names = list(dict.fromkeys(step["part"] for step in steps))
    names.sort(key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    rows = [_row(name, [step for step in steps if step["part"] == name], total) for name in names]
    return [*rows, {**_row("total", list(steps), total), "counts": []}]


def course(spans: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
    """When each step began, and how long all took, times left out in which none was under way.

    A span is when a step began and how long it took, in seconds; they ascend.
    """
    at, busy, reached = [], 0.0, float("-inf")
    for began, seconds in spans:
        at.append(busy - max(0.0, reached - began))
        busy += max(0.0, began + seconds - max(began, reached))
        reached = max(reached, began + seconds)
    return at, busy


def longest_chain(steps: Sequence[dict[str, Any]]) -> tuple[float, list[str]]:
    """The critical path: seconds and labels of the steps that need one another and together take longest.

    A step is {name, label, seconds, upstream}, upstream the names of those it needs; inputs come first.
    """
    chains: dict[str, tuple[float, list[str]]] = {}
    for step in steps:
        seconds, labels = max((chains[name] for name in step["upstream"] if name in chains), default=(0.0, []))
        chains[step["name"]] = seconds + step["seconds"], [*labels, step["label"]]
    return max(chains.values(), default=(0.0, []))


def of_floor(steps: Sequence[dict[str, Any]]) -> float | None:
    """The share of the floor that models reached: the time that their matrix products alone would have taken, of that
    which they took; None where no model was at work."""
    at_work = sum(step["model_seconds"] for step in steps)
    return sum(step["floor_seconds"] for step in steps) / at_work if at_work else None


def trainings(summaries: Sequence[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Seconds a batch and groups a second of every training, the median over its seeds (AR2, Table 4).

    Takes labels and summaries of training steps, with what a teacher took for a batch. Both together are the paper's
    latency, whose code asks the ranker inside the loop.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    for label, summary in summaries:
        runs.setdefault(_SEED.sub("", label), []).append(summary)
    keys = ("steps", "seconds_per_step", "teacher_seconds_per_step", "groups_per_second")
    return [
        {"training": label, "seeds": len(of), **{key: median(one[key] for one in of) for key in keys}}
        for label, of in runs.items()
    ]


def _row(name: str, steps: list[dict[str, Any]], total: float) -> dict[str, Any]:
    counts: dict[str, tuple[int, float]] = {}
    for unit, count, seconds in ((*step["work"], step["seconds"]) for step in steps if step["work"]):
        done, spent = counts.get(unit, (0, 0.0))
        counts[unit] = (done + count, spent + seconds)
    seconds = sum(step["seconds"] for step in steps)
    return {
        "part": name,
        "steps": len(steps),
        "seconds": seconds,
        "share": seconds / total,
        "time": {kind: sum(step["time"].get(kind, 0.0) for step in steps) for kind in KINDS},
        "of_floor": of_floor(steps),
        "counts": [{"unit": unit, "count": count, "seconds": spent} for unit, (count, spent) in counts.items()],
        "bytes": sum(step["bytes"] for step in steps),
    }
