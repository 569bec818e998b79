"""Random choices depend on their key, and on nothing else."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from sparring.components.rng import keyed_int, keyed_rng
from sparring.workflows import ROOT

PARTS = st.lists(st.one_of(st.integers(), st.text(max_size=5)), min_size=1, max_size=4)


@given(key=PARTS)
def test_a_key_gives_a_64_bit_number(key: list[int | str]) -> None:
    assert 0 <= keyed_int(*key) < 2**64
    assert keyed_int(*key) == keyed_int(*key)


def test_keys_with_the_same_letters_differ() -> None:
    keys = [("ab", "c"), ("a", "bc"), ("abc",), ("a", "b", "c"), ("c", "ab"), (1, 23), (12, 3), (123,), (1, 2, 3)]
    assert len({keyed_int(*key) for key in keys}) == len(keys)


def test_generators_are_their_own() -> None:
    first = keyed_rng(1, "negatives", "q7", 0).permutation(50).tolist()
    keyed_rng(1, "negatives", "q8", 0).permutation(50)
    assert keyed_rng(1, "negatives", "q7", 0).permutation(50).tolist() == first
    rest = [(2, "negatives", "q7", 0), (1, "order", "q7", 0), (1, "negatives", "q8", 0), (1, "negatives", "q7", 1)]
    assert all(keyed_rng(*key).permutation(50).tolist() != first for key in rest)


def test_another_process_draws_the_same() -> None:
    """Nothing of Python's hashing, which differs from process to process, is in it."""
    code = (
        "from sparring.components.rng import keyed_int, keyed_rng; "
        "print(keyed_int(1, 'order', 2), keyed_rng(1, 'a').integers(10**9))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(keyed_int(1, "order", 2)), str(keyed_rng(1, "a").integers(10**9))]
    assert keyed_int(1, "order", 2) == 14143148963943344134
