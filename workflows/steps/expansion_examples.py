"""Describe the chosen expansions: their lengths, and examples (Chuang et al., 2023, section 3.7)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparring.components.data.tables import ANSWER_RANKS, ANSWERED, QRELS, QUERIES, RANKING, read, records
from sparring.components.expansion import query_choice
from sparring.components.expansion.expansions import expand_query
from sparring.components.expansion.query_choice import CHOICE
from sparring.components.files import write_json
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

STUDY = "study.json"
WON, LOST = 2, 1
"""Number of examples of each generator: queries that the last system ranks better than the first, and worse."""


@Description(part="evaluation", shows=(STUDY,))
def study(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    split: str,
    lexical: Path,
    by_answer: bool,
    ranks: dict[str, Path],
    choices: dict[str, dict[str, Path]],
) -> dict[str, Any]:
    """Write `study.json`: the mean length in words of the queries that systems issue, by generator (Table 3.9), and
    queries with each system's choice and the rank of the answer (Table 3.10).

    `ranks` has the answer ranks of each generator's expansions. `choices` is what `choose` wrote for each generator and
    system. The examples are those on which the last system gained and lost most against the first.
    """
    queries = read(data / "queries.parquet", QUERIES, filters=[("split", "=", split)])
    texts = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    plain = _plain_ranks(data, lexical, split, by_answer)
    lengths, cases = [], []
    for generator, systems in choices.items():
        table = read(ranks[generator] / "ranks.parquet", ANSWER_RANKS)
        rank_of = dict(zip(table["doc_id"].to_pylist(), table["rank"].to_pylist(), strict=True))
        chosen = {
            system: {row["query_id"]: row for row in read(path / "choices.parquet", CHOICE).to_pylist()}
            for system, path in systems.items()
        }
        issued = {
            system: {
                query: expand_query(texts[query], row["text"]) if row["number"] else texts[query]
                for query, row in choice.items()
            }
            for system, choice in chosen.items()
        }
        lengths.append(
            {
                "generator": generator,
                "words": {
                    system: float(np.mean([len(text.split()) for text in choice.values()])) if choice else 0.0
                    for system, choice in issued.items()
                },
            }
        )
        cases += [
            {
                "generator": generator,
                "query": texts[query],
                "answers": answers,
                "rows": [
                    {"system": "BM25", "text": texts[query], "rank": plain.get(query)},
                    *(
                        {
                            "system": system,
                            "text": issued[system][query],
                            "rank": rank_of[choice[query]["doc_id"]],
                        }
                        for system, choice in chosen.items()
                    ),
                ],
                "passage": passage,
            }
            for query, answers, passage in _examples(data, queries, chosen, rank_of, systems, plain)
        ]
    words = [len(text.split()) for text in texts.values()]
    write_json(out / STUDY, {"question": float(np.mean(words)), "lengths": lengths, "cases": cases})
    return {"queries": len(texts), "cases": len(cases)}


def _plain_ranks(data: Path, lexical: Path, split: str, by_answer: bool) -> dict[str, int]:
    """Return the rank at which each question itself finds an answer, if it does."""
    table = read(lexical / "ranking.parquet", ANSWERED if by_answer else RANKING)
    if not by_answer:
        table = query_choice.mark_relevant(table, read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)]))
    first = table.filter(table["hit"]).group_by("query_id").aggregate([("rank", "min")])
    return dict(zip(first["query_id"].to_pylist(), first["rank_min"].to_pylist(), strict=True))


def _examples(
    data: Path,
    queries: pa.Table,
    chosen: dict[str, dict[str, Any]],
    ranks: dict[str, int | None],
    systems: dict[str, Path],
    plain: dict[str, int],
) -> list[tuple[str, list[str], Any]]:
    """Return queries, their answers, and the passage that the better choice finds."""
    names = list(systems)
    first, last = chosen[names[0]], chosen[names[-1]]

    def gain(query: str) -> float:
        before, after = (ranks[choice[query]["doc_id"]] for choice in (first, last))
        return (1 / after if after else 0.0) - (1 / before if before else 0.0)

    def hard(query: str) -> int:
        return plain.get(query) or 10**6

    ordered = sorted(first.keys() & last.keys(), key=lambda query: (-gain(query), -hard(query), query))
    won = [query for query in ordered[:WON] if gain(query) > 0]
    lost = [query for query in reversed(ordered[-LOST:]) if gain(query) < 0]
    answers = dict(zip(queries["query_id"].to_pylist(), queries["answers"].to_pylist(), strict=True))
    examples = []
    for query in [*won, *lost]:
        system, choice = (names[-1], last) if query in won else (names[0], first)
        filters = [("query_id", "=", query), ("rank", "=", ranks[choice[query]["doc_id"]])]
        document = read(systems[system] / "ranking.parquet", RANKING, filters=filters)["doc_id"].to_pylist()
        passage = records(data / "documents.parquet", "doc_id", document)
        examples.append((query, answers[query], next(iter(passage.values()), None)))
    return examples
