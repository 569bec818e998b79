"""The lexical kind: what its index is built of. `tests/workflows/steps/test_lucene.py` builds and searches indexes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import DOCUMENTS
from sparring.components.retrieval import kind, lucene
from sparring.components.retrieval.kinds import lexical
from sparring.components.retrieval.kinds.lexical import Lexical


def test_it_has_an_index_and_no_model() -> None:
    assert isinstance(kind.index_kind_named("lexical"), Lexical)
    assert not issubclass(Lexical, kind.RetrieverKind)


@pytest.mark.parametrize("documents", [1, 10**9])
def test_one_index_covers_all_documents(documents: int) -> None:
    assert Lexical().index_files("", documents) == [kind.IndexFile(lucene.INDEX, 0, documents)]


def test_documents_are_read_some_at_a_time_and_blank_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"doc_id": ["a", "b", "c"], "title": ["Sea", "", ""], "text": ["salt", " \n", "wind"]}
    pq.write_table(pa.table(rows, schema=DOCUMENTS), tmp_path / "documents.parquet")
    monkeypatch.setattr(lexical, "DOCUMENTS_AT_ONCE", 2)
    (texts,) = Lexical().documents(tmp_path)
    batches = list(texts.batches())
    assert len(texts) == 3
    assert [[json.loads(text)["id"] for text in batch] for batch, _ in batches] == [["a", "b"], ["c"]]
    assert [blank for _, blank in batches] == [1, 0]
