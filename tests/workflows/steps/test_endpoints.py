"""Steps that ask an address: the same files as steps with models here, and nothing asked twice."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import QUERIES, RANKING, check, document_text
from sparring.components.data.vectors import document_shards
from sparring.components.files import read_json
from sparring.components.models import permutations
from sparring.components.models.endpoints import Endpoint
from sparring.workflows.steps import endpoints as module
from sparring.workflows.steps.endpoints import (
    embed_documents_at,
    embed_queries_at,
    order_at,
    rerank_at,
    score_groups_at,
)
from sparring.workflows.store.dag import step
from tests.support import tiny, toy
from tests.support.endpoint import KEY, TOKENS, every_third_fails, score, unit, window
from tests.support.endpoint import Endpoint as Server
from tests.support.tiny import ROOT


def asking(server: Server, path: str = "rerank", **keys: Any) -> Endpoint:
    return Endpoint(url=f"{server.url}/{path}", model="m", key_from="RERANK_KEY", **keys)


def texts(data: Path, table: str) -> dict[str, str]:
    """The texts of a collection's documents or queries, by id."""
    rows = pq.read_table(data / f"{table}.parquet").to_pylist()
    if table == "queries":
        return {row["query_id"]: row["text"] for row in rows}
    return {row["doc_id"]: document_text(row["title"], row["text"]) for row in rows}


@pytest.fixture
def found(data: Path, tmp_path: Path) -> dict[str, list[str]]:
    """Ten documents for each of the collection's queries, in the files of a ranking."""
    documents, queries = list(texts(data, "documents")), list(texts(data, "queries"))
    lists = {
        query: [documents[(7 * number + 3 * place) % 40] for place in range(10)] for number, query in enumerate(queries)
    }
    toy.write_ranking(tmp_path / "ranking", lists)
    return lists


