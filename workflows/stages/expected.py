"""What a paper has where a run has its results: the key `expected` of any experiment, which changes no step."""

from typing import Any, Literal

from pydantic import Field, FiniteFloat

from components.config import Config

KEY = "expected"
"""The key, which recipes do not see."""


class ExpectedMeasure(Config):
    """A measure's column of a table."""

    measure: str = Field(min_length=1)
    """A measure as the run's table has it: RR@10, Spearman."""
    collection: str | None = None
    """The collection or set, where a run has several. Null for that of a run with one."""
    values: dict[str, FiniteFloat] = Field(min_length=1)
    """The paper's value of each system: a row of the run's table, or one that this run has not, under its own name."""


class Expected(Config):
    """The results of a paper's experiment."""

    source: str = Field(min_length=1)
    """Author, year and table."""
    unit: Literal["percent", "share"] = "percent"
    """What the values are. A run's are shares."""
    of: list[ExpectedMeasure] = Field(min_length=1)
    """Its columns."""

    def beside(self, means: list[dict[str, Any]]) -> dict[str, Any]:
        """The values as shares, each with the run's mean and its 95 % interval, None where the run has no such row; and
        whether the value lies `within` the interval, `above` or `below`, or is `not measured`."""
        scale = 100 if self.unit == "percent" else 1
        rows = []
        for column in self.of:
            own = {
                one["system"]: one for one in means
                if one["measure"] == column.measure and column.collection in (None, one["collection"])
            }  # fmt: skip
            for system, value in column.values.items():
                found = {key: own.get(system, {}).get(key) for key in ("value", "low", "high")}
                row = {"system": system, "collection": column.collection, "measure": column.measure}
                rows.append({**row, "expected": value / scale, **found, "lies": _lies(value / scale, **found)})
        return {"source": self.source, "rows": rows}


def _lies(expected: float, value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "not measured"
    if expected > (value if high is None else high):
        return "above"
    return "below" if expected < (value if low is None else low) else "within"
