"""What the step refuses to decide by; the decision itself is tested with `components.evaluation.gate`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import QRELS, QUERIES, write
from sparring.components.evaluation.gate import GateConfig
from sparring.workflows.steps.gate import gate
from tests.support import toy


@pytest.mark.parametrize("relevance", [0, None])
def test_a_split_without_a_relevant_document_decides_nothing(tmp_path: Path, relevance: int | None) -> None:
    queries = [{"query_id": "q", "text": "a", "answers": [], "split": "dev"}]
    qrels = [{"query_id": "q", "doc_id": "d", "relevance": relevance, "split": "dev"}] if relevance is not None else []
    write(tmp_path / "queries.parquet", pa.Table.from_pylist(queries, schema=QUERIES), QUERIES)
    write(tmp_path / "qrels.parquet", pa.Table.from_pylist(qrels, schema=QRELS), QRELS)
    with pytest.raises(UserError, match="'dev' has no query with a relevant document to decide by; hold some out"):
        gate(
            tmp_path / "out",
            toy.INLINE,
            data=tmp_path,
            ranking=tmp_path,
            reranked=tmp_path,
            split="dev",
            measure="RR@10",
            config=GateConfig(),
        )