def reranked(data: Path, out: Path, endpoint: Endpoint, **options: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    options = {"split": "train", "depth": 6, "queries": None, "before": [], **options}
    return rerank_at(out, toy.INLINE, data=data, ranking=out.parent / "ranking", endpoint=endpoint, **options)


@pytest.fixture
def groups(data: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """Two groups for each training query, which share some documents."""
    documents = list(texts(data, "documents"))
    table = pq.read_table(data / "queries.parquet", filters=[("split", "=", "train")])
    rows = [
        {
            "query_id": query,
            "visit": 0,
            "doc_ids": [documents[(3 * number + place) % 40] for place in range(first, first + 4)],
            "targets": [1.0, 0.0, 0.0, 0.0],
            "teacher": None,
        }
        for first in (0, 2)
        for number, query in enumerate(table["query_id"].to_pylist())
    ]
    toy.write_groups(tmp_path / "groups", rows)
    return rows


def taught(data: Path, out: Path, endpoint: Endpoint, *before: Path) -> dict[str, Any]:
    """Score the groups next to `out`."""
    out.mkdir(exist_ok=True)
    groups = out.parent / "groups"
    return score_groups_at(out, toy.INLINE, data=data, groups=groups, endpoint=endpoint, before=list(before))


def scores_of(data: Path, rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """The scores of groups' pairs by their texts."""
    documents, queries = texts(data, "documents"), texts(data, "queries")
    pairs = {(queries[row["query_id"]], documents[name]) for row in rows for name in row["doc_ids"]}
    return {pair: score(*pair) for pair in pairs}


def ranked(out: Path) -> dict[str, list[tuple[str, float]]]:
    rows: dict[str, list[tuple[str, float]]] = {}
    for row in check(pq.read_table(out / "ranking.parquet"), RANKING, source="ranking").to_pylist():
        rows.setdefault(row["query_id"], []).append((row["doc_id"], row["score"]))
    return rows


def test_documents_come_in_the_order_of_the_scores(
    data: Path, tmp_path: Path, found: dict[str, list[str]], endpoint: Server
) -> None:
    endpoint.fails = every_third_fails
    summary = reranked(data, tmp_path / "out", asking(endpoint))
    documents, queries = texts(data, "documents"), texts(data, "queries")
    rows = ranked(tmp_path / "out")
    assert len(rows) > 5
    for query, ranking in rows.items():
        scored = [(name, score(queries[query], documents[name])) for name in found[query][:6]]
        wanted = sorted(scored, key=lambda pair: -pair[1])
        assert [name for name, _ in ranking] == [*(name for name, _ in wanted), *found[query][6:]]
        assert [value for _, value in ranking[:6]] == pytest.approx([value for _, value in wanted])
    assert {key: summary[key] for key in ("pairs", "queries", "answers", "searches", "tokens")} == {
        "pairs": len({(queries[query], name) for query in rows for name in found[query][:6]}),
        "queries": len(rows),
        "answers": (count := len({queries[query] for query in rows})),
        "searches": count,
        "tokens": TOKENS * count,
    }
    assert tiny.kept(tmp_path / "out").keys() == {"ranking.parquet", "usage.json"}
    assert endpoint.asked_twice == []
    calls = endpoint.calls
    assert reranked(data, tmp_path / "out", asking(endpoint)) == summary  # killed before its record was written
    assert endpoint.calls == calls


def listed(data: Path, out: Path, endpoint: Endpoint) -> dict[str, Any]:
    """Let a language model order the first documents of the ranking next to `out`."""
    out.mkdir(exist_ok=True)
    inputs: dict[str, Any] = {"data": data, "ranking": out.parent / "ranking", "endpoint": endpoint}
    return order_at(out, toy.INLINE, split="train", depth=7, queries=None, **inputs)


SCRIPT = """
import sys
from pathlib import Path
from sparring.components.models import permutations
from sparring.components.models.endpoints import Endpoint
from tests.support import toy
from tests.workflows.steps.test_endpoints import STEPS
data, out, url, files, name = sys.argv[1:]
import sparring.workflows.steps.endpoints as module
module.QUERIES_PER_FILE = int(files)
permutations.WINDOW, permutations.STEP = 4, 2
STEPS[name](Path(data), Path(out), Endpoint(url=url, model="m", key_from="RERANK_KEY"))
"""
STEPS = {"rerank_at": reranked, "score_groups_at": taught, "order_at": listed}


@pytest.mark.parametrize(
    ("files", "name"), [(3, "rerank_at"), (200, "rerank_at"), (3, "score_groups_at"), (3, "order_at")]
)
def test_a_killed_run_asks_for_nothing_that_it_was_answered(
    data: Path,
    tmp_path: Path,
    found: dict[str, list[str]],
    groups: list[dict[str, Any]],
    endpoint: Server,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    name: str,
) -> None:
    """The address fails a third of its calls. The first run is killed while it waits for further answers."""
    monkeypatch.setattr(module, "QUERIES_PER_FILE", files)
    monkeypatch.setattr(permutations, "WINDOW", 4)
    monkeypatch.setattr(permutations, "STEP", 2)
    endpoint.fails, endpoint.answers_until = every_third_fails, 5
    arguments = [str(data), str(tmp_path / "out"), asking(endpoint).url, str(files), name]
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT)
    while process.poll() is None and sum(map(lines, (tmp_path / "out").glob("asked-*.jsonl"))) + done(tmp_path) < 5:
        time.sleep(0.05)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert endpoint.statuses[200] == 5
    endpoint.answers_until = None
    summary = STEPS[name](data, tmp_path / "out", asking(endpoint))
    assert endpoint.asked_twice == []
    assert endpoint.statuses[429] + endpoint.statuses[500] >= summary["answers"] // 3
    answered = {key: summary[key] for key in ("answers", "searches", "tokens")}
    assert answered == {
        "answers": endpoint.statuses[200],
        "searches": endpoint.statuses[200],
        "tokens": TOKENS * endpoint.statuses[200],
    }
    expected = STEPS[name](data, tmp_path / "whole", asking(endpoint))
    (table,) = (tmp_path / "out").glob("*.parquet")
    assert pq.read_table(table).equals(pq.read_table(tmp_path / "whole" / table.name))
    assert expected["answers"] == summary["answers"] == endpoint.statuses[200] // 2


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def done(folder: Path) -> int:
    """Number of answers in finished files whose answers were removed."""
    out = folder / "out"
    pending = {path.name.removeprefix("asked-").removesuffix(".jsonl") for path in out.glob("asked-*.jsonl")}
    return sum(read_json(path)["answers"] for path in out.glob("usage-*.json") if path.stem[6:] not in pending)


def test_an_address_teaches_with_one_request_for_each_query(
    data: Path, tmp_path: Path, groups: list[dict[str, Any]], endpoint: Server
) -> None:
    endpoint.fails = every_third_fails
    summary = taught(data, tmp_path / "out", asking(endpoint))
    documents, queries = texts(data, "documents"), texts(data, "queries")
    written = pq.read_table(tmp_path / "out" / "groups.parquet").to_pylist()
    assert [{**row, "teacher": None} for row in written] == groups
    for row in written:
        expected = [score(queries[row["query_id"]], documents[name]) for name in row["doc_ids"]]
        assert row["teacher"] == pytest.approx(expected)
    scores = scores_of(data, groups)
    assert endpoint.asked_twice == []
    assert set(endpoint.answered) == scores.keys()
    count = len({query for query, _ in scores})
    expected_bill = {"searches": count, "answers": count, "tokens": TOKENS * count}
    assert {key: summary[key] for key in expected_bill} == expected_bill
    assert tiny.kept(tmp_path / "out").keys() == {"groups.parquet", "usage.json"}


def test_pairs_of_earlier_groups_are_not_asked_again(
    data: Path, tmp_path: Path, groups: list[dict[str, Any]], endpoint: Server
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    half = len(groups) // 2
    for folder, rows in ((first, groups[:half]), (second, groups[half:])):
        folder.mkdir()
        toy.write_groups(folder / "groups", rows)
    taught(data, first / "out", asking(endpoint))
    answered = set(endpoint.answered)
    summary = taught(data, second / "out", asking(endpoint), first / "out")
    assert endpoint.asked_twice == []
    scores = scores_of(data, groups[half:])
    assert scores.keys() & answered
    assert set(endpoint.answered) - answered == scores.keys() - answered
    assert summary["answers"] == len({query for query, _ in scores.keys() - answered})
    documents, queries = texts(data, "documents"), texts(data, "queries")
    for row in pq.read_table(second / "out" / "groups.parquet").to_pylist():
        expected = [scores[queries[row["query_id"]], documents[name]] for name in row["doc_ids"]]
        assert row["teacher"] == pytest.approx(expected)
    calls = endpoint.calls
    third = taught(data, second / "again", asking(endpoint), first / "out", second / "out")
    assert (third["answers"], third["pairs"], endpoint.calls) == (0, 0, calls)


def test_pairs_of_earlier_rankings_are_not_asked_again(
    data: Path, tmp_path: Path, found: dict[str, list[str]], endpoint: Server
) -> None:
    reranked(data, tmp_path / "first", asking(endpoint), depth=4)
    toy.write_ranking(tmp_path / "ranking", {query: names[2:] + names[:2] for query, names in found.items()})
    expected = reranked(data, tmp_path / "whole", asking(endpoint), depth=4)
    endpoint.answered.clear()
    summary = reranked(data, tmp_path / "second", asking(endpoint), depth=4, before=[tmp_path / "first"])
    assert summary["pairs"] == len(endpoint.answered) < expected["pairs"]
    assert ranked(tmp_path / "second") == ranked(tmp_path / "whole")


def test_no_groups_behind_a_closed_gate_ask_nothing(data: Path, tmp_path: Path, endpoint: Server) -> None:
    toy.write_groups(tmp_path / "groups", [])
    assert taught(data, tmp_path / "out", asking(endpoint))["answers"] == 0
    assert pq.read_table(tmp_path / "out" / "groups.parquet").num_rows == endpoint.calls == 0


def test_a_language_model_orders_documents_in_windows(
    data: Path, tmp_path: Path, endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of 4 move by 2, from the last of 7 documents to the first. An answer that names only its best document
    leaves the others as they were."""
    monkeypatch.setattr(permutations, "WINDOW", 4)
    monkeypatch.setattr(permutations, "STEP", 2)
    endpoint.fails = every_third_fails
    documents, queries = texts(data, "documents"), texts(data, "queries")
    distinct = list({text: name for name, text in documents.items()}.values())
    single_queries = {text: query for query, text in queries.items()}.values()  # equal texts would share their windows
    lists = {
        query: [distinct[(7 * number + 3 * place) % 30] for place in range(10)]
        for number, query in enumerate(single_queries)
    }
    toy.write_ranking(tmp_path / "ranking", lists)
    endpoint.write = lambda order: f"The best is [{order[0]}], not [77]."
    summary = listed(data, tmp_path / "out", asking(endpoint, "chat/completions"))
    rows = ranked(tmp_path / "out")
    for query, ranking in rows.items():
        order = lists[query][:7]
        for start, stop in ((3, 7), (1, 5), (0, 4)):
            best = max(order[start:stop], key=lambda name: score(queries[query], documents[name]))
            order[start:stop] = [best, *(name for name in order[start:stop] if name != best)]
        assert [name for name, _ in ranking] == [*order, *lists[query][7:]]
        assert [value for _, value in ranking[:7]] == [-place for place in range(7)]
    assert (summary["answers"], summary["tokens"]) == (3 * len(rows), 3 * len(rows) * TOKENS)
    assert endpoint.asked_twice == []
    first = endpoint.bodies[0]
    assert (first["model"], first["temperature"], len(window(first)[1])) == ("m", 0, 4)
    assert tiny.kept(tmp_path / "out").keys() == {"ranking.parquet", "usage.json"}


def test_documents_with_equal_texts_are_sent_once(data: Path, tmp_path: Path, endpoint: Server) -> None:
    toy.write_ranking(tmp_path / "ranking", {"q18": ["d1", "d31", "d18"]})  # d31 says what d1 says
    reranked(data, tmp_path / "out", asking(endpoint), split="test")
    assert [len(body["documents"]) for body in endpoint.bodies] == [2]
    rows = dict(ranked(tmp_path / "out")["q18"])
    assert rows["d1"] == rows["d31"]


def test_queries_with_equal_texts_share_a_request(data: Path, tmp_path: Path, endpoint: Server) -> None:
    copied = tmp_path / "data"
    shutil.copytree(data, copied)
    rows = pq.read_table(copied / "queries.parquet").to_pylist()
    first, second = [row for row in rows if row["split"] == "test"][:2]
    second["text"] = first["text"]
    pq.write_table(pa.Table.from_pylist(rows, schema=QUERIES), copied / "queries.parquet")
    lists = {first["query_id"]: ["d2", "d4"], second["query_id"]: ["d4", "d6"]}
    toy.write_ranking(tmp_path / "ranking", lists)
    summary = reranked(copied, tmp_path / "out", asking(endpoint), split="test")
    assert [len(body["documents"]) for body in endpoint.bodies] == [3]
    assert {key: summary[key] for key in ("pairs", "queries", "answers")} == {"pairs": 3, "queries": 2, "answers": 1}
    documents = texts(copied, "documents")
    for query, ranking in ranked(tmp_path / "out").items():
        assert {name for name, _ in ranking} == set(lists[query])
        wanted = [score(first["text"], documents[name]) for name, _ in ranking]
        assert [value for _, value in ranking] == pytest.approx(wanted)


def test_vectors_have_length_one_and_the_order_of_the_table(
    data: Path, tmp_path: Path, endpoint: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TEXTS_PER_REQUEST", 4)
    endpoint.fails = every_third_fails
    for name in ("documents", "queries"):
        (tmp_path / name).mkdir()
    options: dict[str, Any] = {"data": data, "endpoint": asking(endpoint, "embeddings"), "dtype": "float32"}
    summary = embed_documents_at(tmp_path / "documents", toy.INLINE, prompt="passage: ", shard=16, **options)
    vectors = np.concatenate(list(document_shards(tmp_path / "documents")))
    wanted = [unit(f"passage: {text}") for text in texts(data, "documents").values()]
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
    assert (summary["documents"], summary["tokens"]) == (40, TOKENS * summary["answers"])
    summary = embed_queries_at(tmp_path / "queries", toy.INLINE, prompt="query: ", split="test", **options)
    names, queries = json.loads((tmp_path / "queries" / "queries.json").read_text()), texts(data, "queries")
    assert summary["queries"] == len(names)
    vectors = np.load(tmp_path / "queries" / "queries.npy")
    np.testing.assert_allclose(vectors, [unit(f"query: {queries[name]}") for name in names], atol=1e-6)
    assert tiny.kept(tmp_path / "queries").keys() == {"queries.npy", "queries.json", "usage.json"}


def test_how_to_ask_is_no_identity_and_the_key_is_nowhere(
    data: Path, tmp_path: Path, found: dict[str, list[str]], endpoint: Server
) -> None:
    def node(**keys: Any) -> str:
        wanted = Endpoint(url="http://a.example/v1/rerank", **keys)
        inputs: dict[str, Any] = {
            "data": None,
            "ranking": None,
            "split": "test",
            "depth": 1,
            "queries": None,
            "before": [],
        }
        return step("x", rerank_at, **inputs, endpoint=wanted).fingerprint

    assert node() == node(key_from="A", requests_per_second=2, requests_at_once=1)
    assert node() != node(model="m")
    reranked(data, tmp_path / "out", asking(endpoint))
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_missing_key_is_refused_before_the_run(data: Path, endpoint: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RERANK_KEY")
    refuses = rerank_at.description.refuses  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="RERANK_KEY is not set"):
        refuses(endpoint=asking(endpoint), machine=toy.INLINE)
