"""A paper's results, with which a run's are compared: the key `expected` of any experiment. It changes no step."""

from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from sparring.components.config import Config, listing

KEY = "expected"
"""The key, which recipes do not see."""

Unit = Literal["percent", "share", "number"]
"""Unit of a paper's values. A `number` is in the measure's own unit, such as words or seconds."""

FREE = ("seeds",)
"""Keys that `--set` may change while the results stay comparable with the paper's."""


class ExpectedMeasure(Config):
    """One column of a paper's table: the values of one measure."""

    measure: str = Field(min_length=1)
    """A measure as the run's table has it, such as RR@10 or Spearman, or a number of the report: `entropy`, `alignment`
    and `uniformity` of rated pairs, `words` of the queries that are issued (the generator as the collection), and of a
    system's cost `hours to index`, `GB of index`, `seconds to expand`, `seconds to rerank`, `seconds to retrieve`."""
    query: str | None = None
    """Text of the query that the values are for. If null, they are means over all queries."""
    collection: str | None = None
    """The collection or set, for runs with several. If null, the run has one."""
    values: dict[str, FiniteFloat] = Field(min_length=1)
    """The paper's value for each system, by name. Names that the run's table lacks are systems it does not measure."""
    unit: Unit | None = None
    """Unit of these values. If null, the unit of the table."""
    not_comparable: str = ""
    """Reason why the run's values cannot be compared with these. Empty if they can."""
    rows_not_comparable: dict[str, str] = {}
    """Such reasons for single systems, by system."""

    @model_validator(mode="after")
    def _names_its_rows(self) -> Self:
        for system in self.rows_not_comparable.keys() - self.values.keys():
            raise ValueError(f"rows_not_comparable: {system!r} has no value; accepted: {listing(self.values)}")
        return self


class Expected(Config):
    """The results of a paper's experiment."""

    source: str = Field(min_length=1)
    """Author, year and table."""
    unit: Unit = "percent"
    """Unit of the values."""
    of: list[ExpectedMeasure] = []
    """Columns of the table."""
    unsaid: str = ""
    """Reason why there are no columns, for example a figure whose points are in no table."""
    hardware: str = ""
    """Hardware of the paper's runs, if the paper names it."""
    not_comparable: str = ""
    """Reason why the run's values cannot be compared with any of these. Empty if they can."""

    @model_validator(mode="after")
    def _has_columns_or_says_why_not(self) -> Self:
        if bool(self.of) == bool(self.unsaid):
            raise ValueError("of: columns with the paper's values, or none and `unsaid` with the reason")
        return self

    def after(self, assignments: list[str]) -> Self:
        """Return the paper's results for a run with `--set` values. If these change more than the seeds, no value is
        comparable."""
        changed = [assignment for assignment in assignments if assignment.partition("=")[0].split(".")[0] not in FREE]
        if not changed or self.not_comparable:
            return self
        return self.model_copy(update={"not_comparable": f"this run has --set {' --set '.join(changed)}"})

    def beside(self, means: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the values as shares or numbers, each with the run's mean, its 95 % interval, and the difference.
        These are None if the run has no such row. `lies` is `within` the interval, `above`, `below`, `not measured`
        or `not comparable`; `sentence` says it."""
        rows = []
        for column in self.of:
            scale = 100 if (column.unit or self.unit) == "percent" else 1
            by_system = {
                mean["system"]: mean
                for mean in means
                if mean["measure"] == column.measure
                and column.collection in (None, mean["collection"])
                and mean.get("query") == column.query
            }
            measure = column.measure if column.query is None else f"{column.measure} of {column.query!r}"
            for system, value in column.values.items():
                reason = self.not_comparable or column.not_comparable or column.rows_not_comparable.get(system, "")
                result = {key: by_system.get(system, {}).get(key) for key in ("value", "low", "high")}
                place = {"system": system, "collection": column.collection, "measure": measure}
                rows.append({**place, "expected": value / scale, **result, **_told(value / scale, reason, **result)})
        return {"source": self.source, "unsaid": self.unsaid, "rows": rows}


def _told(expected: float, reason: str, value: float | None, low: float | None, high: float | None) -> dict[str, Any]:
    """Compare a paper's value with a run's: the difference, where the paper's lies, and both in a sentence."""
    if value is None:
        return {"difference": None, "lies": "not measured", "sentence": "Not comparable: this run has no such row."}
    difference = value - expected
    if reason:
        return {"difference": difference, "lies": "not comparable", "sentence": f"Not comparable: {reason}."}
    if low is None or high is None:
        lies = "above" if expected > value else "below" if expected < value else "within"
        reference = f"this run's {value:.3f}, which has no interval"
    else:
        lies = "above" if expected > high else "below" if expected < low else "within"
        reference = f"the 95 % interval of this run, {low:.3f} to {high:.3f}"
    return {"difference": difference, "lies": lies, "sentence": f"The paper's {expected:.3f} lies {lies} {reference}."}
