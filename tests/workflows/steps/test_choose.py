"""Which expansion of a query is asked: what each finds, groups to learn from, the choice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import ANSWER_RANKS, QUERIES, RANKING, read, write
from sparring.components.expansion import expansions, query_choice
from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.steps import choose, expand
from sparring.workflows.steps.choose import rank_groups
from tests.support import toy
from tests.support.expanded import place


def test_ranks_by_judgements(chain: dict[str, Path], data: Path) -> None:
    relevant: dict[str, set[str]] = {}
    for row in pq.read_table(data / "qrels.parquet").to_pylist():
        if row["relevance"] > 0:
            relevant.setdefault(row["query_id"], set()).add(row["doc_id"])
    issued: dict[str, list[str]] = {}
    for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist():
        issued.setdefault(row["query_id"], []).append(row["doc_id"])
    for row in pq.read_table(chain["ranks"] / "ranks.parquet").to_pylist():
        hits = [
            rank
            for rank, document in enumerate(issued.get(row["doc_id"], []), 1)
            if document in relevant[row["query_id"]]
        ]
        assert row["rank"] == (hits[0] if hits else None)


def test_groups_have_ranks_and_queries_that_say_something(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    out = place(tmp_path / "groups")
    options = {"data": data, "split": "train", "max_rank": 101, "queries": None, "seed": [1]}
    summary = rank_groups(out, toy.INLINE, ranks=chain["ranks"], candidates=None, **options)
    ranks = {row["doc_id"]: row["rank"] for row in pq.read_table(chain["ranks"] / "ranks.parquet").to_pylist()}
    rows = pq.read_table(out / "groups.parquet").to_pylist()
    assert "q4" not in {row["query_id"] for row in rows}  # nothing finds anything: all of MAX_RANK
    assert summary["groups"] == len(rows) < summary["of"]
    for row in rows:
        assert row["targets"] == [101 if ranks[document] is None else ranks[document] for document in row["doc_ids"]]
        assert len(set(row["targets"])) > 1
    ranks = _same_ranks(chain, tmp_path)
    with pytest.raises(UserError, match="all expansions of each query retrieve equally well"):
        rank_groups(place(tmp_path / "none"), toy.INLINE, ranks=ranks, candidates=None, **options)


def test_groups_of_fewer_candidates_are_drawn(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    options = {"data": data, "split": "train", "max_rank": 101, "queries": None, "ranks": chain["ranks"], "seed": [1]}
    groups = {}
    for name, most in (("all", None), ("two", 2), ("again", 2), ("many", 1000)):
        rank_groups(place(tmp_path / name), toy.INLINE, candidates=most, **options)
        groups[name] = {row["query_id"]: row for row in pq.read_table(tmp_path / name / "groups.parquet").to_pylist()}
    assert groups["two"] == groups["again"]
    assert groups["many"] == groups["all"]
    firsts = 0
    for query, row in groups["two"].items():
        whole = groups["all"][query]
        assert len(row["doc_ids"]) == len(set(row["targets"])) == 2
        assert set(zip(row["doc_ids"], row["targets"], strict=True)) <= set(
            zip(whole["doc_ids"], whole["targets"], strict=True)
        )
        firsts += row["doc_ids"] == whole["doc_ids"][:2]
    assert firsts < len(groups["two"])  # a draw, and not the first ones


def test_groups_of_fewer_queries_are_drawn(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """In their order, by the seed alone."""
    groups = {}
    for name, queries, seed in (("all", None, 1), ("few", 5, 1), ("again", 5, 1), ("other", 5, 2), ("many", 1000, 1)):
        rank_groups(
            place(tmp_path / name),
            toy.INLINE,
            data=data,
            ranks=chain["ranks"],
            split="train",
            max_rank=101,
            queries=queries,
            candidates=None,
            seed=[seed],
        )
        groups[name] = pq.read_table(tmp_path / name / "groups.parquet").to_pylist()
    assert groups["few"] == groups["again"] == [row for row in groups["all"] if row in groups["few"]]
    assert len(groups["few"]) == 5
    assert groups["few"] not in (groups["all"][:5], groups["other"])
    assert groups["many"] == groups["all"]


def _same_ranks(chain: dict[str, Path], tmp_path: Path) -> Path:
    rows = pq.read_table(chain["ranks"] / "ranks.parquet")
    out = place(tmp_path / "same")
    table = rows.set_column(2, "rank", pa.array([3] * len(rows), pa.int32()))
    write(out / "ranks.parquet", table, ANSWER_RANKS)
    return out


@pytest.fixture(scope="module")
def questioned(chain: dict[str, Path], data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The expansions with the questions of the test split beside them."""
    out = tmp_path_factory.mktemp("questioned")
    expand.with_question(out, toy.INLINE, data=data, expanded=chain["expanded"], splits=["test", "train", "dev"])
    return out


