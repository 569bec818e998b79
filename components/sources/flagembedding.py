"""Training data of FlagEmbedding: JSON lines with `query`, `pos`, `neg`, and for distillation `pos_scores` and
`neg_scores`.

These are the fields that `FlagEmbedding/abc/finetune/embedder/AbsDataset.py` of its repository reads, and `reranker`'s
beside it. A row's own instruction, `prompt`, counts there where `query_instruction_for_retrieval` is set, in the words
of `query_instruction_format`. `type` and `batch_size` steer its batches and are not read.
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


class Source(training_groups.GroupSource):
    """The keys of `format: flagembedding`."""

    query_instruction_format: str | None = None
    """How a row's `prompt` and its query are put together: `{}{}`, or `Instruct: {}\\nQuery: {}`. Null leaves the
    prompts out: a retriever's own `query_prompt` is the same for all queries."""

    @model_validator(mode="after")
    def _two_places(self) -> Self:
        wanted = self.query_instruction_format
        if wanted is not None and wanted.count("{}") != 2:
            raise ValueError(f"query_instruction_format: got {wanted!r}; accepted: text with {{}} twice, or null")
        return self

    def given(self, row: dict[str, Any], split: str, place: str) -> Given | Bad:
        """A row with its positives before its negatives."""
        positives: Any = row.get("pos")
        negatives: Any = row.get("neg") or []
        if wrong := [name for name in ("pos", "neg") if not isinstance(row.get(name), list | None)]:
            return Bad("wrong columns", place, f"{listing(wrong)}: accepted: a list of texts")
        if "query" not in row or positives is None:
            return Bad("wrong columns", place, f"expected query, pos and neg; it has {', '.join(row)}")
        teacher: list[float] | Bad | None = None
        lists = [row.get("pos_scores"), row.get("neg_scores")]
        if not all(one is None or isinstance(one, list) for one in lists):
            return Bad("wrong columns", place, "pos_scores and neg_scores must be lists")
        if lists[0] is not None and (lists[1] is not None or not negatives):
            own = [*lists[0], *(lists[1] or [])]
            if [len(lists[0]), len(lists[1] or [])] != [len(positives), len(negatives)]:
                return Bad("wrong columns", place, "pos_scores and neg_scores must be as long as pos and neg")
            teacher = scores(own, place)
        if isinstance(teacher, Bad):
            return teacher
        targets = [1.0] * len(positives) + [0.0] * len(negatives)
        return without_ids(self._asked(row), [*positives, *negatives], targets, teacher, split, place)

    def _asked(self, row: dict[str, Any]) -> Any:
        prompt, asked = row.get("prompt"), row["query"]
        if self.query_instruction_format is None or not isinstance(prompt, str) or not isinstance(asked, str):
            return asked
        before, between, after = self.query_instruction_format.split("{}")
        return before + prompt + between + asked + after


def write_groups(records: Iterable[Given], folder: Path, name: str) -> Path:
    """Write a row a group, with scores where there is a teacher."""
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            texts, row = passages(record), {"query": record.query}
            for side, where in zip(("pos", "neg"), divided(record), strict=True):
                row[side] = [texts[at] for at in where]
                if record.teacher is not None:
                    row[f"{side}_scores"] = [record.teacher[at] for at in where]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
