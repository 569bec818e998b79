"""Measures of a ranking, query by query.

Measures have ir_measures' names and are computed by it. They see a ranking's ranks alone, so every measure is of the
order that the user gets. ir_measures sorts by score, and its parts order equal scores by different rules, in float32 or
float64; so it is given the ranks in place of scores. An exported run file has no equal scores, and ir_measures' command
line gives the same values for it. There a judged query without a relevant document counts 0; here it does not count.

The order of equal scores is decided where a ranking is made (`components.data.tables.RANKING`).
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator

from sparring.components.config import Invalid, UserError
from sparring.components.data.tables import TEXT

PER_QUERY = pa.schema([("query_id", TEXT), ("measure", TEXT), ("value", pa.float64())])
"""Schema of a table with a row for each query and measure."""
PER_QUERY_FILE = "per_query.parquet"
"""File name of such a table in an artifact."""

ACCEPTED = (
    "RR@k, nDCG@k, R@k, Success@k, P@k, AP@k (or RR, nDCG, AP without a cutoff), Answer@k; for example RR@10, or "
    "RR(rel=2)@10 where only relevance 2 and more counts, as in TREC DL"
)
_FAMILIES = {
    "rr": "RR",
    "mrr": "RR",
    "recip_rank": "RR",
    "ndcg": "nDCG",
    "ndcg_cut": "nDCG",
    "r": "R",
    "recall": "R",
    "success": "Success",
    "hit": "Success",
    "hits": "Success",
    "p": "P",
    "precision": "P",
    "ap": "AP",
    "map": "AP",
    "answer": "Answer",
}
_NAME = re.compile(r"(?P<family>\w+) *(\( *rel *= *(?P<level>[1-9]\d*) *\))? *(@ *(?P<cutoff>[1-9]\d*))?", re.ASCII)
_CUTOFF_OPTIONAL = ("RR", "nDCG", "AP")
_BINARY = ("RR", "R", "Success", "P", "AP")  # a document is relevant or not, from a relevance level on
READER_MEASURES = ("EM", "F1")
"""Measures of a reader's answers (`components.evaluation.exact_match`), not of a ranking."""
CORRELATIONS = ("Spearman", "Pearson")
SENTENCE_MEASURES = (*CORRELATIONS, "accuracy", "dev accuracy")
"""Measures of sentence vectors (`components.evaluation.similarity` and `transfer`), not of a ranking."""


def canonical(name: str) -> str:
    """Return the name that ir_measures gives a retrieval measure. UserError if there is no such measure.

    >>> canonical("mrr@10"), canonical("recall@100"), canonical("AP(rel=2)")
    ('RR@10', 'R@100', 'AP(rel=2)')
    """
    match = _NAME.fullmatch(name.strip())
    family = _FAMILIES.get(match["family"].lower()) if match else None
    if match is None or family is None or not (match["cutoff"] or family in _CUTOFF_OPTIONAL):
        raise UserError(f"measure {name!r}: not known; accepted: {ACCEPTED}", key=name, code="unknown-measure")
    level, cutoff = match["level"], match["cutoff"]
    if level and family not in _BINARY:
        raise UserError(f"measure {name!r}: {family} takes no (rel={level}); {', '.join(_BINARY)} do")
    return family + (f"(rel={level})" if level and level != "1" else "") + (f"@{cutoff}" if cutoff else "")


def known(name: str) -> str:
    """Validate a config's measure: `canonical`, but ValueError if there is no such measure.

    >>> known("mrr@10")
    'RR@10'
    """
    try:
        return canonical(name)
    except UserError as error:
        raise Invalid(str(error), error.code) from None


Measure = Annotated[str, AfterValidator(known)]
"""A retrieval measure by its canonical name: the type of a config's field."""


