"""How good a ranking is, query by query, and whether one system is better than another.

Measures are named and computed by ir_measures, so that its command line gives the same values for an exported
ranking. It looks at scores, not at ranks, and so the order of rows never matters. Equal scores are put in order as
the reference tool of each measure has it: RR@k as MS MARCO's script (doc_id ascending, which is also the order of
our rankings), everything else as trec_eval (doc_id descending).
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.config import UserError
from components.draws import generator

PER_QUERY = pa.schema([("query_id", pa.string()), ("measure", pa.string()), ("value", pa.float64())])
"""One query's value of one measure."""

ACCEPTED = (
    "RR@k, nDCG@k, R@k, Success@k, P@k, AP@k (or RR, nDCG, AP without a cutoff), Answer@k; for example RR@10, or "
    "RR(rel=2)@10 where only relevance 2 and more counts, as in TREC DL"
)
_FAMILIES = {
    "rr": "RR", "mrr": "RR", "recip_rank": "RR",
    "ndcg": "nDCG", "ndcg_cut": "nDCG",
    "r": "R", "recall": "R",
    "success": "Success", "hit": "Success", "hits": "Success",
    "p": "P", "precision": "P",
    "ap": "AP", "map": "AP",
    "answer": "Answer",
}  # fmt: skip
_NAME = re.compile(r"(?P<family>\w+) *(\( *rel *= *(?P<level>[1-9]\d*) *\))? *(@ *(?P<cutoff>[1-9]\d*))?", re.ASCII)
_WHOLE = ("RR", "nDCG", "AP")  # measures that make sense without a cutoff
_BINARY = ("RR", "R", "Success", "P", "AP")  # those that ask from which relevance on a document is right
OF_ANSWERS_WRITTEN = ("EM", "F1")
"""What is measured of a reader's answers (`components.exact_match`), and of no ranking."""
_CELLS = 4_000_000  # signs drawn at once, so that memory stays at some tens of megabytes


def canonical(name: str) -> str:
    """The name that ir_measures gives a retrieval measure: `MRR@10` and `mrr@10` are `RR@10`."""
    found = _NAME.fullmatch(name.strip())
    family = _FAMILIES.get(found["family"].lower()) if found else None
    if found is None or family is None or not (found["cutoff"] or family in _WHOLE):
        raise UserError(f"measure {name!r}: not known; accepted: {ACCEPTED}")
    level, cutoff = found["level"], found["cutoff"]
    if level and family not in _BINARY:
        raise UserError(f"measure {name!r}: {family} takes no (rel={level}); {', '.join(_BINARY)} do")
    return family + (f"(rel={level})" if level and level != "1" else "") + (f"@{cutoff}" if cutoff else "")


def at_level(name: str, level: int) -> str:
    """The measure where only relevance `level` and more is right; one that has its own level, or takes none, as it is.

    TREC DL is measured so: binary measures strictly from 2, or leniently from 1, and nDCG by all its grades.
    """
    name = canonical(name)
    family, at, cutoff = name.partition("@")
    return canonical(f"{family}(rel={level}){at}{cutoff}") if family in _BINARY else name


def asks_for_answers(name: str) -> bool:
    """Whether a measure looks at answers and not at judgements."""
    return name not in OF_ANSWERS_WRITTEN and canonical(name).startswith("Answer@")


def answers_per_query(ranking: pa.Table, queries: Sequence[str], measures: Sequence[str]) -> pa.Table:
    """`Answer@k` of queries: 1 where one of the first k documents bears an answer, as the column `hit` says.

    DPR's top-k accuracy, which AR2 calls R@k on NQ and TriviaQA; a query with no results counts 0.
    """
    hits = ranking.filter(ranking["hit"])
    first = hits.group_by("query_id").aggregate([("rank", "min")])
    best = dict(zip(first["query_id"].to_pylist(), first["rank_min"].to_pylist(), strict=True))
    rows = [
        (query, name, float(best.get(query, math.inf) <= int(name.partition("@")[2])))
        for name in dict.fromkeys(canonical(name) for name in measures)
        for query in sorted(queries)
    ]
    return pa.table([list(column) for column in zip(*rows, strict=True)] or [[], [], []], schema=PER_QUERY)


