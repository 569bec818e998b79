"""Sizes and times as people read them."""

from __future__ import annotations

import pytest

from sparring.workflows.quantities import about, between, duration, size


def test_durations_and_sizes() -> None:
    assert [duration(s) for s in (0.04, 9.94, 9.97, 59.4, 59.6, 185, 3600, 7620, 268_000)] == [
        "0.0 s",
        "9.9 s",
        "10 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 00 min",
        "2 h 07 min",
        "3.1 days",
    ]
    assert [size(b) for b in (0, 12, 1500, 12_345, 3_400_000, 2_500_000_000, 512e9, 1.5e12)] == [
        "0 B",
        "12 B",
        "1.5 kB",
        "12.3 kB",
        "3.4 MB",
        "2.5 GB",
        "512 GB",
        "1.5 TB",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "about 1 s"),
        (42, "about 40 s"),
        (100, "about 2 min"),
        (720, "about 12 min"),
        (12_000, "about 3 h 20 min"),
        (6_800, "about 1 h 50 min"),
        (6_950, "about 2 h 00 min"),
        (14_399, "about 4 h 00 min"),
        (864_000, "about 10.0 days"),
    ],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert about(seconds) == words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (230, 660, "4 to 11 min"),
        (20, 40, "20 to 40 s"),
        (40, 200, "40 s to 3 min"),
        (400, 440, "about 7 min"),
        (4_000, 12_000, "67 min to 3 h 20 min"),
        (6_800, 12_000, "1 h 50 min to 3 h 20 min"),
        (1, 2, "about 1 s"),
        (100_000, 300_000, "27 h 50 min to 3.5 days"),
        (0, 0, "about 1 s"),
    ],
)
def test_a_range_in_words(low: float, high: float, words: str) -> None:
    assert between(low, high) == words
