"""Rows of different lengths: taken, joined, and in one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring.components.config import Damaged
from sparring.components.data.ragged import Ragged
from sparring.components.data.vectors import joined, read_rows, save_rows

LISTS = [[1, 2], [], [3], [4, 5, 6], []]


def rows(lists: list[list[int]]) -> Ragged:
    """Each number, and a vector of it and its double."""
    numbers = np.array([number for row in lists for number in row], np.int32)
    vectors = np.stack([numbers, 2 * numbers], 1).astype(np.float16)
    return Ragged(np.cumsum([0, *map(len, lists)]), (numbers, vectors))


def lists(rows: Ragged) -> list[list[int]]:
    """The numbers of each row, whose vectors belong to them."""
    numbers, vectors = rows.values
    np.testing.assert_array_equal(vectors, np.stack([numbers, 2 * numbers], 1))
    return [part.tolist() for part in np.split(numbers, rows.offsets[1:-1])]


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4], [3, 1, 3], [4], []])
def test_rows_are_taken_in_the_order_in_which_they_are_named(chosen: list[int]) -> None:
    assert lists(rows(LISTS)[np.array(chosen, np.int64)]) == ([LISTS[row] for row in chosen] or [[]])
    assert len(rows(LISTS)[np.array(chosen, np.int64)]) == len(chosen)


def test_a_slice_takes_consecutive_rows() -> None:
    assert lists(rows(LISTS)[1:4]) == LISTS[1:4]


def test_parts_are_joined_in_order() -> None:
    assert lists(joined([rows(LISTS), rows([[7]]), rows(LISTS)[:2]])) == [*LISTS, [7], *LISTS[:2]]
    np.testing.assert_array_equal(joined([np.eye(2), np.ones((1, 2))]), [[1, 0], [0, 1], [1, 1]])


def test_places_that_are_masked_are_left_out() -> None:
    where = np.array([[True, False, True], [False, False, False]])
    stored = Ragged.of(where, np.arange(6).reshape(2, 3), np.ones((2, 3, 4)))
    assert stored.offsets.tolist() == [0, 2, 2]
    assert stored.values[0].tolist() == [0, 2]
    assert stored.values[1].shape == (2, 4)


@pytest.mark.parametrize("entries", [LISTS, [[]], []])
def test_a_file_has_all_arrays(entries: list[list[int]], tmp_path: Path) -> None:
    save_rows(tmp_path / "rows.npy", rows(entries))
    stored = read_rows(tmp_path / "rows.npy")
    assert isinstance(stored, Ragged)
    assert len(stored) == len(entries)
    assert lists(stored) == (entries or [[]])
    assert [array.dtype for array in stored.values] == [np.int32, np.float16]


def test_a_file_of_one_array_is_that_array(tmp_path: Path) -> None:
    save_rows(tmp_path / "rows.npy", np.eye(3, dtype=np.float16))
    np.testing.assert_array_equal(read_rows(tmp_path / "rows.npy"), np.eye(3))


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_cut_file_is_damaged(cut: int, tmp_path: Path) -> None:
    save_rows(tmp_path / "rows.npy", rows(LISTS))
    whole = (tmp_path / "rows.npy").read_bytes()
    (tmp_path / "rows.npy").write_bytes(whole[:-cut])
    with pytest.raises(Damaged, match=r"rows\.npy"):
        read_rows(tmp_path / "rows.npy")
