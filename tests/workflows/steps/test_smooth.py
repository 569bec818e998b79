"""Ranking contexts as groups, and their soft labels: each group as if alone, and the ground truth never lost."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.config import UserError
from sparring.components.data.groups import Groups
from sparring.components.data.tables import GROUPS, check
from sparring.components.neighbours.smoothing import targets
from sparring.components.rng import keyed_sample
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps import smooth as step
from sparring.workflows.steps.smooth import ContextConfig, SmoothConfig, contexts, smooth
from tests.support import tiny, toy
from tests.support.errors import refused

ROWS = [
    {"query_id": "q1", "visit": 3, "doc_ids": ["d1", "d4", "d9", "d30", "d31", "d20"]},
    {"query_id": "q2", "doc_ids": ["d5", "d2", "d7", "d11", "d8"], "targets": [0.0, 1.0, 0.0, 2.0, 0.0]},
    {"query_id": "q4", "doc_ids": ["d4"]},
    {"query_id": "q5", "doc_ids": ["d7", "d8", "d9"], "targets": [0.0, 0.0, 0.0]},  # nothing is known to be relevant
    {"query_id": "q1", "doc_ids": ["d1", "d2", "d3"], "teacher": [1.0, 2.0, 3.0]},
    {"query_id": "q7", "doc_ids": [f"d{i}" for i in (9, 8, 6, 5, 4, 3, 2, 1, 7, 0)], "targets": [0.0] * 8 + [1.0, 0.0]},
]
CONFIG: dict[str, Any] = {"similarity": {"k": 3, "k_exp": 2, "mix": 0.2}, "n_max": 3}


@pytest.fixture(scope="module")
def vectors(toys: Path, data: Path) -> Path:
    """Of length 1, for all documents and the queries of the training split."""
    (folder := toys / "smooth-vectors").mkdir()
    rng = np.random.default_rng(4)
    queries = pq.read_table(data / "queries.parquet", filters=[("split", "=", "train")])["query_id"].to_pylist()

    def unit(count: int) -> np.ndarray:
        rows = rng.standard_normal((count, 8))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    toy.write_document_vectors(folder, [unit(min(15, 40 - start)) for start in range(0, 40, 15)])
    np.save(folder / "queries.npy", unit(len(queries)))
    (folder / "queries.json").write_text(json.dumps(queries))
    return folder


@pytest.fixture
def smoothed(tmp_path: Path, data: Path, vectors: Path) -> Any:
    def run(
        name: str = "out", rows: list[dict[str, Any]] = ROWS, *, machine: Machine = toy.INLINE, **config: Any
    ) -> list[dict[str, Any]]:
        groups = toy.write_groups(tmp_path / "groups", rows)
        (out := tmp_path / name).mkdir(exist_ok=True)
        run.summary = smooth(  # type: ignore[attr-defined]
            out,
            machine,
            data=data,
            vectors=vectors,
            queries=vectors,
            groups=groups,
            config=SmoothConfig(**{**CONFIG, **config}),
        )
        assert tiny.kept(out).keys() == {"groups.parquet"}
        return check(pq.read_table(out / "groups.parquet"), GROUPS, source="groups").to_pylist()

    return run


def alone(vectors: Path, row: dict[str, Any], **config: Any) -> list[float]:
    """The targets of one group by itself."""
    documents = np.concatenate([np.load(path) for path in sorted(vectors.glob("documents-*.npy"))])
    queries = json.loads((vectors / "queries.json").read_text())
    query = np.load(vectors / "queries.npy")[queries.index(row["query_id"])]
    truth = torch.tensor([[target > 0 for target in row.get("targets", [1] + [0] * (len(row["doc_ids"]) - 1))]])
    held = torch.from_numpy(documents[[int(document[1:]) for document in row["doc_ids"]]])[None]
    chosen = SmoothConfig(**{**CONFIG, **config})
    return targets(torch.from_numpy(query)[None], held, truth, torch.ones_like(truth), chosen)[0].tolist()


@pytest.mark.parametrize("labels", ["evidence", "query"])
def test_each_group_gets_its_labels_as_alone_and_nothing_else_changes(
    smoothed: Any, vectors: Path, labels: str
) -> None:
    rows = smoothed(labels=labels)
    for row, before in zip(rows, ROWS, strict=True):
        assert row["targets"] == pytest.approx(alone(vectors, before, labels=labels), abs=1e-5)
        assert (row["query_id"], row["visit"], row["doc_ids"], row["teacher"]) == (
            before["query_id"],
            before.get("visit", 0),
            before["doc_ids"],
            before.get("teacher"),
        )
    assert rows[3]["targets"] == [0.0] * 3
    assert rows[2]["targets"] == [1.0]
    assert rows[1]["targets"][1] > 0
    assert rows[1]["targets"][3] > 0
    assert rows[5]["targets"][8] > 0


def test_the_summary_says_how_targets_are_spread(smoothed: Any) -> None:
    rows = [row["targets"] for row in smoothed()]
    entropy = [-sum(p * math.log(p) for p in row if p > 0) for row in rows if sum(row)]
    truth = [rows[0][0], rows[1][1] + rows[1][3], rows[2][0], rows[4][0], rows[5][8]]
    assert smoothed.summary == {
        "groups": 6,
        "candidates": 28,
        "labelled": 5,
        "entropy": pytest.approx(np.mean(entropy)),
        "with_a_share": np.mean([sum(p > 0 for p in row) for row in rows if sum(row)]),
        "ground_truth": pytest.approx(np.mean(truth)),
    }


def test_uniform_labels_take_as_much_from_the_ground_truth_as_evidence_does(smoothed: Any) -> None:
    evidence = [row["targets"] for row in smoothed(name="evidence")]
    targets = [row["targets"] for row in smoothed(labels="uniform")]
    for expected, actual, truth in zip(evidence, targets, ([0], [1, 3], [0], [], [0], [8]), strict=True):
        assert sum(expected[i] for i in truth) == pytest.approx(sum(actual[i] for i in truth), abs=1e-6)
        assert len({round(share, 6) for i, share in enumerate(actual) if i not in truth}) <= 1
        assert len({round(actual[i], 6) for i in truth}) <= 1
        assert sum(actual) == pytest.approx(1.0 if truth else 0.0, abs=1e-6)
    assert [row["targets"] for row in smoothed(name="given", labels="uniform", epsilon=0.2)][4] == pytest.approx(
        [0.8, 0.1, 0.1]
    )


@pytest.mark.parametrize("context", [1, 4, 50])
def test_similarities_within_a_smaller_context(smoothed: Any, vectors: Path, context: int) -> None:
    """The ground truth wherever it stands, and the first others; the rest is as if it were not there."""
    for row, before in zip(smoothed(context=context), ROWS, strict=True):
        targets = before.get("targets", [1.0] + [0.0] * (len(before["doc_ids"]) - 1))  # type: ignore[attr-defined]
        negatives = [i for i, target in enumerate(targets) if target == 0]
        true = [i for i, target in enumerate(targets) if target > 0]
        chosen = sorted(true + negatives[: max(0, context - len(true))])
        wanted = [0.0] * len(targets)
        part = {**before, "doc_ids": [before["doc_ids"][i] for i in chosen], "targets": [targets[i] for i in chosen]}
        for i, share in zip(chosen, alone(vectors, part), strict=True):
            wanted[i] = share
        assert row["targets"] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("many", [1, 4])
def test_how_the_work_is_cut_does_not_matter(monkeypatch: pytest.MonkeyPatch, smoothed: Any, many: int) -> None:
    wanted = smoothed(name="wanted")
    monkeypatch.setattr(step, "GROUPS_AT_ONCE", many)
    monkeypatch.setattr(step, "contexts_per_batch", lambda candidates, device: 1)
    for row, expected in zip(smoothed(), wanted, strict=True):
        assert row["targets"] == pytest.approx(expected["targets"], abs=1e-6)


def test_through_ray_the_same(monkeypatch: pytest.MonkeyPatch, ray: Machine, smoothed: Any) -> None:
    wanted = smoothed(name="wanted")
    monkeypatch.setattr(step, "GROUPS_AT_ONCE", 2)
    for row, expected in zip(smoothed(machine=ray), wanted, strict=True):
        assert row["targets"] == pytest.approx(expected["targets"], abs=1e-6)


def test_queries_that_were_not_encoded_are_a_mistake_that_says_so(smoothed: Any) -> None:
    with refused("q3", "not-encoded"):
        smoothed(rows=[{"query_id": "q3", "doc_ids": ["d3", "d4"]}])


# Contexts


@pytest.fixture(scope="module")
def ranking(toys: Path) -> Path:
    """Each query finds 20 documents; query 1 finds both copies of two texts, of which d1 and so d31 are relevant."""
    lists = {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(1, 21)] for i in range(24) if i != 8}
    lists["q1"] = ["d31", "d5", "d0", "d30", "d6", "d7"]
    return toy.write_ranking(toys / "smooth-ranking", lists)


@pytest.fixture
def drawn(tmp_path: Path, data: Path, tokens: Path, ranking: Path) -> Any:
    def run(**config: Any) -> dict[str, dict[str, Any]]:
        run.summary = contexts(  # type: ignore[attr-defined]
            tmp_path,
            toy.INLINE,
            data=data,
            tokens=tokens,
            ranking=ranking,
            split="train",
            config=ContextConfig(**config),
        )
        rows = check(pq.read_table(tmp_path / "groups.parquet"), GROUPS, source="groups").to_pylist()
        return {row["query_id"]: row for row in rows}

    return run


def test_a_context_is_what_is_relevant_and_then_what_is_found(drawn: Any) -> None:
    rows = drawn(size=6)
    queries = [i for i in range(24) if i % 3 and i != 8]  # the training queries that found something
    assert list(rows) == [f"q{i}" for i in queries]
    assert drawn.summary == {"groups": len(queries), "of": len(queries) + 1, "candidates": 6 * (len(queries) - 1) + 5}
    assert rows["q4"]["doc_ids"] == ["d4", "d7", "d10", "d13", "d16", "d19"]
    assert rows["q4"]["targets"] == [1.0, 0, 0, 0, 0, 0]
    assert rows["q4"]["teacher"] is None


def test_a_text_stands_in_a_context_once(drawn: Any) -> None:
    assert drawn(size=6)["q1"]["doc_ids"] == ["d1", "d5", "d0", "d6", "d7"]
    assert drawn(size=2)["q1"]["doc_ids"] == ["d1", "d5"]


def test_all_that_is_relevant_is_in_the_context_however_small(
    tmp_path: Path, data: Path, tokens: Path, ranking: Path
) -> None:
    contexts(
        tmp_path, toy.INLINE, data=data, tokens=tokens, ranking=ranking, split="test", config=ContextConfig(size=1)
    )
    groups = Groups(tmp_path / "groups.parquet", data)
    assert [groups[i].documents.tolist() for i in range(len(groups))] == [[i, (i + 9) % 40] for i in range(0, 24, 6)]
    assert all(groups[i].targets.tolist() == [1.0, 1.0] for i in range(len(groups)))


def test_what_is_relevant_to_a_query_of_the_same_text_is_no_negative(
    drawn: Any, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q4 finds d7, which is relevant to q7, and the two ask the same."""
    before, load = drawn(size=6), np.load
    same = load(tokens / "queries.same.npy").copy()
    same[7] = same[4]
    monkeypatch.setattr(
        np, "load", lambda path, **options: same if Path(path).name == "queries.same.npy" else load(path, **options)
    )
    after = drawn(size=6)
    assert before["q4"]["doc_ids"] == ["d4", "d7", "d10", "d13", "d16", "d19"]
    assert after["q4"]["doc_ids"] == ["d4", "d10", "d13", "d16", "d19", "d22"]
    assert after["q1"] == before["q1"]


