"""A collection with marks among its judgements, as a folder in BEIR's layout."""

from __future__ import annotations

import json
from pathlib import Path

from components.sources import beir
from components.sources.records import Judgement
from workflows.serving import judgements
from workflows.serving.questions import Mark


def test_ids_in_quotes_are_read_as_they_were(tmp_path: Path) -> None:
    corpus = tmp_path / "documents.jsonl"
    corpus.write_text("".join(json.dumps({"_id": one, "title": "", "text": "x"}) + "\n" for one in ('"0"', "0")))
    mark = Mark(query="asked", doc_id='"0"', relevant=True)
    added = judgements.write_folder(tmp_path / "out", corpus, [mark, mark.model_copy(update={"doc_id": "9"})], "train")
    assert added == judgements.Added(queries=1, judgements=1, changed=0, gone=1)
    found = [
        one for one in beir.Source(format="beir", path=str(tmp_path / "out")).read_qrels() if isinstance(one, Judgement)
    ]
    assert [(one.doc_id, one.relevance) for one in found] == [('"0"', 1)]