def per_query(ranking: pa.Table, qrels: pa.Table, measures: Sequence[str]) -> pa.Table:
    """Every measure of every query that has a relevant document; a query with no results counts 0."""
    import ir_measures

    names = list(dict.fromkeys(canonical(name) for name in measures))
    for name in names:
        if asks_for_answers(name):
            raise UserError(f"measure {name!r}: needs texts and answers, and is taken inside a run alone")
    judged = _nested(qrels, "relevance")
    judged = {query: documents for query, documents in judged.items() if max(documents.values()) > 0}
    queries = sorted(judged)
    if pc.any(pc.is_nan(ranking["score"])).as_py():
        raise ValueError("the ranking has scores that are not numbers")
    found = _nested(ranking.filter(pc.is_in(ranking["query_id"], pa.array(queries, pa.string()))), "score")
    values: dict[tuple[str, str], float] = {}
    if found:  # some of its providers fail on an empty ranking
        parsed = [ir_measures.parse_measure(name) for name in names]
        for metric in ir_measures.iter_calc(parsed, judged, found):
            values[metric.query_id, str(metric.measure)] = float(metric.value)
    keys = [(query, name) for name in names for query in queries]
    columns = [[query for query, _ in keys], [name for _, name in keys], [values.get(key, 0.0) for key in keys]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, PER_QUERY, strict=True)], schema=PER_QUERY)


def _nested(table: pa.Table, column: str) -> dict[str, dict[str, Any]]:
    """query_id -> doc_id -> the column's value."""
    nested: dict[str, dict[str, Any]] = {}
    columns = (table[name].to_pylist() for name in ("query_id", "doc_id", column))
    for query, document, value in zip(*columns, strict=True):
        nested.setdefault(query, {})[document] = value
    return nested


def by_measure(values: pa.Table) -> dict[str, tuple[list[str], np.ndarray]]:
    """For each measure, in the table's order, the queries in order of id and their values."""
    table = values.combine_chunks()
    parts: dict[str, tuple[list[str], np.ndarray]] = {}
    for name in pc.unique(table["measure"]).to_pylist():
        part = table.filter(pc.equal(table["measure"], name)).sort_by("query_id")
        parts[name] = (part["query_id"].to_pylist(), part["value"].to_numpy())
    return parts


def means(values: pa.Table) -> dict[str, float]:
    """The mean over queries of each measure."""
    return {name: float(part.mean()) for name, (_, part) in by_measure(values).items()}


def compare(
    system: Sequence[pa.Table], baseline: Sequence[pa.Table], *, seed: int, rounds: int = 10_000
) -> list[dict[str, Any]]:
    """Difference and p of every measure that both have, from per-query tables, one for each seed and side.

    Over several seeds it is a randomization over queries of the per-query means over the seeds. Where one side was
    measured on a sample of the other's queries, both are compared on the sample.
    """
    ours, theirs = _mean_over_seeds(system), _mean_over_seeds(baseline)
    found = []
    for name in (name for name in ours if name in theirs):
        (queries, a), (others, b) = ours[name], theirs[name]
        if queries != others:
            both = set(queries) & set(others)
            if len(both) < min(len(queries), len(others)):
                raise ValueError(f"{name}: the systems to compare were measured on different queries")
            a = a[[query in both for query in queries]]
            b = b[[query in both for query in others]]
            queries = [query for query in queries if query in both]
        p = paired_randomization(a, b, seed=seed, rounds=rounds)
        found.append({"measure": name, "difference": float(a.mean() - b.mean()), "p": p, "queries": len(queries)})
    return found


