"""Texts that say nearly the same: MinHash finds candidates, the exact overlap of their runs of words decides."""

import re
import zlib

import numpy as np

WORDS = 4
"""Words in a run. Shorter runs make every two docstrings with the same parameters alike."""
BANDS, ROWS = 12, 3
"""Texts meet when all of a band's minima agree: at an overlap of .8 with a probability of 1 - (1 - .8^3)^12 = .9998."""


class Shingles:
    """The texts seen so far that are no near duplicates of each other."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        generator = np.random.Generator(np.random.PCG64(0))  # a fixed family of hash functions, not a draw
        self._factors = generator.integers(1, 2**63, size=(BANDS * ROWS, 1), dtype=np.uint64) * 2 + 1
        self._kept: list[np.ndarray] = []
        self._met: dict[tuple[int, bytes], list[int]] = {}

    def near(self, text: str) -> bool:
        """Whether a text seen before is a near duplicate; if none is, this one is remembered."""
        runs = _runs(text)
        minima = (self._factors * runs[None, :]).min(axis=1).reshape(BANDS, ROWS)
        bands = [(band, row.tobytes()) for band, row in enumerate(minima)]
        candidates = sorted({index for band in bands for index in self._met.get(band, ())})
        if any(_overlap(runs, self._kept[index]) >= self.threshold for index in candidates):
            return True
        for band in bands:
            self._met.setdefault(band, []).append(len(self._kept))
        self._kept.append(runs)
        return False


def _runs(text: str) -> np.ndarray:
    """Hashes of all runs of words, each once; a text shorter than a run is one run."""
    words = [zlib.crc32(word.encode()) for word in re.findall(r"\w+", text.lower())]
    words += [0] * (WORDS - len(words))
    hashes = np.array(words, dtype=np.uint64)
    runs = np.zeros(len(hashes) - WORDS + 1, dtype=np.uint64)
    for offset in range(WORDS):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + len(runs)]
    # The sum alone is a poor hash: its low bits depend on the words' low bits alone.
    return np.unique((runs ^ (runs >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9))


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Jaccard similarity of two sets."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared / (len(one) + len(other) - shared)