def at_level(name: str, level: int) -> str:
    """Return the measure that counts only documents of relevance `level` or more as relevant.

    A measure that has a level already, or takes none, is unchanged. TREC DL has binary measures from level 2 (strict)
    or 1 (lenient), and nDCG by all grades.

    >>> at_level("RR@10", 2), at_level("RR(rel=3)@10", 2), at_level("nDCG@10", 2)
    ('RR(rel=2)@10', 'RR(rel=3)@10', 'nDCG@10')
    """
    name = canonical(name)
    family, separator, cutoff = name.partition("@")
    return canonical(f"{family}(rel={level}){separator}{cutoff}") if family in _BINARY else name


def needs_answers(name: str) -> bool:
    """Check whether a measure uses the queries' answers instead of judgements.

    >>> needs_answers("Answer@5"), needs_answers("R@5"), needs_answers("EM"), needs_answers("Spearman")
    (True, False, False, False)
    """
    return name not in (*READER_MEASURES, *SENTENCE_MEASURES) and canonical(name).startswith("Answer@")


def cutoff(name: str) -> int | None:
    """Return the last rank that a measure looks at, or None if it looks at all ranks.

    >>> cutoff("nDCG@10"), cutoff("AP")
    (10, None)
    """
    rank = canonical(name).partition("@")[2]
    return int(rank) if rank else None


def sees_order(name: str, depth: int) -> bool:
    """Check whether a measure may change when the first `depth` documents of a ranking change places.

    >>> sees_order("RR@10", 10), sees_order("R@5", 10), sees_order("R@10", 10)
    (True, True, False)
    """
    counts, most = name.startswith(("R@", "R(", "P@", "P(", "Success", "Answer")), cutoff(name)
    return not counts or (most is not None and most < depth)


def answer_hits_per_query(ranking: pa.Table, queries: Sequence[str], measures: Sequence[str]) -> pa.Table:
    """`Answer@k` of each query: 1 if one of its first k documents contains an answer, else 0, also without results.

    The column `hit` of the ranking says which documents contain one. This is DPR's top-k accuracy (Karpukhin et al.,
    2020), which AR2 calls R@k on NQ and TriviaQA.

    >>> ranking = pa.table({"query_id": ["q1", "q1"], "rank": [1, 2], "hit": [False, True]})
    >>> means(answer_hits_per_query(ranking, ["q1", "q2"], ["Answer@1", "Answer@2"]))
    {'Answer@1': 0.0, 'Answer@2': 0.5}
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
    """Compute every measure of every query that has a relevant document. A query without results has 0.

    The ranks of the ranking count, not its scores and not the order of its rows. UserError for an unknown measure and
    for `Answer@k`, which needs more than judgements.

    >>> ranking = pa.table({"query_id": ["q1", "q1"], "doc_id": ["d1", "d2"], "rank": [1, 2]})
    >>> qrels = pa.table({"query_id": ["q1", "q2"], "doc_id": ["d2", "d3"], "relevance": [1, 1]})
    >>> per_query(ranking, qrels, ["RR@10"]).to_pylist()
    [{'query_id': 'q1', 'measure': 'RR@10', 'value': 0.5}, {'query_id': 'q2', 'measure': 'RR@10', 'value': 0.0}]
    """
    import ir_measures

    names = list(dict.fromkeys(canonical(name) for name in measures))
    for name in names:
        if needs_answers(name):
            raise UserError(f"measure {name!r}: needs texts and answers; a run computes it")
    judged = _nested(qrels, "relevance")
    judged = {query: documents for query, documents in judged.items() if max(documents.values()) > 0}
    queries = sorted(judged)
    rows_judged = ranking.filter(pc.is_in(ranking["query_id"], pa.array(queries, TEXT)))
    falling = rows_judged.select(["query_id", "doc_id"]).append_column(
        "score", pc.negate(rows_judged["rank"].cast(pa.float64()))
    )
    values: dict[tuple[str, str], float] = {}
    if len(rows_judged):  # ir_measures may fail on an empty ranking
        parsed = [ir_measures.parse_measure(name) for name in names]
        for metric in ir_measures.iter_calc(parsed, judged, _nested(falling, "score")):
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
    """Return for each measure, in the table's order, the query ids in order and their values.

    >>> by_measure(pa.table({"query_id": ["q2", "q1"], "measure": ["RR", "RR"], "value": [1.0, 0.5]}))
    {'RR': (['q1', 'q2'], array([0.5, 1. ]))}
    """
    table = values.combine_chunks()
    parts: dict[str, tuple[list[str], np.ndarray]] = {}
    for name in pc.unique(table["measure"]).to_pylist():
        part = table.filter(pc.equal(table["measure"], name)).sort_by("query_id")
        parts[name] = (part["query_id"].to_pylist(), part["value"].to_numpy())
    return parts


def means(values: pa.Table) -> dict[str, float]:
    """Average each measure over queries.

    >>> means(pa.table({"query_id": ["q2", "q1"], "measure": ["RR", "RR"], "value": [1.0, 0.5]}))
    {'RR': 0.75}
    """
    return {name: float(part.mean()) for name, (_, part) in by_measure(values).items()}


def mean_entropy(ranking: pa.Table, *, documents: int = 15, temperature: float = 1.0) -> float:
    """Mean over queries of the entropy, in nats, of the softmax over the scores of a query's first documents.

    AR2 takes it over 15 documents (Zhang et al., 2022, Table 6): log 15 if the retriever prefers none of them, 0 if one
    has all its probability.

    >>> ranking = pa.table({"query_id": ["q1", "q1"], "rank": [1, 2], "score": [3.0, 3.0]})
    >>> round(mean_entropy(ranking), 4)  # log 2
    0.6931
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


