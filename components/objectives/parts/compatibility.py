"""Checks that an objective, a config's losses and the training groups fit together."""

from sparring.components.config import listing
from sparring.components.needs import CANDIDATES
from sparring.components.training.config import TrainConfig
from sparring.components.training.terms import PASSES, LossTerm, declared, losses_for

GROUP = "group"
"""Views that may have a teacher: each query's own candidates, and two passes of a ranker over them."""


def check_training(
    objective: str,
    config: TrainConfig,
    label: str,
    *,
    taught: bool = True,
    dev_taught: bool = True,
    dimensions: int | None = None,
) -> None:
    """Check a training against the declarations of its objective and losses, and against its groups.

    `taught` and `dev_taught` are True if the training and the validation groups have a teacher's scores. `dimensions`
    is the length of a vector. If None, it is unknown and not checked. Raise ValueError for an undeclared view or
    validation measure, for scores that a loss needs and its view lacks, and for too many dimensions.
    """
    views, look = declared(objective, "views"), config.validate_on_dev
    prefixes, kinds = declared(objective, "prefixes") or (), declared(objective, "scores_of") or {}
    is_custom = "." in objective  # only its declarations can be checked
    for term in config.losses:
        if views is not None and term.over not in views:
            raise ValueError(
                f"{label}: losses: over: got {term.over!r}, but the objective {objective} accepts {listing(views)}."
            )
        kind = kinds.get(term.over, None if is_custom else CANDIDATES)
        if kind is not None and term.needs.of != kind:
            raise ValueError(
                f"{label}: losses: {term.function} reads scores of {term.needs.of}, but `over: {term.over}` of the "
                f"objective {objective} has scores of {kind}. Use a loss for these, such as {losses_for(kind)[0]}."
            )
        if term.dimensions is not None and views is not None and term.over not in prefixes:
            raise ValueError(
                f"{label}: losses: dimensions: `over: {term.over}` of the objective {objective} has no vectors to cut. "
                + (f"Remove `dimensions`, or use `over: {listing(prefixes)}`." if prefixes else "Remove `dimensions`.")
            )
        longest = max(term.dimensions or [0])
        if dimensions is not None and longest > dimensions:
            raise ValueError(
                f"{label}: losses: dimensions: got {longest}, but the retriever's vectors have {dimensions} "
                f"dimensions. Use at most {dimensions}."
            )
        if not is_custom:
            _check_scores(term, objective, label, taught=taught)
    measures = [*(declared(objective, "measures") or ()), "loss"]
    if look is not None and look.measure not in measures:
        raise ValueError(
            f"{label}: validate_on_dev: measure: got {look.measure!r}, which the objective {objective} does not have. "
            f"Use one of these: {listing(measures)}."
        )
    if look is not None and look.measure == "loss" and not dev_taught:
        name = next((loss.function for loss in config.losses if loss.reads_teacher), None)
        if name is not None:
            measures.remove("loss")
            raise ValueError(
                f"{label}: validate_on_dev: measure: got loss, but {name} reads a teacher's scores, and the groups of "
                f"{look.split} have none. Use one of these measures: {listing(measures)}."
            )


def _check_scores(term: LossTerm, objective: str, label: str, *, taught: bool) -> None:
    """Raise ValueError if a loss needs scores that its view in a built-in objective does not have."""
    views, joined = declared(objective, "views") or (), declared(objective, "blocks") or ()
    where = f"`over: {term.over}` of the objective {objective}"
    if term.reads_teacher and not (taught and term.over == GROUP):
        passes = f", or `over: {PASSES}`, whose teacher is the second pass" if PASSES in views else ""
        if taught and GROUP in views:
            reason = f"{where} has none. Use `over: {GROUP}`: a teacher has scored each query's own candidates."
        elif GROUP in views:
            reason = (
                "these groups have none. Use a loss over targets, a recipe whose ranker scores the groups (ar2, "
                "simlm), a contender (`teacher` in ar2, dpr and simlm), or, if the collection's source has scores, "
                f"`given: scores`{passes}."
            )
        else:
            reason = f"{where} has none. Use a loss without a teacher."
        raise ValueError(f"{label}: losses: {term.function} reads a teacher's scores, and {reason}")
    if term.over not in joined and term.needs_blocks:
        use = f"Use `over: {listing(joined)}`" if joined else "Use another loss"
        raise ValueError(
            f"{label}: losses: {term.function} reads scores among queries or among documents, and {where} has none. "
            f"{use}."
        )
