"""Writes a system's README.md: what it is, what it was measured on, and how it is used."""

from typing import NamedTuple

from sparring.components.config import listing
from sparring.components.models.model_card import Measures, Row, metadata
from sparring.components.systems.config import SystemConfig

CARD = "README.md"


class Measured(NamedTuple):
    """Where a system comes from."""

    command: str
    """What trained and measured it."""
    date: str
    commit: str | None
    collection: str
    split: str
    rows: list[Row]
    """Its measures."""
    sampled: bool
    """Whether the queries are a sample of the split's."""
    note: str
    """What is known of the start model's training data."""
    read: list[str]
    """The collections that its models were trained on in the run; none where none was trained."""
    compared: str
    """How it compares with the best system without training, in words; empty where it was not compared."""


def card(config: SystemConfig, measured: Measured) -> str:
    """The text."""
    at = f" at commit {measured.commit[:12]}" if measured.commit else ""
    queries = f"{max((row.queries for row in measured.rows), default=0):,} queries"
    queries = f"a sample of {queries}" if measured.sampled else queries
    further = f" Further training was on {listing(measured.read)}." if measured.read else ""
    lines = [
        f"# {config.name}",
        "",
        f"A system for search over {config.documents:,} documents ({measured.collection}), made with Sparring.",
        "",
        *(f"{number}. {stage}" for number, stage in enumerate(_stages(config), 1)),
        "",
        "## Measures",
        "",
        f"On {queries} of the split {measured.split}; {measured.date}, by `{measured.command}`{at}.",
        "",
        "| measure | value | 95 % interval |",
        "|---|---|---|",
        *(f"| {row.measure} | {row.value:.4f} | {row.interval} |" for row in measured.rows),
        "",
        *([measured.compared, ""] if measured.compared else []),
        *(
            ["## Training data", "", f"{measured.note}{further}", ""]
            if config.dense is not None or config.ranker is not None
            else []
        ),
        "## Use",
        "",
        "With Sparring (FOLDER is this one):",
        "",
        "```",
        'sparring search FOLDER "QUERY" -k 5',
        "```",
        "",
        "Without it, in this folder, `example.py` is the whole program:",
        "",
        "```",
        'python example.py "QUERY" 5',
        "```",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in _files(config).items()),
        "",
    ]
    head = metadata("system", [], config.name, [Measures(measured.collection, measured.split, measured.rows)])
    return head + "\n".join(lines)


def _stages(config: SystemConfig) -> list[str]:
    stages = []
    if config.lexical is not None:
        one = config.lexical
        rm3 = "" if one.rm3 is None else " with relevance feedback (RM3)"
        stages.append(f"BM25{rm3} lists {one.k} documents (k1 {one.k1:g}, b {one.b:g}).")
    if config.dense is not None:
        stages.append(f"The retriever lists the {config.dense.k} documents nearest to the query's vector.")
        if (near := config.dense.neighbours) is not None:
            stages.append(
                f"The first {near.context} are reranked by reciprocal nearest neighbours among them "
                f"(k {near.k}; the inner product weighs {near.mix:g})."
            )
    if config.fusion is not None:
        stages.append(f"The lists are fused ({config.fusion.how}); {config.fusion.depth} documents are kept.")
    if config.ranker is not None:
        by = "its scores alone" if config.ranker.weights is None else "the weighted sum of its and the lists' scores"
        stages.append(f"The ranker reorders the first {config.ranker.depth}, by {by}.")
    return stages


def _files(config: SystemConfig) -> dict[str, str]:
    files = {"system.json": "the stages and their numbers"}
    if config.lexical is not None:
        files[config.lexical.index] = "a Lucene index, for Pyserini's `LuceneSearcher`"
    if config.dense is not None:
        files[config.dense.retriever] = "the retriever, for `SentenceTransformer`"
        files[config.dense.index] = "the documents' vectors, for `faiss.read_index`; row i is line i of the documents"
    if config.ranker is not None:
        files[config.ranker.folder] = "the ranker, for `CrossEncoder`; scores are logits"
    return {**files, "documents.jsonl": "the documents, as BEIR's `corpus.jsonl`", "example.py": "the program above"}
