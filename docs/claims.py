"""The claims of the papers, and what the records of runs say of each: a rule decides, nobody's opinion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, UserError, listing, parse
from sparring.components.evaluation.result_table import CLEAR
from sparring.components.evaluation.significance import THE_METHOD
from sparring.components.yaml_files import read_based, read_yaml
from sparring.workflows import ROOT
from sparring.workflows.stages.expected import KEY, Expected
from sparring.workflows.stages.experiments import name_of

HOLDS, DOES_NOT, NOT_SHOWN, UNTOLD = "holds", "does not hold", "not shown", "cannot be told here"
WORST_FIRST = (DOES_NOT, NOT_SHOWN, HOLDS)
RECORDS = ROOT / "docs" / "records"
"""A file NAME.json for each record, and what people say of it in NAME.md, under a title."""

Json = dict[str, Any]


class Theirs(Config):
    """Where a paper has a claim: two rows of a table that is a config in `configs/papers`."""

    table: str
    """The config, such as ar2/table2-nq."""
    better: str
    worse: str
    measure: str
    collection: str | None = None


class Ours(Config):
    """Where a run here tells of a claim: two rows of its record, of which the claim says that one is better."""

    record: str
    """The file in `docs/records`, without its ending. One of a config's name may be there later."""
    better: str
    worse: str
    measure: str
    collection: str | None = None
    """Needed where the two were measured on several."""


class Claim(Config):
    """That some rows are better than others. It holds where it holds for all pairs that are read."""

    says: str = Field(min_length=1)
    """The claim, in a sentence of ours."""
    where: str = ""
    """Where the paper has it, if `theirs` does not say so."""
    theirs: list[Theirs] = []
    ours: list[Ours] = []
    untold: str = ""
    """Why no run here can tell, where none can."""
    note: str = ""
    """What else a reader must know."""

    @model_validator(mode="after")
    def _is_read_or_says_why_not(self) -> Self:
        if bool(self.ours) == bool(self.untold):
            raise ValueError("ours: where runs here tell of it, or none and `untold` with the reason")
        return self


class Page(Config):
    """A page of results: `docs/claims/NAME.yaml`."""

    title: str
    about: str = ""
    claims: list[Claim] = []
    records: list[str] = []
    """The runs on this page, in this order; those of which there is no record yet are left out."""


class Scope(NamedTuple):
    """What a verdict is about, the widest first."""

    uncorrected: bool = False
    """Whether the record has no p corrected for the other differences of its table."""
    trainings: int = 0
    """How many trainings were taken as they are; 0 where they were counted as chance, so that it is of the method."""

    def __str__(self) -> str:
        many = "in this training" if self.trainings == 1 else f"in these {self.trainings} trainings"
        return (f" {many}" if self.trainings else "") + (", before correction" if self.uncorrected else "")


@dataclass(frozen=True)
class Reading:
    """What one record says of a claim."""

    ours: Ours
    verdict: str
    scope: Scope = Scope()  # noqa: RUF009  (immutable)
    better: float | None = None
    worse: float | None = None
    entry: Json | None = None
    """The comparison, turned so that a positive difference is as the claim says."""
    why: str = ""
    """Why it cannot tell."""


@cache
def record(name: str) -> Json | None:
    """A record by its name; None where there is none. UserError where it is cut."""
    path = RECORDS / f"{name}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except ValueError as error:
        raise UserError(f"docs/records/{path.name}: not JSON: {error}") from None


@cache
def configs() -> dict[str, str]:
    """Configs by the names of their runs, which those of their records are."""
    return {name_of(path): path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "configs").rglob("*.yaml"))}


def read_page(path: Path) -> Page:
    """The claims and records of a page. UserError names what is wrong."""
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    page = parse(Page, read_yaml(path), where=str(where))
    for name in page.records:
        if record(name) is None and not (RECORDS / f"{name}.md").exists() and name not in configs():
            raise UserError(f"{where}: records: no record {name!r} in docs/records, and no config of that name")
    return page


@cache
def expected(table: str) -> Expected:
    """What a paper's table has, as its config says."""
    path = ROOT / "configs" / "papers" / f"{table}.yaml"
    return parse(Expected, read_based(path).get(KEY) or {}, where=f"configs/papers/{table}.yaml: {KEY}")


