"""Metrics of several replicas."""

from sparring.components.systems.searching import Seconds
from sparring.workflows.serving.metrics import Metrics, total


def count(*processes: Metrics) -> None:
    """Count the same requests and searches, by turns in the processes."""
    for number in range(6):
        metrics = processes[number % len(processes)]
        metrics.answered("/search", 500 if number == 3 else 200, 2.0**-number)
        seconds = Seconds()
        seconds["encode"] = 2.0 ** -(number + 3)
        metrics.searched(f"system {number % 2}", number + 1, seconds)
        metrics.read(f"model {number % 2}", number + 1, 8 * number, "embed", 2.0 ** -(number + 5))


def lines(text: bytes) -> list[str]:
    """Return the lines in order of their names, without the times of creation."""
    return sorted(line for line in text.decode().splitlines() if "_created" not in line)


def test_total_is_as_if_one_process_had_counted() -> None:
    single, first, second = Metrics(), Metrics(), Metrics()
    count(single)
    count(first, second)
    assert lines(total([first.text(), second.text()])) == lines(single.text())
    assert lines(total([single.text()])) == lines(single.text())
    assert total([]) == b""
