"""The report's section on candidates that may not become negatives."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.retrieval.screening import ScreenConfig
from sparring.workflows.report import report
from sparring.workflows.running.executor import execute
from sparring.workflows.steps.screen import screen
from sparring.workflows.store.dag import graph, step
from sparring.workflows.store.store import Store
from tests.support import toy


def ingest(out: Path, machine: Any, *, source: str) -> None:
    for path in Path(source).glob("*.parquet"):
        shutil.copyfile(path, out / path.name)
    table = pq.read_table(out / "documents.parquet")
    texts = [
        "<script>x</script>" if item == "d5" else text
        for item, text in zip(*(table[name].to_pylist() for name in ("doc_id", "text")), strict=True)
    ]
    pq.write_table(table.set_column(2, "text", pa.array(texts)), out / "documents.parquet")


def tokenize(out: Path, machine: Any, *, source: str) -> None:
    for name in ("documents", "queries"):
        shutil.copyfile(Path(source) / f"{name}.same.npy", out / f"{name}.same.npy")


def search(out: Path, machine: Any) -> None:
    toy.write_ranking(out, {"q1": ["d5", "d1", "d31", "d0", "d30"], "q4": ["d8", "d9"]})


def test_the_report_counts_reasons_and_shows_cases(tmp_path: Path, data: Path, tokens: Path) -> None:
    output = step("data", ingest, source=str(data))
    screened = step(
        "retriever groups screened",
        screen,
        data=output,
        tokens=step("tokens", tokenize, source=str(tokens)),
        ranking=step("ranking", search),
        split="train",
        votes=None,
        vectors=None,
        config=ScreenConfig(absolute=0.5),
    )
    store = Store(tmp_path / "store")
    for node in graph([screened]):
        execute(node, store, toy.INLINE, on_wait=print)
    report.write(tmp_path / "run", title="t", wanted=[screened], results=None, store=store, executed=set(), config={})
    text = (tmp_path / "run/report.html").read_text()
    assert "Candidates removed from the negatives" in text
    assert "<td>2</td><td>7</td><td>3</td><td>3.5 → 1.5</td>" in text
    assert "qrel 1, duplicate text 2, margin 1" in text
    assert text.count(">copy of<") == 1  # d30 says what d0 says; d31's original is the positive, which stands there
    assert "rank 1, score 99.000; the positive's 98.000" in text
    assert "<script>x" not in text
    assert "&lt;script&gt;x" in text