def test_contexts_of_a_sample_are_those_of_all(drawn: Any) -> None:
    every, some = drawn(size=6), drawn(size=6, queries=5)
    assert len(some) in (4, 5)  # q8 may be among the five, and found nothing
    assert some == {query: every[query] for query in some}
    assert drawn(size=6, queries=1000) == every


def test_contexts_are_the_same_however_few_queries_are_read_at_once(
    drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, summary = drawn(size=6), drawn.summary
    monkeypatch.setattr("sparring.workflows.steps.smooth.QUERIES_AT_ONCE", 2)
    assert drawn(size=6) == whole
    assert list(drawn(size=6)) == list(whole)
    assert drawn.summary == summary


def test_a_split_without_ground_truth_is_an_error(tmp_path: Path, data: Path, tokens: Path, ranking: Path) -> None:
    with pytest.raises(UserError, match="no query of the split 'none' has a relevant document and a ranking"):
        contexts(tmp_path, toy.INLINE, data=data, tokens=tokens, ranking=ranking, split="none", config=ContextConfig())


def test_a_context_is_smoothed_as_it_is(tmp_path: Path, drawn: Any, data: Path, vectors: Path) -> None:
    drawn(size=8)
    (out := tmp_path / "smooth").mkdir()
    summary = smooth(
        out, toy.INLINE, data=data, vectors=vectors, queries=vectors, groups=tmp_path, config=SmoothConfig(**CONFIG)
    )
    assert summary["labelled"] == summary["groups"]
    assert 0 < summary["ground_truth"] < 1
    assert summary["with_a_share"] <= 4


def test_a_relevant_document_that_is_not_labelled_is_a_candidate_like_others(
    tmp_path: Path, data: Path, tokens: Path, ranking: Path
) -> None:
    """Each query has two relevant documents, of which it finds the second."""
    contexts(
        tmp_path,
        toy.INLINE,
        data=data,
        tokens=tokens,
        ranking=ranking,
        split="test",
        config=ContextConfig(size=6, labelled=1),
    )
    groups = Groups(tmp_path / "groups.parquet", data)
    for i, query in enumerate(range(0, 24, 6)):
        documents, (relevant, hit) = groups[i].documents.tolist(), (query, (query + 9) % 40)
        assert groups[i].targets.tolist() == [1.0, 0, 0, 0, 0, 0]
        assert {f"d{documents[0]}"} == keyed_sample([f"d{relevant}", f"d{hit}"], 1, "labelled", f"q{query}")
        assert documents.count(hit) == 1
