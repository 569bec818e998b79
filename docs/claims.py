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
from sparring.workflows.experiments.expected import KEY, Expected
from sparring.workflows.experiments.loading import name_of

HOLDS, SIGN_ONLY, DOES_NOT, NOT_SHOWN = "holds", "holds in sign only", "does not hold", "not shown"
UNTOLD = "cannot be told here"
WORST_FIRST = (DOES_NOT, NOT_SHOWN, SIGN_ONLY, HOLDS)
CONSTRUCTED = "true by construction, so no evidence"
ORDER = 10.0
"""A difference outside ours is of another order if the larger of both is this many times the smaller."""
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
    once: str = ""
    """What differs between the rows if it was made only once, such as `pre-training`: the verdict is about this one."""
    by_construction: str = ""
    """Why the claim cannot be wrong, if it cannot. Then no run is read: it would be no evidence."""
    untold: str = ""
    """Why no run here can tell, if none can."""
    note: str = ""
    """What else a reader must know."""

    @model_validator(mode="after")
    def _is_read_or_says_why_not(self) -> Self:
        if [bool(self.ours), bool(self.untold), bool(self.by_construction)].count(True) != 1:
            raise ValueError("accepted: one of `ours`, `untold` and `by_construction`")
        pairs = [(our.record, our.better, our.worse, our.collection) for our in self.ours]
        for pair in pairs:
            if pairs.count(pair) > 1:
                raise ValueError(f"ours: {listing(filter(None, pair))} is there twice; one measure decides for a pair")
        return self


class Page(Config):
    """A page of results: `docs/claims/NAME.yaml`."""

    title: str
    about: str = ""
    claims: list[Claim] = []
    records: list[str] = []
    """The runs on this page, in this order; those of which there is no record yet are left out."""


class Scope(NamedTuple):
    """What a verdict is about."""

    trainings: int = 0
    """The number of trainings that were taken as they are; 0 if the test counts trainings as chance."""
    once: str = ""
    """What differs and was made only once."""

    def __str__(self) -> str:
        if self.once:
            return f" in this {self.once}"
        many = "in this training" if self.trainings == 1 else f"in these {self.trainings} trainings"
        return f" {many}" if self.trainings else ""


@dataclass(frozen=True)
class Reading:
    """What one record says of a claim."""

    pair: Ours
    verdict: str
    scope: Scope = Scope()  # noqa: RUF009  (immutable)
    better: float | None = None
    worse: float | None = None
    entry: Json | None = None
    """The comparison, turned so that a positive difference is as the claim says."""
    size: str = ""
    """How the difference compares with the paper's."""
    reason: str = ""
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


def size(published: Theirs) -> tuple[float, float, str]:
    """The paper's value of the better row, of the worse, as shares, and where it has them."""
    paper = expected(published.table)
    columns = {(item.measure, item.collection): item.values for item in paper.of}
    values = columns.get((published.measure, published.collection))
    if values is None:
        accepted = listing(" of ".join(filter(None, column)) for column in columns)
        wanted = " of ".join(filter(None, (published.measure, published.collection)))
        raise UserError(f"{published.table}: no column {wanted}; accepted: {accepted}")
    for row in (published.better, published.worse):
        if row not in values:
            raise UserError(f"{published.table}: {published.measure} has no row {row!r}; accepted: {listing(values)}")
    scale = 100 if paper.unit == "percent" else 1
    return values[published.better] / scale, values[published.worse] / scale, paper.source


def read(pair: Ours, claim: Claim | None = None) -> Reading:
    """What a record says of one row being better than another, as the claim has it.

    UserError names a row or measure that the record does not have, and a record that was typed by hand.
    """
    result = record(pair.record)
    if result is None:
        if pair.record not in configs():
            raise UserError(f"no record {pair.record!r} in docs/records, and no config of that name")
        return Reading(pair, UNTOLD, reason=f"no record yet; `sparring run {configs()[pair.record]}` measures it")
    if "transcribed" in result:
        raise UserError(f"{pair.record} was typed by hand, and its artifacts are gone. It cannot decide a claim.")
    means = result["means"]
    for row in (pair.better, pair.worse):
        names = dict.fromkeys(mean["system"] for mean in means)
        if row not in names:
            raise UserError(f"{pair.record} has no row {row!r}; rows: {listing(names)}")
    place = [
        mean for mean in means if mean["measure"] == pair.measure and pair.collection in (None, mean["collection"])
    ]
    values = {item["system"]: item["value"] for item in place}
    if not {pair.better, pair.worse} <= values.keys():
        pairs = dict.fromkeys(f"{mean['measure']} of {mean['collection']}" for mean in means)
        wanted = pair.measure + (f" of {pair.collection}" if pair.collection else "")
        raise UserError(f"{pair.record} has no {wanted} of both rows; it has: {listing(pairs)}")
    if len({item["collection"] for item in place}) > 1:
        places = dict.fromkeys(item["collection"] for item in place)
        raise UserError(
            f"{pair.record} has {pair.measure} of several collections; `collection` is one of {listing(places)}"
        )
    means_of = {"better": values[pair.better], "worse": values[pair.worse]}
    entry = _compared(result["comparisons"], pair, place[0]["collection"])
    if entry is None:
        return Reading(pair, UNTOLD, **means_of, reason="the record has no test of this pair")
    word, scope = verdict(entry)
    sizes = [size(item)[:2] for item in (claim.theirs if claim else []) if item.measure == pair.measure]
    compared, far = sizes_compared(entry, [better - worse for better, worse in sizes])
    if claim and claim.once and word != NOT_SHOWN:
        scope = Scope(once=claim.once)
    return Reading(pair, SIGN_ONLY if far and word == HOLDS else word, scope, **means_of, entry=entry, size=compared)


