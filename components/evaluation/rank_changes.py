"""Queries that a system wins or loses against another, by the rank of the first relevant document."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data.tables import TEXT


@dataclass(frozen=True)
class Change:
    """Rank of a query's first relevant document in two rankings. None if no such document was retrieved."""

    query_id: str
    doc_id: str
    before: int | None
    after: int | None
    first: str | None
    """Document at rank 1 in the worse of the two rankings, if it is not relevant."""

    @property
    def gain(self) -> float:
        """Return the change of the reciprocal rank."""
        return (1 / self.after if self.after else 0.0) - (1 / self.before if self.before else 0.0)


def changes(before: pa.Table, after: pa.Table, qrels: pa.Table) -> list[Change]:
    """Return a change for every query with a relevant document, from the greatest gain to the greatest loss."""
    relevant = relevant_of(qrels)
    old, new = (first_relevant(ranking, relevant) for ranking in (before, after))
    changed = []
    for query in sorted(relevant):
        (old_rank, old_best, old_top), (new_rank, new_best, new_top) = old[query], new[query]
        lost = new_rank is None or (old_rank is not None and new_rank > old_rank)
        best, top = (old_best, new_top) if lost else (new_best, old_top)
        wrong = top if top not in relevant[query] else None
        changed.append(Change(query, best or min(relevant[query]), old_rank, new_rank, wrong))
    return sorted(changed, key=lambda change: (-change.gain, change.query_id))


def relevant_of(qrels: pa.Table) -> dict[str, set[str]]:
    """query -> its relevant documents."""
    relevant: dict[str, set[str]] = {}
    judged = qrels.filter(pc.greater(qrels["relevance"], 0))
    for query, document in zip(judged["query_id"].to_pylist(), judged["doc_id"].to_pylist(), strict=True):
        relevant.setdefault(query, set()).add(document)
    return relevant


def telling(ranking: pa.Table, documents: pa.Array) -> pa.Table:
    """Select the rows that `changes` looks at: those at rank 1, and those of documents that are relevant to some
    query.
    """
    return ranking.filter(pc.or_(pc.equal(ranking["rank"], 1), pc.is_in(ranking["doc_id"], value_set=documents)))


def first_relevant(
    ranking: pa.Table, relevant: dict[str, set[str]]
) -> dict[str, tuple[int | None, str | None, str | None]]:
    """query -> rank and id of its first relevant document, and the id of the document at rank 1."""
    firsts: dict[str, tuple[int | None, str | None, str | None]] = dict.fromkeys(relevant, (None, None, None))
    kept = ranking.filter(pc.is_in(ranking["query_id"], pa.array(list(relevant), TEXT)))
    kept = telling(kept, pa.array(sorted(set().union(*relevant.values())), TEXT))
    columns = (kept[name].to_pylist() for name in ("query_id", "doc_id", "rank"))
    for query, document, rank in zip(*columns, strict=True):
        best, first, top = firsts[query]
        if document in relevant[query] and (best is None or rank < best):
            best, first = rank, document
        firsts[query] = (best, first, document if rank == 1 else top)
    return firsts
