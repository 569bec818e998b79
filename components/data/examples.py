"""The labelled sentences of a collection, with checks that they have the judgements that an evaluation needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import UserError, listing
from sparring.components.data.tables import EXAMPLES, read

FILE = "examples.parquet"


def splits_of(data: Path) -> list[str]:
    """List the splits of the labelled sentences."""
    return sorted(pc.unique(read(data / FILE, EXAMPLES)["split"]).to_pylist())


def labelled_sentences(data: Path, split: str | None, column: str = "label") -> pa.Table:
    """Read the sentences, or pairs, of a split. If `split` is None, read all splits.

    `column` is the judgement that they must have: `label` or `score`. Raise UserError if there are no sentences, or if
    a sentence lacks this judgement.
    """
    examples = read(data / FILE, EXAMPLES).combine_chunks()
    sentences = examples if split is None else examples.filter(pc.equal(examples["split"], split))
    if not len(sentences):
        raise UserError(
            f"the split {split!r} has no labelled sentences. Use one of these splits: {listing(splits_of(data))}."
        )
    if sentences[column].null_count:
        has, section = ("labels", "transfer") if column == "score" else ("scores", "similarity")
        raise UserError(f"the sentences have {has}, not {column}s. Use them in the section `{section}`.")
    return sentences


def rated_pairs(data: Path, split: str) -> pa.Table:
    """Read the pairs of a split with their ratings.

    Raise UserError for single sentences, or if all ratings are equal and therefore give no order.
    """
    pairs = labelled_sentences(data, split, "score")
    if pairs["second"].null_count:
        raise UserError(f"the split {split!r} has single sentences. Similarity needs pairs of sentences.")
    if len(pc.unique(pairs["score"])) < 2:
        count, rating = f"{len(pairs):,} pairs" if len(pairs) > 1 else "1 pair", f"{pairs['score'][0].as_py():g}"
        raise UserError(f"the split {split!r} has {count}, rated {rating}. Provide pairs with different ratings.")
    return pairs
