"""Fit a run into the hours of its budget: which open values give way, in which order, and why.

What tells least about the systems gives way first: queries that only narrow an interval. Then come shorter trainings
and shorter texts, which cost quality. A value that the user set never gives way.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sparring.components.config import UserError
from sparring.workflows.estimating.clock import Clock
from sparring.workflows.experiments import loading
from sparring.workflows.quantities import about
from sparring.workflows.recipes.adapt.config import Change, Config, Shape, Trainings
from sparring.workflows.recipes.adapt.recipe import build
from sparring.workflows.stages import selection
from sparring.workflows.stages.budget import TimedBudgetConfig
from sparring.workflows.stages.config import Default

SAFE = 0.8
"""Share of the hours that the estimate may take. Estimates are often wrong by a quarter."""
WORTH = 0.98
"""A value gives way only if the run then takes less than this share of its time."""
ENOUGH = 1_000
"""Number of queries of a split beyond which an interval hardly narrows."""
PARTS = ("warm", "ranker", "game")

Option = Mapping[str, Any]
"""Values by their keys in the config."""


class Concession(NamedTuple):
    """Values that give way together."""

    options: Sequence[Option]
    """The options, from the one that changes least."""
    reason: str


Concede = Callable[[Config], Concession | None]
"""Function that returns how values of a config give way. None if they cannot, or if the user set them."""


def within_hours(
    config: Config, written: Config, counts: Mapping[str, int], previous: Mapping[str, Any] | None
) -> tuple[Config, list[Default]]:
    """Fit a resolved config into the hours of its budget, and list what gave way.

    `written` is the config as the user wrote it, `counts` has the number of judged queries of each split, and
    `previous` is the resolved config of an earlier run. What an earlier run of an equal config changed holds. Nothing
    gives way for a collection that is not here, nor in an experiment that another one names: it has no folder of its
    own, so the numbers could not be kept.
    """
    hours = (config.budget or TimedBudgetConfig()).hours
    if hours is None or loading.is_named_by_another():
        return config, []
    digest, earlier = _digest(config), (previous or {}).get("shape")
    if earlier is not None and earlier.get("digest") == digest:
        shape = Shape(**earlier)
    elif config.data.missing():
        return config, []
    else:
        clock, limit = Clock(), SAFE * 3600 * hours
        try:
            shorter, changes = fit(config, concessions(written, counts), partial(_seconds, clock), limit)
            total = round(_seconds(clock, shorter))
            shape = Shape(digest=digest, changes=changes, seconds=total, fits=total <= limit)
        except (UserError, ValueError, OSError) as error:  # what cannot be built or read is reported by the run
            reason = f"the time of the run cannot be estimated ({error})"
            return config, [Default("budget.hours", hours, reason)]
    config = _with(config, {change.key: change.value for change in shape.changes})
    because = f"to fit into {hours:g} hour{'' if hours == 1 else 's'}"
    defaults = [Default(change.key, _text(change.value), f"{because}: {change.reason}") for change in shape.changes]
    return config.model_copy(update={"shape": shape}), [*defaults, Default("budget.hours", hours, _reason(shape))]


def fit(
    config: Config, concessions: Sequence[Concede], seconds: Callable[[Config], float], limit: float
) -> tuple[Config, list[Change]]:
    """Let values give way, in the order of the concessions, until the run takes no more than so many seconds.

    Each concession is made whole, by its last option, but the one that suffices: of that take the first option that
    does. A concession that saves nothing is left out. Large steps may save more than is needed. Then the last values
    that gave way are the first to be raised again, as far as the time allows.
    """
    changes, total = list[Change](), seconds(config)
    concessions_made: list[Concession] = []
    for concede in concessions:
        concession = concede(config) if total > limit else None
        if concession is None:
            continue
        option = concession.options[-1]
        if seconds(_with(config, option)) <= limit:
            option = next(option for option in concession.options if seconds(_with(config, option)) <= limit)
        shorter = _with(config, option)
        if (reduced := seconds(shorter)) < WORTH * total:
            changes = [change for change in changes if change.key not in option]
            changes += [Change(key=key, value=value, reason=concession.reason) for key, value in option.items()]
            config, total = shorter, reduced
            milder = concession.options[: concession.options.index(option) + 1]
            concessions_made.append(concession._replace(options=milder))
    for concession in reversed(concessions_made) if total <= limit else []:
        for option in concession.options:
            raised = _with(config, option)
            if seconds(raised) <= limit:
                values = {change.key: option.get(change.key, change.value) for change in changes}
                changes = [change.model_copy(update={"value": values[change.key]}) for change in changes]
                config = raised
                break
    return config, changes


def concessions(written: Config, counts: Mapping[str, int]) -> list[Concede]:
    """List what may give way, in order: first what costs the verdict least."""
    return [
        partial(_fewer_queries, written, counts),
        partial(_fewer_reranked, written, counts, (500, 300)),
        partial(_fewer_updates, written, (400, 300)),
        partial(_shorter_texts, written, (192, 128)),
        partial(_fewer_reranked, written, counts, (200,)),
        partial(_fewer_updates, written, (200, 150, 100)),
        partial(_fewer_documents, written, (7, 5)),
        partial(_shorter_texts, written, (96, 64)),
    ]


def _fewer_queries(written: Config, counts: Mapping[str, int], config: Config) -> Concession | None:
    """Measure a sample of the queries of large splits."""
    splits = (config.evaluate.select, config.evaluate.split)
    samples = {split: ENOUGH for split in splits if split is not None and counts.get(split, 0) > ENOUGH}
    if not samples or "sample" in written.data.model_fields_set:
        return None
    reason = f"{ENOUGH:,} queries of a split tell nearly as much as all of them"
    return Concession([{"data.sample": {**config.data.sample, **samples}}], reason)


def _fewer_reranked(
    written: Config, counts: Mapping[str, int], options: Sequence[int], config: Config
) -> Concession | None:
    """Rerank and measure a sample of the queries. Intervals become wider."""
    splits = [split for split in (config.evaluate.select, config.evaluate.split) if split is not None]
    most = max(min(counts.get(split, 0), ENOUGH) for split in splits)
    sizes = [count for count in options if count < most]
    if not sizes or "rerank" in written.model_fields_set:
        return None
    queries = " and ".join(f"{counts.get(split, 0):,} {split}" for split in dict.fromkeys(splits))
    reason = f"rankers are measured on a sample of the {queries} queries, so intervals are wider"
    return Concession([{"rerank.queries": count} for count in sizes], reason)


def _fewer_updates(written: Config, options: Sequence[int], config: Config) -> Concession | None:
    """Shorten the trainings whose length is open."""
    if not isinstance(config.train, Trainings) or not isinstance(written.train, Trainings):
        return None
    lengths_open = {}
    for name in PARTS:
        training, updates = getattr(written.train, name), getattr(config.train, name).updates
        if training.updates is None and training.epochs is None and updates is not None:
            lengths_open[name] = updates
    shorter = [
        {f"train.{name}.updates": most for name, updates in lengths_open.items() if updates > most} for most in options
    ]
    changing = [option for option in shorter if option]
    return Concession(changing, "shorter trainings learn less") if changing else None


def _shorter_texts(written: Config, options: Sequence[int], config: Config) -> Concession | None:
    """Cut documents, for the retriever and the ranker, as far as their lengths are open."""
    user = {"model.document_tokens": written.model.document_tokens, "pair_tokens": written.pair_tokens}
    present = {"model.document_tokens": config.model.document_tokens or 0, "pair_tokens": config.pair_tokens or 0}
    shorter = []
    for most in options:
        lengths = {"model.document_tokens": most, "pair_tokens": most + (config.model.query_tokens or 0)}
        shorter.append({key: length for key, length in lengths.items() if user[key] is None and length < present[key]})
    changing = [option for option in shorter if option]
    return Concession(changing, "more documents are cut") if changing else None


def _fewer_documents(written: Config, options: Sequence[int], config: Config) -> Concession | None:
    """Rerank fewer documents of each query."""
    depths = [depth for depth in options if depth < config.rerank.depth]
    if not depths or "rerank" in written.model_fields_set:
        return None
    return Concession([{"rerank.depth": depth} for depth in depths], "rankers reorder fewer documents of a query")


def _seconds(clock: Clock, config: Config) -> float:
    """Estimate the time of a whole run."""
    outcome = selection.selected(build(config), config)
    early = [before.results for before in outcome.early]
    return clock.seconds([*early, outcome.results, outcome.data, *outcome.pictures])


def _with(config: Config, option: Option) -> Config:
    """Change values of a config by their dotted keys."""
    for key, value in option.items():
        config = _changed(config, key.split("."), value)
    return config


def _changed(part: Any, keys: Sequence[str], value: Any) -> Any:
    key, *rest = keys
    return part.model_copy(update={key: _changed(getattr(part, key), rest, value) if rest else value})


def _digest(config: Config) -> str:
    """Identify a resolved config that nothing has shaped."""
    tree = config.model_dump(mode="json", exclude={"survey", "shape"})
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:12]


def _text(value: Any) -> Any:
    """Write samples as the config has them: `{dev: 1000}`."""
    if not isinstance(value, dict):
        return value
    return "{" + ", ".join(f"{split}: {count}" for split, count in value.items()) + "}"


def _reason(shape: Shape) -> str:
    """Say how long the run takes, and what to do if that is not wanted."""
    expected = f"{about(shape.seconds)} expected on this machine without other programs"
    if not shape.fits:
        return f"{expected}. What the config sets takes too long; set `budget: {{hours: NUMBER}}`, or none"
    return f"{expected}; `budget: {{hours: none}}` lifts the limit"
