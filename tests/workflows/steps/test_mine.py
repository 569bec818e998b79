"""Drawn groups: a positive, negatives that are none, and draws that depend on nothing but their key."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import GIVEN, GROUPS, check, document_text
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.steps import mine as step
from sparring.workflows.steps.mine import MineConfig, mine
from tests.support import tiny, toy
from tests.support.errors import refused
from tests.support.machines import changed

HARDEST = {"function": "components.sampling.hardest"}


@pytest.fixture(scope="module")
def ranking(toys: Path) -> Path:
    """Each query finds its positives first, then documents in turn; query 1 finds both copies of two texts.

    Relevant documents stand in it under their ids, and the texts of 0 and 1 under those of 30 and 31 too.
    """
    lists = {}
    for i in range(24):
        rest = [f"d{(i + 3 * k) % 40}" for k in range(1, 14)]
        lists[f"q{i}"] = list(dict.fromkeys([f"d{i}", f"d{(i + 9) % 40}", "d30", *rest]))
    lists["q1"] = ["d31", "d1", "d5", "d0", "d30", "d6", "d7"]
    return toy.write_ranking(toys / "ranking", lists)


@pytest.fixture
def drawn(tmp_path: Path, data: Path, tokens: Path) -> Any:
    """Draws groups of the training queries; the rows."""

    def run(
        ranking: Path | None,
        *,
        groups: int = 32,
        seed: Any = (1, "phase"),
        split: str = "train",
        tokens: Path = tokens,
        data: Path = data,
        **config: Any,
    ) -> list[dict[str, Any]]:
        shutil.rmtree(tmp_path / "groups.parquet", ignore_errors=True)
        summary = mine(
            tmp_path,
            toy.INLINE,
            data=data,
            tokens=tokens,
            ranking=ranking,
            split=split,
            groups=groups,
            seed=list(seed),
            config=MineConfig(**config),
        )
        table = check(pq.read_table(tmp_path / "groups.parquet"), GROUPS, source="groups")
        run.summary = summary  # type: ignore[attr-defined]
        return table.to_pylist()

    return run


@pytest.fixture(scope="module")
def texts(data: Path) -> dict[str, str]:
    rows = pq.read_table(data / "documents.parquet").to_pylist()
    return {row["doc_id"]: document_text(row["title"], row["text"]) for row in rows}


@pytest.fixture(scope="module")
def relevant(data: Path) -> dict[str, set[str]]:
    hits: dict[str, set[str]] = {}
    for row in pq.read_table(data / "qrels.parquet").to_pylist():
        if row["relevance"] > 0:
            hits.setdefault(row["query_id"], set()).add(row["doc_id"])
    return hits


@pytest.mark.parametrize("source", ["ranking", "random", "both"])
def test_no_relevant_document_and_none_that_says_the_same_is_a_negative(
    drawn: Any, ranking: Path, texts: dict[str, str], relevant: dict[str, set[str]], source: str
) -> None:
    counts = {"ranking": (6, 0), "random": (0, 12), "both": (4, 8)}[source]
    rows = drawn(ranking if source != "random" else None, groups=160, negatives=counts[0], random=counts[1])
    for row in rows:
        positive, *negatives = row["doc_ids"]
        assert positive in relevant[row["query_id"]]
        assert row["targets"] == [1.0] + [0.0] * len(negatives)
        assert row["teacher"] is None
        right = {texts[document] for document in relevant[row["query_id"]]}
        assert not right & {texts[document] for document in negatives}
        assert len(negatives) == sum(counts)


def test_a_group_has_each_text_once(drawn: Any, ranking: Path, texts: dict[str, str]) -> None:
    """Query 1 finds d0 and d30, which say the same; one of them is enough."""
    rows = drawn(ranking, groups=160, negatives=4, random=8)
    assert any({"d0", "d30"} & set(row["doc_ids"]) for row in rows if row["query_id"] == "q1")
    for row in rows:
        assert len({texts[document] for document in row["doc_ids"]}) == len(row["doc_ids"])


def test_every_relevant_document_gets_its_turn(drawn: Any, relevant: dict[str, set[str]]) -> None:
    """Documents that were judged as not relevant never do."""
    rows = drawn(None, groups=24 * 4, split="test", negatives=0)
    documents: dict[str, set[str]] = {}
    for row in rows:
        documents.setdefault(row["query_id"], set()).update(row["doc_ids"])
    assert documents == {query: relevant[query] for query in ("q0", "q6", "q12", "q18")}


def test_passes_visit_each_query_once_and_are_numbered(drawn: Any) -> None:
    rows = drawn(None, groups=40, negatives=0)
    assert drawn.summary == {"groups": 40, "queries": 16, "of": 16, "by_answer": 0, "filled": 0}
    for number in range(3):
        part = rows[16 * number : 16 * number + 16]
        assert {row["visit"] for row in part} == {number}
        assert len({row["query_id"] for row in part}) == len(part)
    orders = [[row["query_id"] for row in rows[start : start + 16]] for start in (0, 16)]
    assert orders[0] != orders[1]
    assert {int(query[1:]) % 3 for query in orders[0]} == {1, 2}  # the split's queries and no other's


def test_the_same_seed_draws_the_same_rows_and_another_others(drawn: Any, ranking: Path) -> None:
    options = {"negatives": 3, "random": 2}
    first = drawn(ranking, **options)
    assert drawn(ranking, **options) == first
    for seed in ((2, "phase"), (1, "another"), (1, "phase", 0)):
        second = drawn(ranking, seed=seed, **options)
        assert [row["query_id"] for row in second] != [row["query_id"] for row in first]
        by_key = {(row["query_id"], row["visit"]): row["doc_ids"] for row in first}
        changed = sum(by_key[row["query_id"], row["visit"]] != row["doc_ids"] for row in second)
        assert changed > len(second) / 2


def test_a_querys_draw_does_not_depend_on_how_many_groups_are_drawn(drawn: Any, ranking: Path) -> None:
    """Nor on the queries that were drawn before it."""
    options = {"negatives": 3, "random": 2}
    few = drawn(ranking, groups=7, **options)
    many = drawn(ranking, groups=50, **options)
    assert many[:7] == few
    visits = Counter((row["query_id"], row["visit"]) for row in many)
    assert set(visits.values()) == {1}


def test_a_ranking_with_fewer_queries_draws_the_same_for_those(drawn: Any, ranking: Path, tmp_path: Path) -> None:
    """Order independence: the other queries could as well not be there."""
    rows = pq.read_table(ranking / "ranking.parquet").to_pylist()
    hits: dict[str, list[str]] = {}
    for row in rows:
        if row["query_id"] in ("q2", "q10", "q22"):
            hits.setdefault(row["query_id"], []).append(row["doc_id"])
    some = toy.write_ranking(tmp_path / "some", dict(reversed(hits.items())))
    whole = {(r["query_id"], r["visit"]): r["doc_ids"] for r in drawn(ranking, negatives=3, random=2)}
    part = drawn(some, groups=6, negatives=3, random=2)
    assert {row["query_id"] for row in part} == {"q2", "q10", "q22"}
    assert all(whole[row["query_id"], row["visit"]] == row["doc_ids"] for row in part)


def test_over_rounds_more_and_more_candidates_are_seen(drawn: Any, ranking: Path) -> None:
    """Each round has a seed of its own; together they come to see every candidate within the depth."""
    seen: dict[str, set[str]] = {}
    coverage = []
    for number in range(8):
        for row in drawn(ranking, groups=16, seed=(1, "round", number), negatives=3, depth=8):
            seen.setdefault(row["query_id"], set()).update(row["doc_ids"][1:])
        coverage.append(sum(map(len, seen.values())))
    assert coverage[0] == 16 * 3
    assert coverage == sorted(coverage)
    assert coverage[1] > 1.4 * coverage[0]
    assert coverage[-1] > 0.85 * (15 * 8 + 4)  # query 1 has but four candidates


def test_the_depth_counts_candidates_that_may_be_drawn(
    drawn: Any, ranking: Path, relevant: dict[str, set[str]]
) -> None:
    """With depth 3 and the hardest drawn, they are the first three of the ranking that are no positives: it is read
    deeper by as many ranks as a query has positives."""
    hits: dict[str, list[str]] = {}
    for row in pq.read_table(ranking / "ranking.parquet").to_pylist():
        hits.setdefault(row["query_id"], []).append(row["doc_id"])
    for row in drawn(ranking, groups=16, negatives=3, depth=3, draw=HARDEST):
        query = row["query_id"]
        if query != "q1":
            wanted = [document for document in hits[query] if document not in relevant[query]][:3]
            assert row["doc_ids"][1:] == wanted
        else:  # of the five first ranks d31 says what d1 says and d30 what d0 says; the third is drawn at random
            assert row["doc_ids"][1:3] == ["d5", "d0"]
            assert len(row["doc_ids"]) == 4


def test_draws_within_the_depth_are_spread(drawn: Any, ranking: Path) -> None:
    rows = drawn(ranking, groups=16 * 30, negatives=1, depth=5)
    counts = Counter(row["doc_ids"][1] for row in rows if row["query_id"] == "q2")
    assert len(counts) == 5
    assert min(counts.values()) >= 1


def test_missing_candidates_are_made_up_for_by_random_ones(drawn: Any, ranking: Path) -> None:
    rows = drawn(ranking, groups=16, negatives=10, depth=100)
    (row,) = (row for row in rows if row["query_id"] == "q1")
    assert set(row["doc_ids"]) > {"d5", "d0", "d6", "d7"}
    assert all(len(row["doc_ids"]) == 11 for row in rows)
    assert drawn.summary["filled"] >= 6
    assert "note" not in drawn.summary
    drawn(ranking, groups=16, negatives=30, depth=2)
    message = (
        f"{drawn.summary['filled']} of 480 negatives are random documents, because the ranking has too few candidates"
    )
    assert drawn.summary["note"] == f"{message} (`depth`)."


def test_negatives_that_the_collection_has_not_are_missing(drawn: Any, ranking: Path) -> None:
    rows = drawn(ranking, groups=16, negatives=50, depth=4, random=2)
    count = sum(len(row["doc_ids"]) - 1 for row in rows)
    filled, short = drawn.summary["filled"], drawn.summary["missing"]
    assert count == 16 * 52 - short < 16 * 40
    assert drawn.summary["note"] == (
        f"{filled} of 800 negatives are random documents, because the ranking has too few candidates (`depth`). "
        f"{short} of 832 negatives are missing, because the collection has too few documents."
    )


def test_judged_queries_that_the_ranking_lacks_are_counted(drawn: Any, tmp_path: Path) -> None:
    few = toy.write_ranking(tmp_path / "few", {"q1": ["d5", "d0"], "q2": ["d9"]})
    assert {row["query_id"] for row in drawn(few, groups=8, negatives=1)} == {"q1", "q2"}
    assert drawn.summary["note"].endswith("14 queries have no candidate, and are left out.")


def test_random_negatives_come_from_the_whole_collection(drawn: Any) -> None:
    rows = drawn(None, groups=16 * 30, negatives=0, random=2)
    negatives = {document for row in rows for document in row["doc_ids"][1:]}
    assert len(negatives) > 35


def test_more_negatives_than_the_collection_has_gives_what_there_is(drawn: Any, texts: dict[str, str]) -> None:
    rows = drawn(None, groups=16, negatives=0, random=100)
    for row in rows:
        assert 36 <= len(row["doc_ids"]) <= len(set(texts.values()))


def test_a_split_without_judged_queries_is_an_error(drawn: Any, data: Path, tmp_path: Path) -> None:
    with refused("splits", "unknown-split"):
        drawn(None, split="nothing")
    unjudged = tmp_path / "unjudged"
    shutil.copytree(data, unjudged)
    pq.write_table(pq.read_table(data / "qrels.parquet").slice(0, 0), unjudged / "qrels.parquet")
    with pytest.raises(UserError, match="no query of the split 'train' has a relevant document"):
        drawn(None, data=unjudged)


def test_a_ranking_of_another_collection_is_an_error(drawn: Any, tmp_path: Path) -> None:
    foreign = toy.write_ranking(tmp_path / "foreign", {"q1": ["x7"]})
    with pytest.raises(ValueError, match="x7 is not in the collection"):
        drawn(foreign)


def test_the_ranks_that_are_read_leave_room_for_positives(drawn: Any, tmp_path: Path, data: Path, tokens: Path) -> None:
    """All relevant documents rank first; still `depth` candidates are left behind them."""
    ranked = ["d3", "d12", *(f"d{k}" for k in range(20, 30))]
    ranking = toy.write_ranking(tmp_path / "r", {"q3": ranked, "q4": ranked})
    rows = drawn(ranking, groups=2, split="dev", negatives=2, depth=2, draw=HARDEST)
    assert [row["doc_ids"][1:] for row in rows if row["query_id"] == "q3"] == [["d20", "d21"]] * 2
    assert np.all([row["query_id"] == "q3" for row in rows])


def test_what_answers_a_query_with_the_same_text_is_no_negative(drawn: Any, tmp_path: Path, twins: Path) -> None:
    """q1's positive is d1, q2's is d2, and neither is a negative of the other; d31 says what d1 says."""
    ranking = toy.write_ranking(tmp_path / "r", {"q1": ["d2", "d7", "d8"], "q2": ["d31", "d7", "d8"]})
    apart = drawn(ranking, groups=2, negatives=1, draw=HARDEST)
    assert {row["query_id"]: row["doc_ids"] for row in apart} == {"q1": ["d1", "d2"], "q2": ["d2", "d31"]}
    rows = drawn(ranking, groups=200, negatives=1, random=12, draw=HARDEST, tokens=twins)
    assert {row["query_id"]: row["doc_ids"][:2] for row in rows} == {"q1": ["d1", "d7"], "q2": ["d2", "d7"]}
    assert all(not {"d1", "d2", "d31"} & set(row["doc_ids"][1:]) for row in rows)


# By answers


@pytest.fixture(scope="module")
def answered(toys: Path, ranking: Path) -> Path:
    """Every second document of the ranking bears an answer."""
    folder = toys / "answered"
    folder.mkdir()
    table = pq.read_table(ranking / "ranking.parquet")
    hits = [int(doc_id[1:]) % 2 == 0 for doc_id in table["doc_id"].to_pylist()]
    pq.write_table(table.append_column("hit", pa.array(hits)), folder / "ranking.parquet")
    return folder


def test_what_screening_did_not_let_pass_is_no_negative(drawn: Any, answered: Path, tmp_path: Path) -> None:
    """However deep the others lie; a ranking without reasons lets all pass."""
    kept = drawn(answered, groups=64, negatives=2)
    assert any(int(document[1:]) % 2 == 0 for row in kept for document in row["doc_ids"][1:])
    table = pq.read_table(answered / "ranking.parquet")
    reasons = pa.array(["answer" if hit else "" for hit in table["hit"].to_pylist()])
    (tmp_path / "screened").mkdir()
    pq.write_table(table.append_column("reason", reasons), tmp_path / "screened" / "ranking.parquet")
    rows = drawn(tmp_path / "screened", groups=64, negatives=2, depth=4)
    assert drawn.summary["filled"] == 0
    assert all(int(document[1:]) % 2 for row in rows for document in row["doc_ids"][1:])


def test_a_window_of_ranks_passes_over_the_first(drawn: Any, ranking: Path, relevant: dict[str, set[str]]) -> None:
    hits: dict[str, list[str]] = {}
    for row in pq.read_table(ranking / "ranking.parquet").to_pylist():
        hits.setdefault(row["query_id"], []).append(row["doc_id"])
    for row in drawn(ranking, groups=16, negatives=3, skip=2, depth=5, draw=HARDEST):
        if row["query_id"] != "q1":
            wanted = [document for document in hits[row["query_id"]] if document not in relevant[row["query_id"]]][2:5]
            assert row["doc_ids"][1:] == wanted
    with pytest.raises(ValueError, match="skip: 5 leaves nothing of a depth of 5"):
        MineConfig(skip=5, depth=5)


def test_a_query_without_a_judgement_gets_the_first_document_that_bears_an_answer(
    tmp_path: Path, data: Path, tokens: Path, answered: Path
) -> None:
    """q2 is not judged any more: AR2's paper leaves it out, its code takes the best answer-bearing document."""
    unjudged = shutil.copytree(data, tmp_path / "data")
    qrels = pq.read_table(unjudged / "qrels.parquet")
    pq.write_table(qrels.filter(pc.not_equal(qrels["query_id"], "q2")), unjudged / "qrels.parquet")

    def rows(name: str, **config: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        (tmp_path / name).mkdir()
        summary = mine(
            tmp_path / name,
            toy.INLINE,
            data=unjudged,
            tokens=tokens,
            ranking=answered,
            split="train",
            groups=16,
            seed=[1],
            config=MineConfig(negatives=3, **config),
        )
        records = pq.read_table(tmp_path / name / "groups.parquet").to_pylist()
        return summary, {row["query_id"]: row for row in records}

    summary, judged = rows("judged")
    assert (summary["of"], summary["by_answer"]) == (15, 0)
    assert "q2" not in judged
    summary, groups = rows("answering", positives="answering")
    assert (summary["of"], summary["by_answer"]) == (16, 1)
    ranked = pq.read_table(answered / "ranking.parquet").to_pylist()
    best = next(row["doc_id"] for row in ranked if row["query_id"] == "q2" and row["hit"])
    assert groups["q2"]["doc_ids"][0] == best
    assert groups["q1"]["doc_ids"][0] == judged["q1"]["doc_ids"][0]


def test_samplers_are_told_the_positives_score(drawn: Any, ranking: Path, data: Path) -> None:
    """SimANS with a sharp weight takes what stands next to the positive in the ranking, wherever that is."""
    sharp = {"function": "components.sampling.simans", "options": {"a": 1000.0}}
    ranked: dict[str, list[str]] = {}
    for row in pq.read_table(ranking / "ranking.parquet").to_pylist():
        ranked.setdefault(row["query_id"], []).append(row["doc_id"])
    for row in drawn(ranking, groups=32, negatives=1, depth=13, draw=sharp):
        order = ranked[row["query_id"]]
        if row["query_id"] != "q1":  # whose list holds texts twice
            assert order.index(row["doc_ids"][1]) - order.index(row["doc_ids"][0]) in (1, 2)


def test_rotating_negatives_go_by_the_visit_alone(drawn: Any, ranking: Path) -> None:
    """As SimLM's public code has them: whatever the seed, a query's next negatives follow those of its last visit."""
    rotating = {"draw": {"function": "components.sampling.rotating"}, "negatives": 3, "depth": 9}
    taken: dict[tuple[str, int], list[str]] = {}
    for seed in ((1, "a"), (2, "b")):
        for row in drawn(ranking, groups=64, seed=seed, **rotating):
            key = row["query_id"], row["visit"]
            assert taken.setdefault(key, row["doc_ids"][1:]) == row["doc_ids"][1:]
    first = drawn(ranking, groups=16, **{**rotating, "draw": HARDEST, "negatives": 9})
    for row in first:
        candidates = row["doc_ids"][1:]
        if row["query_id"] == "q1":  # which has fewer candidates than the depth
            continue
        assert [taken[row["query_id"], v] for v in range(4)] == [candidates[i % 9 : i % 9 + 3] for i in (0, 3, 6, 9)]


@pytest.fixture
def given(tmp_path: Path, data: Path) -> Any:
    """The collection with what a source of training data would offer its queries."""

    def write(rows: list[dict[str, Any]]) -> Path:
        folder = tmp_path / "given"
        shutil.copytree(data, folder)
        pq.write_table(pa.Table.from_pylist(rows, schema=GIVEN), folder / "given.parquet")
        return folder

    return write


def offers(query: int, *negatives: int, scores: bool = False) -> dict[str, Any]:
    """The query's own document and some negatives, a score each that falls in steps of 1."""
    ids = [f"d{query}", *(f"d{n}" for n in negatives)]
    teacher = [float(len(ids) - place) for place in range(len(ids))] if scores else None
    return {"query_id": f"q{query}", "doc_ids": ids, "targets": [1.0] + [0.0] * len(negatives), "teacher": teacher}


def test_negatives_that_the_source_gives(drawn: Any, given: Any) -> None:
    """Of all rows of a query, and of no other; its positives are none, though a row offers one."""
    folder = given([offers(1, 5, 6, 7), offers(1, 8), offers(2, 9, 10, 2)])
    rows = drawn(None, data=folder, groups=12, negatives=2, given="negatives")
    for row in rows:
        candidates = {"q1": {"d5", "d6", "d7", "d8"}, "q2": {"d9", "d10"}}[row["query_id"]]
        assert row["doc_ids"][0] == f"d{row['query_id'][1:]}"
        assert set(row["doc_ids"][1:]) <= candidates
        assert row["teacher"] is None
    assert {name for row in rows if row["query_id"] == "q1" for name in row["doc_ids"][1:]} == {"d5", "d6", "d7", "d8"}


def test_a_teachers_scores_that_the_source_gives_come_along(drawn: Any, given: Any) -> None:
    folder = given([offers(1, 5, 6, 7, scores=True), offers(2, 9, 10, 11, scores=True)])
    for row in drawn(None, data=folder, groups=8, negatives=2, given="scores", draw=HARDEST):
        first = {"q1": ["d1", "d5", "d6"], "q2": ["d2", "d9", "d10"]}[row["query_id"]]
        assert dict(zip(row["doc_ids"], row["teacher"], strict=True)) == dict(zip(first, [4.0, 3.0, 2.0], strict=True))


def test_where_the_source_gives_too_few_it_is_said(drawn: Any, given: Any) -> None:
    """Random documents stand in for negatives, but have no score: the group is smaller then."""
    rows = [offers(1, 5, 6, scores=True), offers(2, 9, 10), offers(5, scores=True), offers(4, 11, 12, 13, scores=True)]
    folder = given(rows)
    groups = drawn(None, data=folder, negatives=3, given="negatives", groups=4)
    assert all(len(row["doc_ids"]) == 4 for row in groups)
    assert drawn.summary["note"] == "5 of 12 negatives are random documents, because the source provides too few."
    groups = drawn(None, data=folder, negatives=3, given="scores", groups=4)
    assert {row["query_id"]: len(row["doc_ids"]) for row in groups} == {"q1": 3, "q4": 4}
    assert all(len(row["teacher"]) == len(row["doc_ids"]) == len(row["targets"]) for row in groups)
    assert drawn.summary["note"] == (
        "2 of 12 negatives are missing, because the source has too few with scores. 2 queries have no negative with a "
        "score, and are left out."
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("many", r"returned 9 positions, 9 different; accepted: at most 3 different whole numbers from 0 to \d+, the"),
        ("same", "returned 3 positions, 1 different"),
        ("mask", r"returned an array of bool, shape \(\d+,\)"),
        ("below", "returned positions from -1 to 1"),
        ("beyond", "returned positions from 0 to 99"),
        ("nothing", "returned an array of object"),
        ("floats", "returned an array of float64"),
    ],
)
def test_what_a_sampler_returns_is_checked(drawn: Any, ranking: Path, own_samplers: str, name: str, says: str) -> None:
    with pytest.raises(UserError, match=f"{own_samplers}.{name} {says}"):
        drawn(ranking, negatives=3, draw={"function": f"{own_samplers}.{name}"})


