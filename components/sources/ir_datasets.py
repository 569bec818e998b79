"""A dataset of the package `ir_datasets`, by its id. The package downloads and checks the files."""

import importlib.util
from collections.abc import Iterator
from typing import Any

from sparring.components.config import UserError
from sparring.components.sources import base
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """The keys of `format: ir_datasets`."""

    dataset: str
    """Id of the dataset with the documents, such as `beir/scifact` or `msmarco-passage`."""
    splits: dict[str, str] | None = None
    """Id of each split, such as `{dev: msmarco-passage/dev/small}`. `null`: `DATASET/train`, `DATASET/dev` and
    `DATASET/test`, as far as they exist. If none of them exists, the dataset itself is the split `test`."""

    def missing(self) -> list[str]:
        """Return the package `ir_datasets`, if it is not installed."""
        return [] if importlib.util.find_spec("ir_datasets") else ["the package ir_datasets"]

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the documents, with titles if they have any."""
        for number, doc in _numbered(self.dataset, "docs"):
            title = getattr(doc, "title", "")
            text = getattr(doc, "text", None) or getattr(doc, "body", None)
            if text is None:
                title, text = "", doc.default_text()
            yield document(doc.doc_id, title, text, f"{self.dataset}: document {number}")

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the queries of each split."""
        for split, name in self._splits().items():
            for number, topic in _numbered(name, "queries"):
                answers = list(getattr(topic, "answers", ()))
                yield query(topic.query_id, topic.default_text(), answers, split, f"{name}: query {number}")

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the judgements of each split that has some."""
        for split, name in self._splits().items():
            if not _load(name, "queries").has_qrels():
                continue
            for number, qrel in _numbered(name, "qrels"):
                yield judgement(qrel.query_id, qrel.doc_id, qrel.relevance, split, f"{name}: judgement {number}")

    def _splits(self) -> dict[str, str]:
        if self.splits is not None:
            return self.splits
        registered = set(_package().registry)
        below = {split: f"{self.dataset}/{split}" for split in ("train", "dev", "test")}
        return {split: name for split, name in below.items() if name in registered} or {"test": self.dataset}


def _package() -> Any:
    try:
        import ir_datasets  # optional, and a plan must work without it
    except ModuleNotFoundError:
        raise UserError("format ir_datasets: the package `ir_datasets` is not installed. Install it.") from None
    return ir_datasets


def _numbered(name: str, part: str) -> Iterator[tuple[int, Any]]:
    """Yield the numbered records of a part of a dataset. Raise UserError if the package cannot load it."""
    try:
        yield from enumerate(getattr(_load(name, part), f"{part}_iter")(), start=1)
    except (ImportError, OSError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), "the package gives no reason")
        raise UserError(f"{name}: ir_datasets cannot read its {part}: {type(error).__name__}: {reason}") from error


def _load(name: str, part: str) -> Any:
    """Load a dataset by its id. Raise UserError if it lacks `part` (`docs`, `queries` or `qrels`)."""
    try:
        dataset = _package().load(name)
    except KeyError:
        raise UserError(f"{name}: ir_datasets has no dataset with this id.") from None
    if not getattr(dataset, f"has_{part}")():
        raise UserError(f"{name}: this dataset of ir_datasets has no {part}.")
    return dataset
