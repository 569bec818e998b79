"""What the report is given to compare any two systems, query by query."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparring.workflows.report.runs import Run, read_runs
from sparring.workflows.report.sections import queries as section
from sparring.workflows.report.sections.queries import Listed, embedded, queries
from tests.support.tiny import Place


@pytest.fixture(scope="module")
def run(played: Place) -> Run:
    return read_runs([played.runs / "tiny"], played.runs, played.where)[0]


def listed(run: Run) -> list[Listed]:
    return [Listed(row.name, row, run.store) for row in run.experiment.outcome.rows]


def test_values_ranks_and_documents_are_those_of_the_run(run: Run) -> None:
    [place] = queries(listed(run))
    assert place["systems"] == list(dict.fromkeys(row.name for row in run.experiment.outcome.rows))
    assert place["measured"] == len(place["queries"]) == place["shown"]
    means = {(metric["system"], metric["measure"]): metric["value"] for metric in run.folder.metrics()["means"]}
    for system, subject in zip(place["systems"], place["values"], strict=True):
        for measure, values in zip(place["measures"], subject, strict=True):
            assert sum(values) / len(values) / 1000 == pytest.approx(means[system, measure], abs=6e-4)
    reciprocal = place["measures"].index("RR@10")
    for ranks, first, subject in zip(place["ranks"], place["first"], place["values"], strict=True):
        for rank, documents, value, right in zip(ranks, first, subject[reciprocal], place["right"], strict=True):
            assert value == (round(1000 / rank) if rank is not None and rank <= 10 else 0)
            assert (rank == 1) == (documents[:1] != [] and documents[0] in right)
    assert all(isinstance(title, str) and text for title, text in place["documents"])


def test_a_small_budget_leaves_documents_out_and_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = queries(listed(run))
    budget = sum(len(title) + len(text) + 8 for title, text in whole["documents"]) * 3 // 4
    monkeypatch.setattr(section, "BYTES", budget)
    [place] = queries(listed(run))
    assert 0 < place["shown"] < len(place["queries"])
    assert sum(len(title) + len(text) for title, text in place["documents"]) < budget
    missing = [position for position, documents in enumerate(place["right"]) if documents is None]
    assert len(missing) == len(place["queries"]) - place["shown"]
    assert all(subject[position] is None for subject in place["first"] for position in missing)


def test_many_queries_are_sampled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "QUERIES", 2)
    [place] = queries(listed(run))
    assert len(place["queries"]) == 2 < place["measured"]


def test_one_system_alone_has_nothing_to_be_compared_with(run: Run) -> None:
    assert queries(listed(run)[:1]) == []
    assert embedded([], None) is None


def test_no_text_ends_the_script_element() -> None:
    output: list[dict[str, Any]] = [{"queries": ["</script><script>alert(1)</script>", "<!--"]}]
    text = embedded(output, ("a", "b"))
    assert text is not None
    assert "<" not in text
    assert json.loads(text) == {"pair": ["a", "b"], "places": output}
