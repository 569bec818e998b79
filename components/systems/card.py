"""Model card of a system, its README.md: stages, measures and use."""

from typing import NamedTuple

from sparring.components.config import listing
from sparring.components.models.model_card import Measures, Row, metadata
from sparring.components.systems.config import (
    DenseStage,
    ExpansionStage,
    FusedStage,
    LexicalStage,
    NeighboursStage,
    RankerStage,
    ReaderStage,
    Stage,
    SystemConfig,
)

CARD = "README.md"


class Measured(NamedTuple):
    """Origin and measures of a system."""

    command: str
    """Command that trained and measured the system."""
    date: str
    commit: str | None
    collection: str
    split: str
    rows: list[Row]
    """Its measures."""
    sampled: bool
    """True if the queries are a sample of the split's."""
    note: str
    """Facts about the start model's training data."""
    read: list[str]
    """Collections that its models were trained on in the run. Empty if none was trained."""
    compared: str
    """Comparison with the best system without training, in words. Empty if there was no comparison."""


def card(config: SystemConfig, measured: Measured) -> str:
    """Write the card."""
    commit = f" at commit {measured.commit[:12]}" if measured.commit else ""
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
        f"On {queries} of the split {measured.split}; {measured.date}, by `{measured.command}`{commit}.",
        "",
        "| measure | value | 95 % interval |",
        "|---|---|---|",
        *(f"| {row.measure} | {row.value:.4f} | {row.interval} |" for row in measured.rows),
        "",
        *([measured.compared, ""] if measured.compared else []),
        *(
            ["## Training data", "", f"{measured.note}{further}", ""]
            if any(config.of_kind(DenseStage, ExpansionStage, RankerStage, ReaderStage))
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
        *(f"| `{name}` | {description} |" for name, description in _files(config).items()),
        "",
    ]
    head = metadata("system", [], config.name, [Measures(measured.collection, measured.split, measured.rows)])
    return head + "\n".join(lines)


def _stages(config: SystemConfig) -> list[str]:
    """Write a sentence for each stage."""
    return [_sentence(name, stage) for name, stage in config.stages.items()]


def _sentence(name: str, stage: Stage) -> str:
    if isinstance(stage, LexicalStage):
        rm3 = "" if stage.rm3 is None else " with relevance feedback (RM3)"
        return f"`{name}`: BM25{rm3} lists {stage.k} documents (k1 {stage.k1:g}, b {stage.b:g})."
    if isinstance(stage, DenseStage):
        return f"`{name}`: the retriever lists the {stage.k} documents nearest to the query's vector."
    if isinstance(stage, NeighboursStage):
        return (
            f"`{name}`: the first {stage.context} documents of `{stage.of}` are reranked by reciprocal nearest "
            f"neighbours among them (k {stage.k}; the inner product weighs {stage.mix:g})."
        )
    if isinstance(stage, FusedStage):
        lists = listing(f"`{part}`" for part in stage.of)
        return f"`{name}`: {lists} are fused ({stage.how}); {stage.depth} documents are kept."
    if isinstance(stage, ExpansionStage):
        return f"`{name}`: {_source(stage)}, and `{stage.of}` searches for {_choice(stage)}."
    if isinstance(stage, ReaderStage):
        return f"`{name}`: a reader writes an answer from the first {stage.passages} documents of `{stage.of}`."
    by = "its scores alone"
    if stage.priors:
        by = f"the weighted sum of its scores and those of {listing(f'`{part}`' for part in stage.priors)}"
    return f"`{name}`: the ranker reorders the first {stage.depth} documents of `{stage.of}`, by {by}."


def _source(stage: ExpansionStage) -> str:
    """Say where a query's expansions come from."""
    if stage.relevance is not None:
        return f"the first {stage.relevance.documents} documents of `{stage.of}` expand the query"
    return "a language model expands the query"


def _choice(stage: ExpansionStage) -> str:
    """Say which expansions are searched for."""
    if stage.reranker is not None:
        count = "the expansion" if stage.most == 1 else f"the {stage.most} expansions"
        return f"{count} that a query reranker puts first"
    return {"concat": "all expansions as one query", "all": "all expansions"}.get(stage.choice, "the first expansion")


def _files(config: SystemConfig) -> dict[str, str]:
    files = {"system.json": "the stages and their numbers"}
    for stage in config.stages.values():
        if isinstance(stage, LexicalStage):
            files[stage.index] = "a Lucene index, for Pyserini's `LuceneSearcher`"
        elif isinstance(stage, DenseStage):
            files[stage.retriever] = "the retriever, for `SentenceTransformer`"
            files[stage.index] = "the documents' vectors, for `faiss.read_index`; row i is line i of the documents"
        elif isinstance(stage, ExpansionStage):
            files |= _expansion_files(stage)
        elif isinstance(stage, ReaderStage):
            files[stage.folder] = "the reader, for `AutoModelForSeq2SeqLM`"
        elif isinstance(stage, RankerStage):
            files[stage.folder] = "the ranker, for `CrossEncoder`; scores are logits"
    return {**files, "documents.jsonl": "the documents, as BEIR's `corpus.jsonl`", "example.py": "the program above"}


def _expansion_files(stage: ExpansionStage) -> dict[str, str]:
    files = {}
    if stage.frequencies is not None:
        files[stage.frequencies] = "the number of documents that have each term"
    if stage.generator is not None:
        loader = "AutoModelForCausalLM" if stage.architecture == "causal" else "AutoModelForSeq2SeqLM"
        files[stage.generator] = f"the language model that writes expansions, for `{loader}`"
    if stage.reranker is not None:
        files[stage.reranker.folder] = "the query reranker, for `CrossEncoder`; the lowest score is the best expansion"
    return files
