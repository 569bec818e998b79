"""The pages of results are what claims and records say, and the rule of the verdicts is what it says it is."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING
from sparring.components.yaml_files import yaml_text
from tests.support.tiny import ROOT


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    """`docs/results.py`, which is no part of a package and imports its neighbours."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module, before = importlib.util.module_from_spec(spec), list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    for name in ("claims", "papers"):
        del sys.modules[name]


@pytest.fixture
def rule(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The rule, with a folder of records of its own; called with comparisons, it makes the record `made` of them."""
    records, claims = tmp_path / "records", tmp_path / "claims"
    records.mkdir()
    claims.mkdir()
    monkeypatch.setattr(pages.rule, "RECORDS", records)
    monkeypatch.setattr(pages, "CLAIMS", claims)

    def recorded(*comparisons: dict[str, Any], collections: tuple[str, ...] = ("c",)) -> None:
        means = [
            {
                "system": system,
                "collection": collection,
                "split": "test",
                "seeds": [1],
                "measure": "RR@10",
                "value": value,
                "low": None,
                "high": None,
                "queries": 9,
            }
            for collection in collections
            for system, value in (("a", 0.5), ("b", 0.4), ("c", 0.3))
        ]
        (records / "made.json").write_text(json.dumps({"means": means, "comparisons": comparisons}))
        pages.rule.record.cache_clear()

    pages.rule.recorded = recorded
    pages.rule.record.cache_clear()
    yield pages.rule
    pages.rule.record.cache_clear()


OURS = {"record": "made", "better": "a", "worse": "b", "measure": "RR@10"}
THEIRS = {"table": "ar2/table2-nq", "better": "retriever 10", "worse": "BM25", "measure": "Answer@20"}


def a_claim(rule: Any) -> Any:
    return rule.Claim(says="a is better.", ours=[OURS])


def compared(difference: float, holm: float | None, test: str = THE_METHOD, **rest: Any) -> dict[str, Any]:
    """A comparison of a with b."""
    return {
        "system": "a",
        "baseline": "b",
        "collection": "c",
        "split": "test",
        "seeds": [1, 2, 3],
        "measure": "RR@10",
        "difference": difference,
        "low": difference - 0.02,
        "high": difference + 0.02,
        "p": 0.01,
        "test": test,
        "queries": 9,
        "p_holm": holm,
        **rest,
    }


def read(rule: Any, **fields: Any) -> Any:
    return rule.read(rule.Ours(**{"record": "made", "better": "a", "worse": "b", "measure": "RR@10", **fields}))


def test_the_pages_are_current(pages: ModuleType) -> None:
    output = pages.texts()
    written = {path.name: path.read_text() for path in pages.PAGES.glob("*.md")}
    assert written == output, "if it is meant: .venv/bin/python docs/results.py"


def test_a_row_that_a_record_will_have_is_one_that_its_config_has(pages: ModuleType, tmp_path: Path) -> None:
    """So that a record which comes later does not break the pages."""
    from sparring.workflows.experiments import loading

    waiting: dict[str, set[str]] = {}
    for path in pages.CLAIMS.glob("*.yaml"):
        for item in (our for claim in pages.rule.read_page(path).claims for our in claim.ours):
            if pages.rule.record(item.record) is None:
                waiting.setdefault(item.record, set()).update((item.better, item.worse))
    for name, rows in waiting.items():
        outcome = loading.read(ROOT / pages.rule.configs()[name], [], tmp_path).outcome
        assert rows - {system.name for system in outcome.rows} == set(), name


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [
        (compared(0.1, 0.049), "holds"),
        (compared(-0.1, 0.049), "does not hold"),
        (compared(0.1, 0.05), "not shown"),
        (compared(-0.1, 0.3), "not shown"),
        (compared(0.0, 0.0), "not shown"),
        (compared(0.1, 0.01, THIS_TRAINING), "holds in these 3 trainings"),
        (compared(0.1, 0.01, THIS_TRAINING, seeds=[7]), "holds in this training"),
        (compared(-0.1, 0.01, THIS_TRAINING, seeds=[7]), "does not hold in this training"),
    ],
)
def test_a_verdict_follows_from_the_comparison(rule: Any, comparison: dict[str, Any], verdict: str) -> None:
    rule.recorded(comparison)
    reading = read(rule)
    assert f"{reading.verdict}{reading.scope}" == verdict
    assert rule.summary(a_claim(rule), [reading])[1] == verdict


def test_the_test_that_counts_trainings_decides(rule: Any) -> None:
    rule.recorded(compared(0.1, 0.001, THIS_TRAINING), compared(0.1, 0.2))
    assert read(rule).verdict == "not shown"


def test_a_comparison_the_other_way_round_is_turned(rule: Any) -> None:
    rule.recorded(compared(0.1, 0.01))
    reading = read(rule, better="b", worse="a")
    assert (reading.verdict, reading.better, reading.worse) == ("does not hold", 0.4, 0.5)
    assert [reading.entry[key] for key in ("difference", "low", "high")] == pytest.approx([-0.1, -0.12, -0.08])


def test_rows_that_were_not_compared_tell_nothing(rule: Any) -> None:
    rule.recorded(compared(0.1, 0.01))
    reading = read(rule, worse="c")
    assert (reading.verdict, reading.reason) == ("cannot be told here", "the record has no test of this pair")


def test_a_record_that_is_not_there_yet_tells_nothing(rule: Any) -> None:
    reading = read(rule, record="simlm-starts")
    assert reading.verdict == "cannot be told here"
    assert reading.reason == "no record yet; `sparring run configs/simlm/starts.yaml` measures it"


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([(0.1, 0.01), (0.1, 0.01)], "holds; 2 of 3 pairs measured"),
        ([(0.1, 0.01), (0.1, 0.5)], "not shown (of 2 pairs 1 holds); 2 of 3 pairs measured"),
        ([(-0.1, 0.01), (0.1, 0.01), (0.1, 0.01)], "does not hold (of 3 pairs 2 hold); 3 of 4 pairs measured"),
        ([(-0.1, 0.01), (0.1, 0.5)], "does not hold; 2 of 3 pairs measured"),
        ([], "cannot be told here"),
    ],
)
def test_a_claim_has_the_worst_verdict_of_its_pairs(rule: Any, pairs: list[tuple[float, float]], verdict: str) -> None:
    readings = []
    for pair in pairs:
        rule.recorded(compared(*pair))
        readings.append(read(rule))
    rule.recorded()
    assert rule.summary(a_claim(rule), [*readings, read(rule)])[1] == verdict


def test_a_claim_is_about_no_more_than_its_narrowest_pair(rule: Any) -> None:
    readings = []
    for item in (
        compared(0.1, 0.01),
        compared(0.1, 0.01, THIS_TRAINING),
        compared(0.1, 0.01, THIS_TRAINING, seeds=[4]),
    ):
        rule.recorded(item)
        readings.append(read(rule))
    assert rule.summary(a_claim(rule), readings)[1] == "holds in this training"


THEIRS_BY_SAME_MEASURE = {
    "table": "ar2/table2-msmarco",
    "better": "retriever 10",
    "worse": "warm retriever",
    "measure": "RR@10",
}


@pytest.mark.parametrize(
    ("difference", "holm", "verdict", "size"),
    [  # the paper's difference is .047, our interval .02 on both sides
        (0.04, 0.4, "not shown", "the paper's lies in the interval"),
        (0.04, 0.01, "holds", "the paper's lies in the interval"),
        (0.09, 0.01, "holds", "the paper's is 1.9 times as small"),
        (0.02, 0.01, "holds", "the paper's is 2.4 times as large"),
        (0.004, 0.01, "holds in sign only", "the paper's is 12 times as large"),
        (0.6, 0.01, "holds in sign only", "the paper's is 13 times as small"),
        (-0.04, 0.01, "does not hold", "the paper's lies outside the interval"),
    ],
)
def test_a_verdict_has_a_sign_and_a_size(
    rule: Any, pages: ModuleType, difference: float, holm: float, verdict: str, size: str
) -> None:
    rule.recorded(compared(difference, holm))
    claim = rule.Claim(says="x", theirs=[THEIRS_BY_SAME_MEASURE], ours=[OURS])
    reading = rule.read(claim.ours[0], claim)
    assert (reading.verdict, reading.size) == (verdict, size)
    text = "\n".join([*pages._theirs(claim), *pages._ours(claim, [reading], {})])
    assert "| Table 2 (`ar2/table2-msmarco`) | RR@10 | retriever 10: .395 | warm retriever: .348 | +.047 |" in text
    assert f"{verdict}; {size}" in text


def test_several_differences_of_the_paper_are_counted(rule: Any) -> None:
    """The nearest of them alone would always be kind."""
    rule.recorded(compared(0.05, 0.01))
    rest = [THEIRS_BY_SAME_MEASURE, {**THEIRS_BY_SAME_MEASURE, "better": "warm retriever", "worse": "BM25"}]
    claim = rule.Claim(says="x", theirs=rest, ours=[OURS])
    assert rule.read(claim.ours[0], claim).size == "1 of the paper's 2 lie in the interval"


def test_a_size_by_another_measure_is_not_compared(rule: Any) -> None:
    rule.recorded(compared(0.004, 0.01))
    claim = rule.Claim(says="x", theirs=[THEIRS], ours=[OURS])
    reading = rule.read(claim.ours[0], claim)
    assert (reading.verdict, reading.size) == ("holds", "")


def test_a_verdict_names_what_was_made_once(rule: Any) -> None:
    rule.recorded(compared(0.1, 0.01))
    claim = rule.Claim(says="x", ours=[OURS], once="pre-training")
    assert rule.summary(claim, [rule.read(claim.ours[0], claim)])[1] == "holds in this pre-training"


def test_a_claim_by_construction_is_no_evidence(rule: Any) -> None:
    claim = rule.Claim(says="x", by_construction="the best is never worse")
    assert rule.summary(claim, []) == ("cannot be told here", "true by construction, so no evidence")


def test_a_record_typed_by_hand_decides_nothing(rule: Any) -> None:
    (rule.RECORDS / "typed.json").write_text(json.dumps({"means": [], "comparisons": [], "transcribed": {}}))
    with pytest.raises(UserError, match="typed was typed by hand, and its artifacts are gone"):
        read(rule, record="typed")


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ({"ours": [{**OURS, "record": "mad"}]}, "claims.0: no record 'mad' in docs/records, and no config of"),
        ({"ours": [{**OURS, "worse": "x"}]}, "claims.0: made has no row 'x'; rows: a, b, c"),
        ({"ours": [{**OURS, "measure": "P@1"}]}, "claims.0: made has no P@1 of both rows; it has: RR@10 of c"),
        ({"ours": [{**OURS, "collection": "d"}]}, "claims.0: made has no RR@10 of d of both rows; it has: RR@10 of c"),
        (
            {"ours": [OURS], "theirs": [{**THEIRS, "better": "x"}]},
            "claims.0: ar2/table2-nq: Answer@20 has no row 'x'; accepted: BM25, warm retriever, retriever 10",
        ),
        (
            {"ours": [OURS], "theirs": [{**THEIRS, "measure": "P@1"}]},
            "claims.0: ar2/table2-nq: no column P@1; accepted: Answer@5, Answer@20, Answer@100",
        ),
        ({"ours": [OURS], "theirs": [{**THEIRS, "table": "ar2/table0"}]}, "papers/ar2/table0.yaml: there is no such"),
        ({}, "claims.0: accepted: one of `ours`, `untold` and `by_construction`"),
        (
            {"ours": [OURS, {**OURS, "measure": "P@1"}]},
            "claims.0: ours: made, a, b is there twice; one measure decides for a pair",
        ),
        ({"ours": [{**OURS, "bettr": "a"}]}, "claims.0.ours.0.bettr: unknown key; accepted: record, better, worse"),
    ],
)
def test_a_wrong_claim_is_one_clear_line(rule: Any, pages: ModuleType, page: dict[str, Any], says: str) -> None:
    rule.recorded(compared(0.1, 0.01))
    tree = {"title": "x", "claims": [{"says": "a is better.", **page}], "records": ["made"]}
    (pages.CLAIMS / "bad.yaml").write_text(yaml_text(tree))
    with pytest.raises(UserError) as caught:
        pages.texts()
    assert "bad.yaml: " in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_on_several_collections_need_the_collection(rule: Any) -> None:
    rule.recorded(compared(0.1, 0.01), collections=("c", "d"))
    with pytest.raises(UserError, match=r"made has RR@10 of several collections; `collection` is one of c, d"):
        read(rule)
    assert read(rule, collection="c").verdict == "holds"


@pytest.mark.parametrize(("records", "count"), [([], 0), (["made", "made"], 2)])
def test_a_record_is_on_one_page(rule: Any, pages: ModuleType, records: list[str], count: int) -> None:
    rule.recorded()
    (pages.CLAIMS / "one.yaml").write_text(yaml_text({"title": "x", "records": records}))
    with pytest.raises(UserError, match=rf"docs/records/made.json is in `records` of {count} pages in docs/claims"):
        pages.texts()


def test_a_record_that_is_cut_is_named(rule: Any, pages: ModuleType) -> None:
    (rule.RECORDS / "cut.json").write_text('{"run": ')
    (pages.CLAIMS / "one.yaml").write_text(yaml_text({"title": "x", "records": ["cut"]}))
    with pytest.raises(UserError, match=r"docs/records/cut.json: not JSON: Expecting value"):
        pages.texts()


def test_a_page_lists_no_record_that_nothing_makes(rule: Any, pages: ModuleType) -> None:
    (pages.CLAIMS / "one.yaml").write_text(yaml_text({"title": "x", "records": ["mad"]}))
    with pytest.raises(UserError, match=r"one.yaml: records: no record 'mad' in docs/records, and no config of that"):
        pages.texts()
