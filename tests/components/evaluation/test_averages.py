"""Means over collections and the intervals of all means."""

import numpy as np
import pyarrow as pa
import pytest

from sparring.components.evaluation.averages import Measured, averages_of, comparisons_of, means_of
from sparring.components.evaluation.significance import THE_METHOD, compare_averages, estimate

PARTS = {"android": "CQADupStack", "english": "CQADupStack"}


def table_of(values: np.ndarray) -> pa.Table:
    queries = [f"q{n:02}" for n in range(len(values))]
    return pa.table({"query_id": queries, "measure": ["RR"] * len(values), "value": values})


def measured_of(values: dict[tuple[str, str], np.ndarray]) -> Measured:
    """(S, Q) values by system and collection."""
    return {
        (*name, "test"): {seed: table_of(subject) for seed, subject in enumerate(layout, 1)}
        for name, layout in values.items()
    }


def test_a_mean_has_the_interval_of_all_its_seeds() -> None:
    rng = np.random.default_rng(0)
    first, three = rng.random((1, 20)), rng.random((3, 20))
    result = means_of(measured_of({("BM25", "c"): first, ("retriever", "c"): three}))
    assert [(entry["system"], entry["seeds"], entry["queries"]) for entry in result] == [
        ("BM25", [1], 20),
        ("retriever", [1, 2, 3], 20),
    ]
    for entry, values in zip(result, (first, three), strict=True):
        assert (entry["low"], entry["high"]) == estimate([values]).interval()
        assert entry["value"] == pytest.approx(values.mean())
    assert set(result[0]) == {"system", "collection", "split", "seeds", "measure", "value", "low", "high", "queries"}


def test_a_mean_over_one_query_has_no_interval() -> None:
    [result] = means_of(measured_of({("BM25", "c"): np.array([[0.5]])}))
    assert (result["value"], result["low"], result["high"]) == (0.5, None, None)


def test_averages_count_collections_and_wholes_alike() -> None:
    """And only systems that were measured on all of them."""
    rng = np.random.default_rng(1)
    values = {("a", name): rng.random((2, n)) for name, n in (("android", 9), ("english", 30), ("SciFact", 12))}
    result = means_of(measured_of({**values, ("b", "android"): rng.random((2, 9))}), PARTS)
    averages = {entry["collection"]: entry for entry in result if "over" in entry}
    assert list(averages) == ["CQADupStack", "average"]
    whole = estimate([values["a", "android"], values["a", "english"]], [0.5, 0.5])
    assert (averages["CQADupStack"]["low"], averages["CQADupStack"]["high"]) == whole.interval()
    everything = estimate(list(values.values()), [0.25, 0.25, 0.5])
    assert averages["average"]["value"] == pytest.approx(everything.mean)
    assert averages["average"]["low"] == pytest.approx(everything.interval()[0])
    assert (averages["average"]["over"], averages["average"]["queries"]) == (["SciFact", "CQADupStack"], 51)
    assert {entry["system"] for entry in averages.values()} == {"a"}


def test_two_systems_are_compared_on_the_averages_that_both_have() -> None:
    """Over the seeds that both have everywhere; a system that was not measured on all collections has none."""
    rng = np.random.default_rng(2)
    sizes = {"android": 9, "english": 30, "SciFact": 12}
    values = {(system, name): rng.random((2, n)) for system in "ab" for name, n in sizes.items()}
    measured = measured_of({**values, ("c", "android"): rng.random((2, 9))})
    result = comparisons_of(measured, means_of(measured), PARTS, "a", "b", seed=0, rounds=99)
    assert [item["collection"] for item in result] == ["CQADupStack", "CQADupStack", "average", "average"]
    everywhere = [
        tuple(list(measured[system, name, "test"].values()) for system in "ab")
        for name in ("SciFact", "android", "english")
    ]
    expected = compare_averages(everywhere, [0.5, 0.25, 0.25], seed=0, rounds=99)
    for first, second in zip(result[2:], expected, strict=True):
        assert {key: first[key] for key in second} == pytest.approx(second)
    assert (result[3]["test"], result[3]["seeds"], result[3]["over"]) == (
        THE_METHOD,
        [1, 2],
        ["SciFact", "CQADupStack"],
    )
    assert comparisons_of(measured, means_of(measured), PARTS, "c", "b", seed=0, rounds=99) == []
    del measured["b", "english", "test"][2]
    [first, *_] = comparisons_of(measured, means_of(measured), PARTS, "a", "b", seed=0, rounds=99)
    assert first["seeds"] == [1]


def test_each_measure_is_averaged_over_the_collections_that_have_it() -> None:
    """As correlations on some sets and accuracies on others. A development set does not count."""

    def of(measure: str, *values: float) -> pa.Table:
        return table_of(np.array(values)).set_column(1, "measure", [[measure] * len(values)])

    measured: Measured = {
        ("a", "STS12", "test"): {1: of("Spearman", 0.2, 0.4)},
        ("a", "STS13", "test"): {1: of("Spearman", 0.7, 0.9)},
        ("a", "STS-B dev", "dev"): {1: of("Spearman", 0.1, 0.1)},
        ("a", "MR", "all"): {1: of("accuracy", 1.0, 0.0, 1.0)},
        ("a", "pairs", "test"): {1: of("R@1", 1.0, 0.0)},
    }
    parts = {"STS-B dev": None, "pairs": None}
    result = {
        (item["measure"], item["collection"]): (item["value"], item["over"])
        for item in means_of(measured, parts)
        if "over" in item
    }
    assert result == {
        ("Spearman", "average"): (pytest.approx(0.55), ["STS12", "STS13"]),
        ("accuracy", "average"): (pytest.approx(2 / 3), ["MR"]),
    }
    rows = [
        {
            "system": system,
            "collection": collection,
            "split": split,
            "seed": 1,
            "measure": value["measure"][0].as_py(),
            "value": float(np.mean(value["value"].to_pylist())),
            "queries": len(value),
        }
        for (system, collection, split), seeds in measured.items()
        for value in seeds.values()
    ]
    assert {
        (item["measure"], item["collection"]): (item["value"], item["over"]) for item in averages_of(rows, parts)
    } == result
