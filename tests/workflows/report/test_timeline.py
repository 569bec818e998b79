"""Won and lost queries, and where the time went."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.analysis import changes, course, efficiency, longest_chain, part_of, trainings, work


def ranking(lists: dict[str, str]) -> pa.Table:
    rows = [(query, document, rank) for query, found in lists.items() for rank, document in enumerate(found, 1)]
    query, document, rank = zip(*rows, strict=True)
    return pa.table({"query_id": query, "doc_id": document, "rank": rank})


def test_changes_go_from_the_greatest_gain_to_the_greatest_loss() -> None:
    before = ranking({"same": "ab", "won": "xya", "found": "xyz", "lost": "axy", "gone": "axy"})
    after = ranking({"same": "ab", "won": "axy", "found": "xa", "lost": "xay", "gone": "xyz"})
    judged = {
        "query_id": ["same", "won", "found", "lost", "gone", "none"],
        "doc_id": ["a"] * 6,
        "relevance": [1] * 5 + [0],
    }
    found = changes(before, after, pa.table(judged))
    assert [(c.query_id, c.before, c.after) for c in found] == [
        ("won", 3, 1), ("found", None, 2), ("same", 1, 1), ("lost", 1, 2), ("gone", 1, None),
    ]  # fmt: skip
    by_query = {c.query_id: c for c in found}
    assert by_query["won"].first == "x"  # what stood first before
    assert by_query["lost"].first == "x"  # what stands first now
    assert by_query["same"].first is None
    assert all(c.doc_id == "a" for c in found)


def test_the_first_of_several_relevant_documents_counts() -> None:
    judged = pa.table({"query_id": ["q", "q"], "doc_id": ["a", "b"], "relevance": [1, 2]})
    (change,) = changes(ranking({"q": "xab"}), ranking({"q": "bxa"}), judged)
    assert (change.before, change.after, change.doc_id) == (2, 1, "b")


def test_every_step_has_its_part() -> None:
    named = {
        ("train", "warm retriever (seed 2)"): "warm-up", ("train", "ranker 2"): "ranker training",
        ("train", "retriever 2"): "retriever training", ("train", "control ance 1"): "training of controls",
        ("train", "a ranker's: retriever 2"): "retriever training", ("train", "something"): "training",
        ("judge", "judged 1"): "scoring by the ranker", ("lucene_search", "bm25 ranking"): "BM25",
        ("my_step", "x"): "my_step",
    }  # fmt: skip
    assert {pair: part_of(*pair) for pair in named} == named


def test_every_step_of_our_recipes_has_a_part() -> None:
    """A training's is read from its label: a recipe that calls one otherwise is noticed here."""
    plans = [path.read_text() for path in (Path(__file__).parents[1] / "golden").glob("*.txt")]
    rows = [re.split(r"  +", line) for plan in plans for line in plan.splitlines()]
    steps = {(row[-1].rpartition("-")[0], row[0]) for row in rows if re.search(r"-[0-9a-f]{12}$", row[-1])}
    assert {"judge", "train"} < {function for function, _ in steps}
    assert {function for function, label in steps if part_of(function, label) in (function, "training")} == {"search"}


def test_work_is_the_most_telling_count() -> None:
    assert work({"queries": 3, "documents": 7}) == ("documents", 7)
    assert work({"queries": 3, "expansions": 60, "a_query": 20.0}) == ("expansions", 60)
    assert work({"queries": {"test": 3}, "steps": True, "rows": 0}) is None


def test_parts_add_up_to_the_whole() -> None:
    def one(
        part: str, seconds: float, counted: tuple[str, int] | None, size: int, model: float = 0.0
    ) -> dict[str, Any]:
        time = {"compute": seconds - 0.5, "waiting": 0.5}
        return {"part": part, "seconds": seconds, "work": counted, "bytes": size, "time": time,
                "model_seconds": model, "floor_seconds": model / 4}  # fmt: skip

    steps = [one("search", 2.0, ("queries", 10), 5), one("data", 1.0, None, 7),
             one("search", 1.0, ("queries", 20), 5, model=2.0)]  # fmt: skip
    rows = efficiency(steps)
    assert rows[1]["time"] == {"compute": 2.0, "files": 0.0, "start": 0.0, "waiting": 1.0}
    assert [row["of_floor"] for row in rows] == [None, 0.25, 0.25]
    assert [row["part"] for row in rows] == ["data", "search", "total"]
    assert rows[1]["counts"] == [{"unit": "queries", "count": 30, "seconds": 3.0}]
    assert (rows[1]["share"], rows[2]["seconds"], rows[2]["bytes"], rows[2]["steps"]) == (0.75, 4.0, 17, 3)
    assert efficiency([])[0]["seconds"] == 0


def test_the_speed_of_a_training_is_the_median_over_its_seeds() -> None:
    def one(label: str, seconds: float) -> tuple[str, dict[str, Any]]:
        return label, {"steps": 100, "seconds_per_step": seconds, "groups_per_second": 16 / seconds, "workers": 1,
                       "teacher_seconds_per_step": seconds / 2}  # fmt: skip

    found = trainings([one("n = 7: retriever 1 (seed 1)", 4.0), one("warm ranker", 1.0),
                       one("n = 7: retriever 1 (seed 2)", 2.0), one("n = 7: retriever 1 (seed 3)", 16.0)])  # fmt: skip
    assert found[0] == {"training": "n = 7: retriever 1", "seeds": 3, "steps": 100, "seconds_per_step": 4.0,
                        "teacher_seconds_per_step": 2.0, "groups_per_second": 4.0}  # fmt: skip
    assert [(row["training"], row["seeds"]) for row in found] == [("n = 7: retriever 1", 3), ("warm ranker", 1)]


def test_the_course_leaves_out_times_in_which_nothing_was_under_way() -> None:
    """Two one after another, a pause, two at once, and one within another."""
    assert course([(0, 2), (2, 3), (100, 4), (102, 4), (103, 1)]) == ([0, 2, 5, 7, 8], 11)
    assert course([]) == ([], 0)


def test_the_longest_chain_is_the_slowest_not_the_one_of_most_steps() -> None:
    steps = [
        {"name": "a", "seconds": 1.0, "upstream": ["gone"]}, {"name": "b", "seconds": 2.0, "upstream": ["a"]},
        {"name": "c", "seconds": 9.0, "upstream": []}, {"name": "d", "seconds": 1.0, "upstream": ["c", "b"]},
        {"name": "e", "seconds": 3.0, "upstream": ["b"]},
    ]  # fmt: skip
    assert longest_chain([{**step, "label": f"step {step['name']}"} for step in steps]) == (10.0, ["step c", "step d"])
    assert longest_chain([]) == (0.0, [])
