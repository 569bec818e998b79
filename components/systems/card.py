"""Model card of a system, its README.md: stages, measures and use."""

from typing import NamedTuple

from sparring.components.config import listing
from sparring.components.models.model_card import Measures, Row, metadata
from sparring.components.systems.config import SystemConfig

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
    files = {"system.json": "the stages and their numbers"}
    for stage in config.stages.values():
        files |= stage.contents
    files |= {"documents.jsonl": "the documents, as BEIR's `corpus.jsonl`", "example.py": "the program above"}
    lines = [
        f"# {config.name}",
        "",
        f"A system for search over {config.documents:,} documents ({measured.collection}), made with Sparring.",
        "",
        *(f"{number}. {stage.sentence(name)}" for number, (name, stage) in enumerate(config.stages.items(), 1)),
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
        *(["## Training data", "", f"{measured.note}{further}", ""] if config.has_models else []),
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
        *(f"| `{name}` | {description} |" for name, description in files.items()),
        "",
    ]
    head = metadata("system", [], config.name, [Measures(measured.collection, measured.split, measured.rows)])
    return head + "\n".join(lines)