def _compared(comparisons: Sequence[Json], pair: Ours, collection: str) -> Json | None:
    """The comparison of the two rows by the test that counts the most, as the claim has them; None for none."""
    for sign, (system, baseline) in ((1, (pair.better, pair.worse)), (-1, (pair.worse, pair.better))):
        entries = [
            comparison
            for comparison in comparisons
            if (comparison["system"], comparison["baseline"]) == (system, baseline)
            and (comparison["measure"], comparison["collection"]) == (pair.measure, collection)
        ]
        for entry in sorted(entries, key=lambda comparison: comparison["test"] != THE_METHOD)[:1]:
            ends = [None if entry.get(end) is None else sign * entry[end] for end in ("low", "high")]
            low, high = ends if sign == 1 else reversed(ends)
            return {**entry, "difference": sign * entry["difference"], "low": low, "high": high}
    return None


def verdict(entry: Json) -> tuple[str, Scope]:
    """Whether the sign of a comparison's difference is what a claim says, and what that is about.

    A difference is clear if p, corrected for the other differences of its table, is below .05. A test that counts
    trainings as chance speaks of the method. Any other test speaks of the trainings that there were.
    """
    if entry["p_holm"] >= CLEAR or entry["difference"] == 0:
        return NOT_SHOWN, Scope()
    trainings = 0 if entry["test"] == THE_METHOD else len(entry["seeds"])
    return (HOLDS if entry["difference"] > 0 else DOES_NOT), Scope(trainings)


def sizes_compared(entry: Json, papers: Sequence[float]) -> tuple[str, bool]:
    """How a difference compares with the paper's by the same measure, and whether all of them are an order away.

    The paper's differences are positive as far as the paper's own tables agree with its claim.
    """
    if not papers:
        return "", False
    actual = entry["difference"]
    inside = sum(entry["low"] <= paper <= entry["high"] for paper in papers)
    if inside and len(papers) > 1:
        return f"{inside} of the paper's {len(papers)} lie in the interval", False
    if inside:
        return "the paper's lies in the interval", False
    paper = min(papers, key=lambda value: abs(value - actual))
    if paper <= 0 or actual <= 0:
        return "the paper's lies outside the interval", False
    larger, reduced = max(paper, actual), min(paper, actual)
    which, times = "nearest is" if len(papers) > 1 else "is", larger / reduced
    compared = f"the paper's {which} {times:.{0 if times >= 3 else 1}f} times as "
    return compared + ("large" if paper > actual else "small"), larger >= ORDER * reduced


def worst(readings: Sequence[Reading]) -> Reading | None:
    """The reading that decides a claim; None if no run tells of it.

    Of readings with the same verdict the one about the fewest trainings decides, as it says the least.
    """
    report = [reading for reading in readings if reading.verdict != UNTOLD]
    return min(
        report,
        default=None,
        key=lambda reading: (
            WORST_FIRST.index(reading.verdict),
            reading.scope.trainings == 0,
            reading.scope.trainings,
        ),
    )


def summary(claim: Claim, readings: Sequence[Reading]) -> tuple[str, str]:
    """The verdict of a claim, which is the worst of its readings, and the same with what it is about, in words."""
    decides = worst(readings)
    if claim.by_construction:
        return UNTOLD, CONSTRUCTED
    if decides is None:
        return UNTOLD, UNTOLD
    report = [reading for reading in readings if reading.verdict != UNTOLD]
    word, narrowest = decides.verdict, decides.scope
    count = sum(item.verdict in (HOLDS, SIGN_ONLY) for item in report)
    mixed = word not in (HOLDS, SIGN_ONLY) and count > 0
    few = f"; {len(report)} of {len(readings)} pairs measured" if len(report) < len(readings) else ""
    return word, f"{word}{narrowest}" + (
        f" (of {len(report)} pairs {count} {'holds' if count == 1 else 'hold'})" if mixed else ""
    ) + few
