"""Detection of near-duplicate texts. MinHash finds candidates, and the exact overlap of runs of words decides."""

import re
import zlib

import numpy as np

WORDS = 4
"""Number of words in a run (shingle). With shorter runs all docstrings with the same parameters would be near
duplicates."""
BANDS, ROWS = 12, 3
"""Number of bands of minima, and of minima per band. Two texts are compared if all minima of a band are equal. For
texts with an overlap of .8 this has the probability 1 - (1 - .8^3)^12 = .9998."""


class Shingles:
    """The texts so far, without near duplicates of earlier texts."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        rng = np.random.Generator(np.random.PCG64(0))  # a fixed family of hash functions
        self._factors = rng.integers(1, 2**63, size=(BANDS * ROWS, 1), dtype=np.uint64) * 2 + 1
        self._kept: list[np.ndarray] = []
        self._buckets: dict[tuple[int, bytes], list[int]] = {}

    def near(self, text: str) -> bool:
        """Return True if an earlier text is a near duplicate of this text. Otherwise add the text."""
        runs = _runs(text)
        minima = (self._factors * runs[None, :]).min(axis=1).reshape(BANDS, ROWS)
        bands = [(band, row.tobytes()) for band, row in enumerate(minima)]
        candidates = sorted({index for band in bands for index in self._buckets.get(band, ())})
        if any(_overlap(runs, self._kept[index]) >= self.threshold for index in candidates):
            return True
        for band in bands:
            self._buckets.setdefault(band, []).append(len(self._kept))
        self._kept.append(runs)
        return False


def _runs(text: str) -> np.ndarray:
    """Compute the distinct hashes of all runs of words. A text shorter than a run counts as a run."""
    words = [zlib.crc32(word.encode()) for word in re.findall(r"\w+", text.lower())]
    words += [0] * (WORDS - len(words))
    hashes = np.array(words, dtype=np.uint64)
    runs = np.zeros(len(hashes) - WORDS + 1, dtype=np.uint64)
    for offset in range(WORDS):
        runs = runs * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + len(runs)]
    # Mix the bits: the low bits of the sums depend only on the words' low bits.
    return np.unique((runs ^ (runs >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9))


def _overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Jaccard similarity of two sets of hashes."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)