def test_a_sampler_that_fails_is_named_with_its_line(drawn: Any, ranking: Path, own_samplers: str) -> None:
    with pytest.raises(RuntimeError, match=rf"{own_samplers}\.broken failed at .*\.py:\d+: ZeroDivisionError"):
        drawn(ranking, negatives=3, draw={"function": f"{own_samplers}.broken"})
    assert drawn(ranking, negatives=3, draw={"function": f"{own_samplers}.none"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "two",
            r"takes scores, count\. It must take scores, count, rng, positive, and after a `\*` only options with a",
        ),
        ("bare", "has options without a default: temperature"),
        ("five", r"takes scores, count, rng, positive, a\. It must"),
    ],
)
def test_a_samplers_signature_is_checked(own_samplers: str, name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MineConfig(draw={"function": f"{own_samplers}.{name}"})


SAMPLERS = """
import numpy as np
def many(scores, count, rng, positive): return np.arange(min(9, len(scores)))
def same(scores, count, rng, positive): return np.zeros(count, int)
def mask(scores, count, rng, positive): return scores > -1e9
def below(scores, count, rng, positive): return np.arange(-1, count - 1)
def beyond(scores, count, rng, positive): return [0, 99]
def nothing(scores, count, rng, positive): return None
def floats(scores, count, rng, positive): return np.arange(count) / 2
def broken(scores, count, rng, positive): return 1 / 0
def none(scores, count, rng, positive): return []
def two(scores, count): return []
def bare(scores, count, rng, positive, *, temperature): return []
def five(scores, count, rng, positive, a=1): return []
"""


@pytest.fixture
def own_samplers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of samplers outside the repository."""
    (tmp_path / "own_samplers.py").write_text(SAMPLERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_samplers", raising=False)
    return "own_samplers"


def test_what_the_source_does_not_give_is_an_error(drawn: Any, given: Any, data: Path) -> None:
    with refused("mine", "no-negatives"):
        drawn(None, given="negatives")
    folder = given([offers(1, 5, 6), offers(2, 9, 10)])
    with refused("mine", "no-negatives", "'train'"):
        drawn(None, data=folder, given="scores")
    with refused("mine", "no-negatives", "'dev'"):
        drawn(None, data=folder, given="negatives", split="dev")
    with pytest.raises(ValueError, match="random negatives have no scores"):
        MineConfig(given="scores", random=1)


@pytest.mark.parametrize("left_out", [True, False])
def test_a_query_is_no_negative_of_itself(
    drawn: Any, data: Path, texts: dict[str, str], tmp_path: Path, left_out: bool
) -> None:
    """Nor is a copy of it, drawn from a ranking or at random. d0, which query q4 is here, and d30 say the same."""
    dataset = toy.with_own(tmp_path / "own", data, [("q4", "d0")], left_out=left_out)
    lists = {"q4": ["d0", "d30", *(f"d{number}" for number in range(1, 12))]}
    near = toy.write_ranking(tmp_path / "near", lists)
    rows = drawn(near, data=dataset, groups=8, negatives=5, random=25)
    assert rows
    assert texts["d0"] not in {texts[document] for row in rows for document in row["doc_ids"]}
    assert texts["d0"] in {texts[document] for row in drawn(near, groups=8, negatives=5) for document in row["doc_ids"]}


def test_groups_are_the_same_whatever_the_workers_and_after_a_kill(
    tmp_path: Path, ray: Any, data: Path, tokens: Path, ranking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "GROUPS_OF_PART", 16)

    def parts(name: str, machine: Any) -> dict[str, str]:
        (tmp_path / name).mkdir(exist_ok=True)
        options = {"split": "train", "groups": 40, "seed": [1, "phase"], "config": MineConfig(negatives=3, random=2)}
        mine(tmp_path / name, machine, data=data, tokens=tokens, ranking=ranking, **options)
        return tiny.kept(tmp_path / name)

    expected = parts("inline", toy.INLINE)
    assert expected.keys() == {f"groups.parquet/{number:08d}.parquet" for number in range(3)}
    assert parts("two", changed(ray, {"map": Pool(workers=2)})) == expected
    (tmp_path / "inline" / "groups.parquet" / "00000001.parquet").unlink()  # a kill before this part was written
    (tmp_path / "inline" / ".pool.lock").touch()
    assert parts("inline", toy.INLINE) == expected


def test_groups_have_the_rows_of_their_documents(drawn: Any, ranking: Path, data: Path, tmp_path: Path) -> None:
    drawn(ranking, groups=40, negatives=4, random=2)
    doc_ids = pq.read_table(data / "documents.parquet")["doc_id"].to_pylist()
    for row in pq.read_table(tmp_path / "groups.parquet").to_pylist():
        assert [doc_ids[number] for number in row["doc_rows"]] == row["doc_ids"]


def test_a_ranking_with_rows_and_one_without_give_the_same_groups(
    drawn: Any, ranking: Path, data: Path, tmp_path: Path
) -> None:
    expected = drawn(ranking, groups=40, negatives=4, random=2)
    table = pq.read_table(ranking / "ranking.parquet")
    rows = pc.index_in(table["doc_id"], value_set=pq.read_table(data / "documents.parquet")["doc_id"].combine_chunks())
    located = tmp_path / "located"
    (located / "ranking.parquet").mkdir(parents=True)
    table = table.append_column("doc_row", rows.cast(pa.int64()))
    for number, start in enumerate(range(0, len(table), 50)):  # parts, which may cut a query
        pq.write_table(table.slice(start, 50), located / "ranking.parquet" / f"{number:08d}.parquet")
    assert drawn(located, groups=40, negatives=4, random=2) == expected
