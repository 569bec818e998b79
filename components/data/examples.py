"""The labelled sentences of a collection, checked for what is measured by them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import UserError, listing
from sparring.components.data.tables import EXAMPLES, read

FILE = "examples.parquet"


def splits_of(data: Path) -> list[str]:
    """Return the splits of the labelled sentences."""
    return sorted(pc.unique(read(data / FILE, EXAMPLES)["split"]).to_pylist())


def labelled_sentences(data: Path, split: str | None, column: str = "label") -> pa.Table:
    """Read the sentences, or pairs, of a split, or of all splits for None.

    `column` is the judgement that they must have: `label` or `score`. UserError if there are no sentences, or they lack
    that column.
    """
    examples = read(data / FILE, EXAMPLES).combine_chunks()
    sentences = examples if split is None else examples.filter(pc.equal(examples["split"], split))
    if not len(sentences):
        raise UserError(f"split {split!r} has no labelled sentences; there are the splits {listing(splits_of(data))}")
    if sentences[column].null_count:
        has, section = ("labels", "transfer") if column == "score" else ("scores", "similarity")
        raise UserError(f"the sentences have {has}, not {column}s; accepted: in the section `{section}`")
    return sentences


def rated_pairs(data: Path, split: str) -> pa.Table:
    """Read the pairs of a split with people's ratings. UserError for single sentences, or if all ratings are equal
    and so imply no order.
    """
    pairs = labelled_sentences(data, split, "score")
    if pairs["second"].null_count:
        raise UserError(f"split {split!r} has single sentences; accepted for similarity: pairs")
    if len(pc.unique(pairs["score"])) < 2:
        count, rating = f"{len(pairs):,} pairs" if len(pairs) > 1 else "1 pair", f"{pairs['score'][0].as_py():g}"
        raise UserError(f"split {split!r} has {count}, rated {rating}; accepted: two or more, of different ratings")
    return pairs
