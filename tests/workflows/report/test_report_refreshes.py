"""The report's section on how the negatives change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sparring.components.retrieval.screening import ScreenConfig
from sparring.workflows.report import report
from sparring.workflows.report.finished import finished_steps
from sparring.workflows.report.sections.refreshes import refreshes
from sparring.workflows.running.executor import execute
from sparring.workflows.steps.mine import MineConfig, mine
from sparring.workflows.steps.screen import screen
from sparring.workflows.store.dag import Step, graph, step
from sparring.workflows.store.store import Store
from tests.support import toy

BEFORE = {"q1": ["d5", "d1", "d31", "d0"], "q4": ["d8", "d9", "d2", "d3"]}
AFTER = {"q1": ["d1", "d0", "d5", "d7"], "q4": ["d8", "d9", "d2", "d3"]}


def ingest(out: Path, machine: Any, *, source: str) -> None:
    for path in Path(source).glob("*.parquet"):
        shutil.copyfile(path, out / path.name)


def tokenize(out: Path, machine: Any, *, source: str) -> None:
    for name in ("documents", "queries"):
        shutil.copyfile(Path(source) / f"{name}.same.npy", out / f"{name}.same.npy")


def search(out: Path, machine: Any, *, lists: dict[str, list[str]], before: Path | None) -> None:
    toy.write_ranking(out, lists)


def game(data: Path, tokens: Path) -> list[Step]:
    """Groups mined from a ranking, and groups from the ranking of what was trained on them, as it were."""
    tables, texts = step("data", ingest, source=str(data)), step("tokens", tokenize, source=str(tokens))
    groups, before = [], None
    for number, lists in enumerate((BEFORE, AFTER)):
        ranking = step(f"retriever {number} (seed 1) ranking (train)", search, lists=lists, before=before)
        screened = step(
            f"groups {number} (seed 1) screened",
            screen,
            data=tables,
            tokens=texts,
            ranking=ranking,
            split="train",
            votes=None,
            vectors=None,
            config=ScreenConfig(),
        )
        before = step(
            f"groups {number} (seed 1)",
            mine,
            data=tables,
            tokens=texts,
            ranking=screened,
            split="train",
            groups=2,
            seed=[1, number],
            config=MineConfig(negatives=1, depth=2),
        )
        groups.append(before)
    return groups


def test_overlap_ranks_and_removals_are_told(data: Path, tokens: Path, tmp_path: Path) -> None:
    wanted, store = game(data, tokens), Store(tmp_path / "store")
    for node in graph(wanted):
        execute(node, store, toy.INLINE, on_wait=print)
    result = refreshes(finished_steps(wanted, store), store)
    assert result is not None
    first, second = result["rows"]
    assert [row["label"] for row in result["rows"]] == ["retriever 0 ranking (train)", "retriever 1 ranking (train)"]
    assert (first["overlap"], first["since"]) == (None, "")
    assert (second["overlap"], second["since"]) == (0.75, "retriever 0 ranking (train)")  # 1 of 2, and 2 of 2
    assert (first["depth"], first["listed"]) == (2, 4)
    assert second["bands"][0] > first["bands"][0]
    assert abs(sum(first["bands"]) - 1) < 1e-9
    assert [item["name"] for item in first["removed"]] == ["groups 0 screened"]
    record = store.record(next(node for node in graph(wanted) if node.label == "groups 0 (seed 1) screened"))
    assert record is not None
    assert first["removed"][0]["share"] == 1 - record["summary"]["after"] / record["summary"]["before"]
    report.write(tmp_path, title="t", wanted=wanted, results=None, store=store, executed=set(), config={})
    text = (tmp_path / "report.html").read_text()
    assert "Negatives from refresh to refresh" in text
    assert '75 % <span class="verdict soft">with retriever 0 ranking (train)</span>' in text


def test_rankings_that_were_dropped_are_left_out(data: Path, tokens: Path, tmp_path: Path) -> None:
    wanted, store = game(data, tokens), Store(tmp_path)
    for node in graph(wanted):
        execute(node, store, toy.INLINE, on_wait=print)
    for node in graph(wanted):
        if node.function is search:
            store.drop(node, ["ranking.parquet"])
    assert refreshes(finished_steps(wanted, store), store) is None
    assert refreshes([], store) is None
