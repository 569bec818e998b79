"""A dataset of the package `ir_datasets`, by id.

Its files are downloaded and checked by that package, so this declaration has none of its own.
"""

import importlib.util
from collections.abc import Iterator
from typing import Any

from components.config import UserError
from components.sources import base
from components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """Documents of one id, queries and qrels of ids below it."""

    dataset: str
    """The id with the documents, such as `beir/scifact` or `msmarco-passage`."""
    splits: dict[str, str] | None = None
    """The id of each split, such as `{dev: msmarco-passage/dev/small}`. By default those of `DATASET/train`, `/dev`
    and `/test` that there are, or the dataset itself as `test`."""

    def missing(self) -> list[str]:
        """The package, if it is not installed."""
        return [] if importlib.util.find_spec("ir_datasets") else ["the package ir_datasets"]

    def read_documents(self) -> Iterator[Document | Bad]:
        """Documents with their title apart where they have one."""
        for number, found in enumerate(_load(self.dataset, "docs").docs_iter(), start=1):
            title = getattr(found, "title", "")
            text = getattr(found, "text", None) or getattr(found, "body", None)
            if text is None:
                title, text = "", found.default_text()
            yield document(found.doc_id, title, text, f"{self.dataset}: document {number}")

    def read_queries(self) -> Iterator[Query | Bad]:
        """Queries of each split."""
        for split, name in self._splits().items():
            for number, found in enumerate(_load(name, "queries").queries_iter(), start=1):
                answers = list(getattr(found, "answers", ()))
                yield query(found.query_id, found.default_text(), answers, split, f"{name}: query {number}")

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Judgements of each split that has them."""
        for split, name in self._splits().items():
            dataset = _load(name, "queries")
            for number, found in enumerate(dataset.qrels_iter() if dataset.has_qrels() else (), start=1):
                yield judgement(found.query_id, found.doc_id, found.relevance, split, f"{name}: judgement {number}")

    def _splits(self) -> dict[str, str]:
        if self.splits is not None:
            return self.splits
        registered = set(_package().registry)
        below = {split: f"{self.dataset}/{split}" for split in ("train", "dev", "test")}
        return {split: name for split, name in below.items() if name in registered} or {"test": self.dataset}


def _package() -> Any:
    try:
        import ir_datasets  # optional, and a plan must not need it
    except ModuleNotFoundError:
        raise UserError("format ir_datasets: the package `ir_datasets` is not installed") from None
    return ir_datasets


def _load(name: str, part: str) -> Any:
    """The dataset of an id, which must have the part that is wanted."""
    try:
        dataset = _package().load(name)
    except KeyError:
        raise UserError(f"{name}: ir_datasets knows no such id") from None
    if not getattr(dataset, f"has_{part}")():
        raise UserError(f"{name}: this id of ir_datasets has no {part}")
    return dataset
