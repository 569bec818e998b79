"""Contenders as teachers: their scores are the targets of trainings."""

from collections.abc import Callable, Mapping

from sparring.components.config import Invalid, listing
from sparring.workflows.stages.contender import Contender
from sparring.workflows.stages.results import Results
from sparring.workflows.steps.score import ScoreConfig
from sparring.workflows.store.dag import Step
from sparring.workflows.systems.reranked import Reranking

Teacher = Callable[[str, Step], Step]
"""Adds a teacher's scores to groups. The arguments are a label and the step with the groups."""


def check_teacher(
    teacher: str | None, contenders: Mapping[str, Contender], *, reads: bool, key: str = "teacher"
) -> None:
    """Raise Invalid unless the teacher is a contender with a reranker, and a loss `reads` its scores."""
    if teacher is None:
        return
    rerankers = [name for name, contender in contenders.items() if contender.teaches]
    advice = f"Use one of these: {listing(rerankers)}." if rerankers else "Add one with a `reranker` or `rerank_url`."
    if teacher not in contenders:
        raise Invalid(f"{key}: there is no contender {teacher!r}. {advice}", "unknown-name")
    if teacher not in rerankers:
        raise Invalid(
            f"{key}: the contender {teacher!r} has no reranker with scores that could teach. {advice}", "no-teacher"
        )
    if not reads:
        raise Invalid(
            f"{key}: no loss reads the scores of {teacher!r}. Use a loss such as `distillation`, or `teacher: null`.",
            "unused",
        )


def contender_named(name: str, results: Results, seed: int) -> Reranking:
    """Return the system of a contender that `check_teacher` has accepted, as a seed measures it."""
    systems = {row.name: row.system for row in results.rows if row.contender and row.seed == seed}
    teacher = systems[name]
    assert isinstance(teacher, Reranking)
    return teacher


def teacher_by(reranking: Reranking, config: ScoreConfig, judged: list[Step]) -> Teacher:
    """Return a teacher that scores as a reranking does.

    It adds its steps to `judged`, and an address is not asked again for pairs that these steps have scored.
    """

    def scored(label: str, groups: Step) -> Step:
        judged.append(reranking.judged(label, groups, config, list(judged)))
        return reranking.weighted(label, judged[-1])

    return scored