def size(theirs: Theirs) -> tuple[float, float, str]:
    """The paper's value of the better row, of the worse, as shares, and where it has them."""
    paper = expected(theirs.table)
    columns = {(one.measure, one.collection): one.values for one in paper.of}
    values = columns.get((theirs.measure, theirs.collection))
    if values is None:
        accepted = listing(" of ".join(filter(None, one)) for one in columns)
        wanted = " of ".join(filter(None, (theirs.measure, theirs.collection)))
        raise UserError(f"{theirs.table}: no column {wanted}; accepted: {accepted}")
    for row in (theirs.better, theirs.worse):
        if row not in values:
            raise UserError(f"{theirs.table}: {theirs.measure} has no row {row!r}; accepted: {listing(values)}")
    scale = 100 if paper.unit == "percent" else 1
    return values[theirs.better] / scale, values[theirs.worse] / scale, paper.source


def read(ours: Ours) -> Reading:
    """What a record says of one row being better than another. UserError names a row or measure that it has not."""
    found = record(ours.record)
    if found is None:
        if ours.record not in configs():
            raise UserError(f"no record {ours.record!r} in docs/records, and no config of that name")
        return Reading(ours, UNTOLD, why=f"no record yet; `sparring run {configs()[ours.record]}` measures it")
    means = found["means"]
    for row in (ours.better, ours.worse):
        names = dict.fromkeys(one["system"] for one in means)
        if row not in names:
            raise UserError(f"{ours.record} has no row {row!r}; rows: {listing(names)}")
    here = [one for one in means if one["measure"] == ours.measure and ours.collection in (None, one["collection"])]
    values = {one["system"]: one["value"] for one in here}
    if not {ours.better, ours.worse} <= values.keys():
        pairs = dict.fromkeys(f"{one['measure']} of {one['collection']}" for one in means)
        wanted = ours.measure + (f" of {ours.collection}" if ours.collection else "")
        raise UserError(f"{ours.record} has no {wanted} of both rows; it has: {listing(pairs)}")
    if len({one["collection"] for one in here}) > 1:
        places = dict.fromkeys(one["collection"] for one in here)
        raise UserError(
            f"{ours.record} has {ours.measure} of several collections; `collection` is one of {listing(places)}"
        )
    means_of = {"better": values[ours.better], "worse": values[ours.worse]}
    entry = _compared(found["comparisons"], ours, here[0]["collection"])
    if entry is None:
        return Reading(ours, UNTOLD, **means_of, why="the record has no test of this pair")
    return Reading(ours, *verdict(entry), **means_of, entry=entry)


def _compared(comparisons: Sequence[Json], ours: Ours, collection: str) -> Json | None:
    """The comparison of the two rows by the test that counts the most, as the claim has them; None for none."""
    for sign, (system, baseline) in ((1, (ours.better, ours.worse)), (-1, (ours.worse, ours.better))):
        entries = [
            one for one in comparisons if (one["system"], one["baseline"]) == (system, baseline)
            and (one["measure"], one["collection"]) == (ours.measure, collection)
        ]  # fmt: skip
        for entry in sorted(entries, key=lambda one: one["test"] != THE_METHOD)[:1]:
            ends = [None if entry.get(end) is None else sign * entry[end] for end in ("low", "high")]
            low, high = ends if sign == 1 else reversed(ends)
            return {**entry, "difference": sign * entry["difference"], "low": low, "high": high}
    return None


def verdict(entry: Json) -> tuple[str, Scope]:
    """Whether the difference of a comparison is what a claim says, and what that is about.

    A difference is clear where p, corrected for the other differences of its table, is below .05. A test that counts
    trainings as chance speaks of the method, another of the trainings that there were.
    """
    uncorrected = entry.get("p_holm") is None
    chance = entry["p"] if uncorrected else entry["p_holm"]
    if chance >= CLEAR or entry["difference"] == 0:
        return NOT_SHOWN, Scope()
    trainings = 0 if entry["test"] == THE_METHOD else len(entry["seeds"])
    return (HOLDS if entry["difference"] > 0 else DOES_NOT), Scope(uncorrected, trainings)


def summary(readings: Sequence[Reading]) -> tuple[str, str]:
    """The verdict of a claim, which is the worst of its readings, and the same with what it is about, in words."""
    told = [one for one in readings if one.verdict != UNTOLD]
    if not told:
        return UNTOLD, UNTOLD
    word = min((one.verdict for one in told), key=WORST_FIRST.index)
    scopes = [one.scope for one in told if one.verdict == word]
    # Of trainings that were taken as they are, the fewest say the least.
    narrowest = max(scopes, key=lambda scope: (scope.uncorrected, scope.trainings > 0, -scope.trainings))
    count = sum(one.verdict == HOLDS for one in told)
    mixed = word != HOLDS and count > 0
    return word, f"{word}{narrowest}" + (
        f" (of {len(told)} pairs {count} {'holds' if count == 1 else 'hold'})" if mixed else ""
    )