def _mean_over_seeds(tables: Sequence[pa.Table]) -> dict[str, tuple[list[str], np.ndarray]]:
    first, *rest = [by_measure(table) for table in tables]
    merged = {}
    for name, (queries, values) in first.items():
        if any(name not in other or other[name][0] != queries for other in rest):
            raise ValueError(f"{name}: the seeds of one system were measured on different queries")
        merged[name] = (queries, np.mean([values, *(other[name][1] for other in rest)], axis=0))
    return merged


def paired_randomization(a: np.ndarray, b: np.ndarray, *, seed: int, rounds: int = 10_000) -> float:
    """p of a two-sided paired randomization test of the difference in means.

    Were there no difference between the systems, each query's two values could as well have been swapped. p is the
    share of random swappings whose difference is at least as large as the one seen, which itself counts as one.
    """
    if a.shape != b.shape:
        raise ValueError(f"paired values are needed, got {a.shape} and {b.shape}")
    differences = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    differences = differences[differences != 0]  # swapping equal values changes nothing
    if not len(differences):
        return 1.0
    total = differences.sum()
    # Sums in another order differ in the last bits; such a swapping is as large as the one seen.
    threshold = abs(total) - 1e-9 * np.abs(differences).sum()
    random = generator(seed, "paired randomization")
    chunk, hits = max(1, _CELLS // len(differences)), 0
    for start in range(0, rounds, chunk):
        size = (min(chunk, rounds - start), -(-len(differences) // 8))
        bits = np.unpackbits(random.integers(0, 256, size, np.uint8), axis=1, count=len(differences))
        hits += int((np.abs(total - 2 * (bits @ differences)) >= threshold).sum())
    return (hits + 1) / (rounds + 1)


def mean_entropy(ranking: pa.Table, *, documents: int = 15, temperature: float = 1.0) -> float:
    """Mean over queries of the entropy (natural logarithm) of the softmax of a query's first scores.

    As in AR2's Table 6, where it is taken over the first 15 documents: log 15 when the retriever has no preference
    among them, 0 when all its probability is on one.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}, must be above 0")
    first = ranking.filter(pc.less_equal(ranking["rank"], documents))
    if not len(first):
        return 0.0
    query = first["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    scores = first["score"].to_numpy().astype(np.float64) / temperature
    highest = np.full(query.max() + 1, -math.inf)
    np.maximum.at(highest, query, scores)
    shifted = scores - highest[query]
    weights = np.exp(shifted)
    normalizers = np.bincount(query, weights)
    return float((np.log(normalizers) - np.bincount(query, weights * shifted) / normalizers).mean())


def spread(values: Iterable[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation over seeds; no deviation for one seed."""
    array = np.fromiter(values, np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def meaning(name: str, *, answers_in: str = "text", patterns: bool = False) -> str:
    """What a measure says, for a reader who never met it; answers may be patterns, and stand in other fields."""
    family, _, cutoff = name.partition("@")
    family, _, level = family.partition("(rel=")
    first = f"the first {cutoff}" if cutoff else "all results"
    beyond = f" (0 beyond {cutoff})" if cutoff else ""
    known = {
        "RR": f"1 / position of the first right document{beyond}",
        "nDCG": f"how well {first} are ordered, best first",
        "R": f"share of the right documents that are among {first}",
        "Success": f"share of queries with a right document among {first}",
        "P": f"share of {first} that are right",
        "AP": "precision averaged over the positions of the right documents",
        "Answer": f"share of queries whose answer {'matches' if patterns else 'stands in'} the {answers_in} of {first}",
        "EM": "share of written answers that are exactly right (SQuAD)",
        "F1": "overlap of the written answer's words with the right one's (SQuAD)",
    }
    from_level = f"; right is what has relevance {level[:-1]} or more" if level else ""
    return known.get(family, "") + from_level
