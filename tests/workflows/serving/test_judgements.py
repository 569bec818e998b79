"""A collection with marks among its judgements, as a folder in BEIR's layout."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from sparring.components.sources import beir
from sparring.components.sources.records import Judgement
from sparring.workflows.serving import judgements
from sparring.workflows.serving.questions import Mark


def test_ids_in_quotes_are_read_as_they_were(tmp_path: Path) -> None:
    corpus = tmp_path / "documents.jsonl"
    corpus.write_text("".join(json.dumps({"_id": doc_id, "title": "", "text": "x"}) + "\n" for doc_id in ('"0"', "0")))
    mark = Mark(query="asked", doc_id='"0"', relevant=True)
    added = judgements.write_folder(tmp_path / "out", corpus, [mark, mark.model_copy(update={"doc_id": "9"})], "train")
    assert added == judgements.Added(queries=1, judgements=1, changed=0, skipped=1)
    labels = [
        label
        for label in beir.Source(format="beir", path=str(tmp_path / "out")).read_qrels()
        if isinstance(label, Judgement)
    ]
    assert [(label.doc_id, label.relevance) for label in labels] == [('"0"', 1)]


def test_only_the_collections_own_judgements_count_as_changed(tmp_path: Path, data: Path) -> None:
    """Of two marks of one query and document the later takes the place of the earlier, not of the collection's."""
    judged = pq.read_table(data / "qrels.parquet").to_pylist()[0]
    texts = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    mark = Mark(query=texts[judged["query_id"]], doc_id=judged["doc_id"], relevant=False)
    new = [Mark(query="a new one", doc_id=judged["doc_id"], relevant=right) for right in (True, False)]
    added = judgements.write(tmp_path / "out", data, [mark, *new], "train")
    assert added == judgements.Added(queries=1, judgements=3, changed=1, skipped=0)