def within(name: str, low: float, high: float) -> tuple[float, float]:
    """Clip an interval's ends to the range of the measure: an interval by Student's t may exceed it.

    Counts, such as `NumRet`, have no upper end.

    >>> within("R@100", 0.97, 1.01)
    (0.97, 1.0)
    """
    return max(low, -1.0 if name in CORRELATIONS else 0.0), min(high, 1.0) if low <= 1.0 else high


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation over seeds. With one seed there is no deviation.

    >>> mean_and_deviation([1.0, 3.0]), mean_and_deviation([0.5])
    ((2.0, 1.4142135623730951), (0.5, None))
    """
    array = np.fromiter(values, np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def description(name: str, *, answers_in: str = "text", patterns: bool = False) -> str:
    """Explain a measure to readers who do not know it, or return "" for an unknown measure.

    For `Answer@k`, `answers_in` names the fields that are searched, and `patterns` says that answers are regular
    expressions.

    >>> description("RR@10")
    '1 / rank of the first relevant document (0 beyond rank 10)'
    """
    family, _, cutoff = name.partition("@")
    family, _, level = family.partition("(rel=")
    first = f"the first {cutoff}" if cutoff else "all results"
    beyond = f" (0 beyond rank {cutoff})" if cutoff else ""
    descriptions = {
        "RR": f"1 / rank of the first relevant document{beyond}",
        "nDCG": f"how well {first} are ordered, relevant documents first",
        "R": f"share of the relevant documents that are among {first}",
        "Success": f"share of queries with a relevant document among {first}",
        "P": f"share of {first} that are relevant",
        "AP": "precision averaged over the ranks of the relevant documents",
        "Answer": f"share of queries whose answer {'matches' if patterns else 'stands in'} the {answers_in} of {first}",
        "EM": "share of written answers that match a correct answer exactly (SQuAD)",
        "Spearman": "rank correlation between cosine similarities and human ratings",
        "Pearson": "linear correlation between cosine similarities and human ratings",
        "accuracy": "share of examples that a linear classifier over the frozen vectors labels correctly",
        "dev accuracy": "the same on the examples that chose the classifier's penalty, none of which is a test example",
        "F1": "word overlap between the written answer and the correct one (SQuAD)",
    }
    from_level = f"; relevant means relevance {level[:-1]} or more" if level else ""
    return descriptions.get(family, "") + from_level