def test_the_question_is_a_candidate(chain: dict[str, Path], questioned: Path, data: Path, tmp_path: Path) -> None:
    """With the number 0, before all others; never a generator's first choice, and there with any number of others."""
    rows = pq.read_table(questioned / expansions.FILE).to_pylist()
    before = pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()
    assert [row for row in rows if row["number"]] == before
    assert sorted(row["query_id"] for row in rows if not row["number"]) == sorted(f"q{i}" for i in range(24))
    numbers = [(row["query_id"], row["number"]) for row in rows]
    assert numbers == sorted(numbers, key=lambda pair: ([q for q, n in numbers if n == 0].index(pair[0]), pair[1]))
    texts = {row["query_id"]: row["text"] for row in pq.read_table(questioned / "queries.parquet").to_pylist()}
    plain = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    assert all(texts[f"{query}#0"] == f"{text} ?" for query, text in plain.items())

    scores = place(tmp_path / "scores")
    names = [row["doc_id"] for row in rows]
    table = {"doc_id": names, "score": [0.0 if name.endswith("#0") else 1.0 for name in names]}
    pq.write_table(pa.table(table, schema=query_choice.PREDICTIONS), scores / "predicted.parquet")

    def chosen(name: str, scores: Path | None, number: int | None) -> set[int]:
        out = place(tmp_path / name)
        choose.choose(
            out,
            toy.INLINE,
            data=data,
            expanded=questioned,
            ranking=chain["ranking"],
            scores=scores,
            otherwise=chain["found"],
            split="test",
            number=number,
        )
        return set(pq.read_table(out / choose.CHOICES)["number"].to_pylist())

    assert chosen("first", None, None) == {1}
    assert chosen("all", scores, None) == chosen("one", scores, 1) == {0}


@pytest.mark.parametrize("at_a_time", [1, 2, 3, 100])
@pytest.mark.parametrize("fusion", [None, FusionConfig(how="reciprocal")])
def test_rankings_of_a_few_queries_at_a_time_are_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fusion: FusionConfig | None, at_a_time: int
) -> None:
    """Rows of expansions in another order than the queries', queries without a choice, without rows, and of another
    split."""
    names = [f"q{number}" for number in range(9)]
    rng = np.random.default_rng(0)

    def ranking(queries: list[str]) -> pa.Table:
        rows = [
            {"query_id": query, "doc_id": f"d{document}", "rank": rank, "score": -float(rank)}
            for query in queries
            for rank, document in enumerate(rng.permutation(8)[: rng.integers(1, 6)].tolist(), 1)
        ]
        return pa.Table.from_pylist(rows, schema=RANKING)

    split = pa.table({"query_id": names, "text": names, "answers": [[]] * 9, "split": ["test"] * 8 + ["dev"]})
    chosen = [f"{query}#{number}" for query in names[:7] for number in (1, 2)]
    rows = [
        {"doc_id": doc_id, "title": "", "text": "", "query_id": doc_id[:2], "number": int(doc_id[-1]), "score": 0.0}
        for doc_id in chosen
    ]
    choices = pa.Table.from_pylist(rows, schema=query_choice.CHOICE)
    choices = choices if fusion else choices.filter(pa.compute.equal(choices["number"], 1))
    chosen_ranking = ranking([doc_id for doc_id in reversed(chosen) if doc_id != "q3#1"])
    otherwise = ranking(["q7", "q2", "q8", "q0", "q1"])
    places = {name: tmp_path / name for name in ("data", "own", "otherwise", "out")}
    for folder in places.values():
        folder.mkdir()
    write(places["data"] / "queries.parquet", split, QUERIES)
    for name, table in {"own": chosen_ranking, "otherwise": otherwise}.items():
        pq.write_table(table, places[name] / "ranking.parquet", row_group_size=4)
    monkeypatch.setattr(choose, "QUERIES", at_a_time)
    choose._write(
        places["out"],
        choices,
        data=places["data"],
        ranking=places["own"],
        otherwise=places["otherwise"],
        split="test",
        fusion=fusion,
    )
    of_test = otherwise.filter(pa.compute.not_equal(otherwise["query_id"], "q8"))
    output = read(places["out"] / "ranking.parquet", RANKING)
    assert output.to_pylist() == query_choice.as_ranking(choices, chosen_ranking, of_test, fusion).to_pylist()
    assert pq.read_table(places["out"] / "choices.parquet").to_pylist() == choices.to_pylist()
