"""FlagEmbedding's training data: JSON lines with `query`, `pos`, `neg`, and for distillation `pos_scores` and
`neg_scores`.

The fields are those of `FlagEmbedding/abc/finetune/embedder/AbsDataset.py` in its repository, and of `reranker`'s file
next to it. FlagEmbedding uses a row's own instruction, `prompt`, if `query_instruction_for_retrieval` is set, in the
form of `query_instruction_format`. `type` and `batch_size` only affect its batches, and are ignored here.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from sparring.components.config import listing
from sparring.components.sources import training_groups
from sparring.components.sources.records import Bad
from sparring.components.sources.training_groups import Given, divided, passages, scores, without_ids

LISTS = ("pos", "neg", "pos_scores", "neg_scores")


class Source(training_groups.GroupSource):
    """The keys of `format: flagembedding`."""

    query_instruction_format: str | None = None
    """Template that joins a row's `prompt` and its query, such as `{}{}` or `Instruct: {}\\nQuery: {}`. `null`: prompts
    are ignored. (A retriever's own `query_prompt` is the same for all queries.)"""

    @model_validator(mode="after")
    def _two_places(self) -> Self:
        wanted = self.query_instruction_format
        if wanted is not None and wanted.count("{}") != 2:
            raise ValueError(f"query_instruction_format: got {wanted!r}. Write a text with {{}} twice, or null.")
        return self

    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """Return a row with its positives before its negatives."""
        if wrong := [name for name in LISTS if not isinstance(row.get(name), list | None)]:
            return Bad("wrong columns", place, f"{listing(wrong)} must be a list")
        if "query" not in row or row.get("pos") is None:
            return Bad("wrong columns", place, f"expected query, pos and neg, but it has {', '.join(row)}")
        positives, negatives, right, wrong = (row.get(name) or [] for name in LISTS)
        teacher: list[float] | Bad | None = None
        if row.get("pos_scores") is not None and (row.get("neg_scores") is not None or not negatives):
            if (len(right), len(wrong)) != (len(positives), len(negatives)):
                return Bad("wrong columns", place, "pos_scores and neg_scores must be as long as pos and neg")
            teacher = scores([*right, *wrong], place)
        if isinstance(teacher, Bad):
            return teacher
        targets = [1.0] * len(positives) + [0.0] * len(negatives)
        query = row["query"]
        if self.query_instruction_format and isinstance(row.get("prompt"), str) and isinstance(query, str):
            before, between, after = self.query_instruction_format.split("{}")
            query = before + row["prompt"] + between + query + after
        return without_ids(query, [*positives, *negatives], targets, teacher, split, place)


def write_groups(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write a row per group, with scores if there is a teacher."""
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            texts, row = passages(record), {"query": record.query}
            for side, places in zip(("pos", "neg"), divided(record), strict=True):
                row[side] = [texts[place] for place in places]
                if record.teacher is not None:
                    row[f"{side}_scores"] = [record.teacher[place] for place in places]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
