"""What was not made is named as the experiment at hand calls it."""

from __future__ import annotations

from sparring.workflows.steps.ingest import ingest
from sparring.workflows.store.availability import NotMade
from sparring.workflows.store.dag import relabelled, step


def test_a_step_of_another_experiment_has_the_label_that_it_has_here() -> None:
    node = step("data", ingest, source={"format": "beir", "path": "x"})
    current = relabelled(node, {node.fingerprint: "B: data"})
    error = NotMade("files of the step 'data' were dropped; make them again", "data", node.name).as_in([current])
    assert error.told("run cmp.yaml") == (
        "files of the step 'B: data' were dropped; make them again: run cmp.yaml --until 'B: data'"
    )
    assert NotMade("it is gone", "data", "other").as_in([current]).told("run") == "it is gone: run --until 'data'"
