"""What a training that failed under Ray says: the worker's own words, in a line."""

from __future__ import annotations

import pytest

from sparring.components.config import UserError
from sparring.workflows.distributed.ray_train import failure_reason

DIED = (
    "The actor died unexpectedly.\n\tpid: 7\nThe actor is dead because its worker process has died. Worker exit type: X"
)


@pytest.mark.parametrize(
    ("failures", "kind", "says"),
    [
        ({0: UserError("k: 9")}, UserError, "k: 9"),
        ({1: RuntimeError("lost a neighbour"), 2: UserError("k: 9")}, UserError, "k: 9"),
        (
            {0: FloatingPointError("step 3:\n the gradient is nan")},
            RuntimeError,
            "worker 0: FloatingPointError: step 3: the gradient is nan",
        ),
        ({0: RuntimeError(DIED)}, RuntimeError, "a worker's process died, more often than `retries` allows"),
        ({0: RuntimeError(DIED), 1: ValueError("no text")}, RuntimeError, "worker 1: ValueError: no text"),
    ],
)
def test_a_workers_words(failures: dict[int, Exception], kind: type[Exception], says: str) -> None:
    from ray.train import WorkerGroupError

    error = failure_reason(WorkerGroupError("\n".join(str(failure) for failure in failures.values()), failures))
    assert type(error) is kind
    assert str(error).startswith(says)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (DIED, "a worker's process died, "),
        ("no room for\n 3 workers", "Training failed due to controller error: no ro"),
    ],
)
def test_the_controllers_words(said: str, says: str) -> None:
    from ray.train import ControllerError

    error = failure_reason(ControllerError(RuntimeError(said)))
    assert str(error).startswith(says)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, "the workers ended before the training was done, and Ray Train does not say why"),
        (SystemExit(), "Ray Train ended with SystemExit"),
    ],
)
def test_an_end_without_words(error: BaseException | None, says: str) -> None:
    assert str(failure_reason(error)) == says
