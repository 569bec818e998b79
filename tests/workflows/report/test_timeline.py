"""Where the time of a run went: parts, timeline, longest chain, and the speed of trainings."""

from collections.abc import Sequence
from typing import Any

from sparring.components.timing import KINDS
from sparring.workflows.report.sections.steps import trainings
from sparring.workflows.report.timeline import course, efficiency, longest_chain, where, work

MODELS = {
    "train": "training",
    "encode_documents": "encoding",
    "encode_queries": "encoding",
    "score_groups": "scoring",
    "predict": "predicting",
}


def test_work_is_the_most_telling_count() -> None:
    assert work({"queries": 3, "documents": 7}) == ("documents", 7)
    assert work({"queries": 3, "expansions": 60, "a_query": 20.0}) == ("expansions", 60)
    assert work({"queries": {"test": 3}, "updates": True, "rows": 0}) is None


def test_parts_add_up_to_the_whole() -> None:
    def one(
        part: str, seconds: float, counted: tuple[str, int] | None, size: int, model: float = 0.0
    ) -> dict[str, Any]:
        time = {"compute": seconds - 0.5, "waiting": 0.5}
        return {
            "part": part,
            "seconds": seconds,
            "work": counted,
            "bytes": size,
            "time": time,
            "model_seconds": model,
            "roofline_seconds": model / 4,
        }

    steps = [
        one("search", 2.0, ("queries", 10), 5),
        one("data", 1.0, None, 7),
        one("search", 1.0, ("queries", 20), 5, model=2.0),
    ]
    rows = efficiency(steps)
    assert rows[0]["time"] == {"compute": 2.0, "files": 0.0, "start": 0.0, "waiting": 1.0}
    assert [row["of_floor"] for row in rows] == [0.25, None, 0.25]
    assert [row["part"] for row in rows] == ["search", "data", "total"]
    assert rows[0]["counts"] == [{"unit": "queries", "count": 30, "seconds": 3.0}]
    assert (rows[0]["share"], rows[2]["seconds"], rows[2]["bytes"], rows[2]["steps"]) == (0.75, 4.0, 17, 3)
    assert efficiency([])[0]["seconds"] == 0


def test_the_speed_of_a_training_is_the_median_over_its_seeds() -> None:
    def one(label: str, seconds: float) -> tuple[str, dict[str, Any]]:
        return label, {
            "updates": 100,
            "seconds_per_update": seconds,
            "rows_per_second": 16 / seconds,
            "workers": 1,
            "teacher_seconds_per_update": seconds / 2,
        }

    result = trainings(
        [
            one("n = 7: retriever 1 (seed 1)", 4.0),
            one("warm ranker", 1.0),
            one("n = 7: retriever 1 (seed 2)", 2.0),
            one("n = 7: retriever 1 (seed 3)", 16.0),
        ]
    )
    assert result[0] == {
        "training": "n = 7: retriever 1",
        "seeds": 3,
        "updates": 100,
        "seconds_per_update": 4.0,
        "teacher_seconds_per_update": 2.0,
        "rows_per_second": 4.0,
    }
    assert [(row["training"], row["seeds"]) for row in result] == [("n = 7: retriever 1", 3), ("warm ranker", 1)]


def test_the_course_leaves_out_times_in_which_nothing_was_under_way() -> None:
    """Two one after another, a pause, two at once, and one within another."""
    assert course([(0, 2), (2, 3), (100, 4), (102, 4), (103, 1)]) == ([0, 2, 5, 7, 8], 11)
    assert course([]) == ([], 0)


def test_the_longest_chain_is_the_slowest_not_the_one_of_most_steps() -> None:
    steps = [
        {"name": "a", "seconds": 1.0, "upstream": ["gone"]},
        {"name": "b", "seconds": 2.0, "upstream": ["a"]},
        {"name": "c", "seconds": 9.0, "upstream": []},
        {"name": "d", "seconds": 1.0, "upstream": ["c", "b"]},
        {"name": "e", "seconds": 3.0, "upstream": ["b"]},
    ]
    assert longest_chain([{**step, "label": f"step {step['name']}"} for step in steps]) == (10.0, ["step c", "step d"])
    assert longest_chain([]) == (0.0, [])


def test_the_end_of_a_run_says_where_its_time_went() -> None:
    steps = [
        spent("encode_documents", 0.0, 40.0, 24.0, compute=20.0, start=10.0),
        spent("encode_queries", 30.0, 20.0, 12.0, compute=10.0),
        spent("mine", 40.0, files=5.0),
        spent("train", 45.0, 40.0, 10.0, compute=40.0, waiting=5.0),
        {**spent("score_groups", 0.0, 999.0, 1.0, compute=999.0), "executed": False},
    ]
    assert where(steps, 100.0).splitlines() == [
        "time: 1 min 40 s: computing 70%, files 5%, starting 10%, waiting 5%, between steps 10%",
        "      slowest: a train 45 s, a encode_documents 30 s, a encode_queries 10 s",
        "      share of this processor's peak speed that models reached: encoding 60%, training 25%",
    ]
    waited = "computing 70%, files 5%, starting 10%, waiting {}, between steps {}"
    for seconds, shares in ((4.0, ("9%", "6%")), (999.0, ("15%", "0%"))):  # for other drivers
        assert where(steps, 100.0, seconds).splitlines()[0] == f"time: 1 min 40 s: {waited.format(*shares)}"
    assert where(steps[-1:], 1.0) == ""
    assert where(steps[2:3], 5.0).count("\n") == 0
    resumed = where(steps[2:4], 30.0)
    assert "      slowest (with the time before it was resumed): a train 45 s, a mine 5.0 s" in resumed


def test_of_steps_that_ran_at_once_the_end_of_a_run_names_the_longest_chain() -> None:
    """Shares stay shares: of what all steps took together, and of the time between them."""
    steps = [
        spent("ingest", 0.0, files=10.0),
        spent("encode_documents", 10.0, compute=40.0, upstream=["ingest"]),
        spent("predict", 10.0, 20.0, 5.0, compute=30.0, upstream=["ingest"]),
        spent("results", 50.0, compute=10.0),
    ]
    assert where(steps, 70.0).splitlines() == [
        "time: 1 min 10 s: computing 80%, files 10%, starting 0%, waiting 0%, between steps 10%",
        "      steps ran at once and each counts whole, so these are shares of 1 min 40 s",
        "      longest chain of steps that need one another, 50 s: a ingest > a encode_documents",
        "      slowest: a encode_documents 40 s, a predict 30 s, a ingest 10 s",
        "      share of this processor's peak speed that models reached: predicting 25%",
    ]


def spent(
    function: str, second: float, model: float = 0.0, floor: float = 0.0, *, upstream: Sequence[str] = (), **time: float
) -> dict[str, Any]:
    """A step of a timeline that ran just now."""
    return {
        "label": f"a {function}",
        "models": MODELS.get(function),
        "name": function,
        "upstream": upstream,
        "at": second,
        "executed": True,
        "seconds": sum(time.values()),
        "time": dict.fromkeys(KINDS, 0.0) | time,
        "model_seconds": model,
        "roofline_seconds": floor,
    }
