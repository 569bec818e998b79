"""Write a run's groups as training data of other projects."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sparring.components.config import UserError
from sparring.components.data.tables import GROUPS, QUERIES, pieces, read, records, rows_in
from sparring.components.sources import flagembedding, sentence_transformers, tevatron
from sparring.components.sources.records import Document
from sparring.components.sources.training_groups import Given
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

FORMATS: dict[str, Callable[[Iterable[Given], Path, str], Path]] = {
    "tevatron": tevatron.write_groups,
    "tevatron-corpus": tevatron.write_groups_and_corpus,
    "flagembedding": flagembedding.write_groups,
    "sentence-transformers": sentence_transformers.write_groups,
}
"""Function that writes each format."""
CANDIDATES = 100_000
"""Number of candidates whose texts are in memory at once."""


def made(experiment: Experiment, store: Store) -> list[Step]:
    """Return a run's finished steps that made groups. Groups with a ranker's scores replace the same groups without.
    UserError if there are none."""
    nodes = [node for node in graph(experiment.wanted) if node.description.makes in ("groups", "taught groups")]
    scored = {node.inputs["groups"].fingerprint for node in nodes if node.description.makes == "taught groups"}
    done = [node for node in nodes if store.record(node) is not None and node.fingerprint not in scored]
    if not done:
        raise UserError("--groups: this run has no finished training groups. Name a run that has trained.")
    return done


def write(nodes: list[Step], store: Store, folder: Path, kind: str) -> Iterator[Path]:
    """Write each step's groups under its label, and yield the files."""
    folder.mkdir()
    for node in nodes:
        data = node.inputs["data"]
        store.fetch([node], "groups.parquet")
        store.fetch([data], "documents.parquet", "queries.parquet")
        if rows_in(store.path(node) / "groups.parquet"):
            name = node.label.replace(": ", "-").replace(" ", "-").replace("/", "-")
            yield FORMATS[kind](_given(store.path(node) / "groups.parquet", store.path(data)), folder, name)


def _given(groups: Path, data: Path) -> Iterator[Given]:
    """Yield groups with their texts."""
    table = read(data / "queries.parquet", QUERIES, columns=["query_id", "text"])
    queries = dict(zip(table["query_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    for piece in pieces(groups, GROUPS, rows=CANDIDATES):
        ids = list(dict.fromkeys(piece["doc_ids"].combine_chunks().flatten().to_pylist()))
        texts = records(data / "documents.parquet", "doc_id", ids)
        for row in piece.to_pylist():
            documents = [Document(key, texts[key]["title"], texts[key]["text"], "") for key in row["doc_ids"]]
            query, teacher = row["query_id"], row["teacher"]
            yield Given(query, queries[query], row["doc_ids"], [*documents], row["targets"], teacher, "", str(groups))
