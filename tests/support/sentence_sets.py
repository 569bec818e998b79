"""Small sets of labelled sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.support import toy
from tests.support.sources import write


def sentence_sets(folder: Path) -> dict[str, Any]:
    """The keys of a config for rated pairs, a development set of them, and two classifications: cross-validated, and of
    pairs with splits. Their files are written to a folder."""
    rng = np.random.default_rng(0)

    def sentence() -> str:
        return toy.some_text(rng, int(rng.integers(3, 8)))

    for split, count in (("test", 24), ("dev", 10)):
        pairs = []
        for number in range(count):
            words = sentence().split()
            kept = number % 6 / 5
            paraphrase = [word if rng.random() < kept else sentence().split()[0] for word in words]
            pairs.append(f"{number % 6}\t{' '.join(words)}\t{' '.join(paraphrase)}")
        write(folder / f"pairs.{split}.tsv", "score\tsentence1\tsentence2", *pairs)
    write(
        folder / "words.tsv",
        "label\tsentence",
        *(f"{word}\t{word} {word} {word} {sentence()}" for word in toy.WORDS[:2] for _ in range(9)),
    )
    for split, count in (("train", 12), ("test", 5)):
        lines = []
        for _ in range(count):
            text = sentence()
            lines += [f"same\t{text}\t{text}", f"other\t{text}\t{sentence()}"]
        write(folder / f"same.{split}.tsv", "label\tsentence1\tsentence2", *lines)
    pairs_of = {"format": "tsv", "path": f"{folder}/pairs.{{split}}.tsv"}
    return {
        "similarity": {
            "Pairs": {"data": {**pairs_of, "splits": ["test"]}, "retrieve": ["R@1", "R@5"]},
            "Pairs dev": {"data": {**pairs_of, "splits": ["dev"]}, "split": "dev", "averaged": False},
        },
        "transfer": {
            "Words": {"data": {"format": "tsv", "path": f"{folder}/words.tsv"}},
            "Same": {"data": {"format": "tsv", "path": f"{folder}/same.{{split}}.tsv"}, "split": "test"},
        },
        "classifier": {"folds": 3},
    }
