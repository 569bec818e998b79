"""The verdict of a run: what to deploy, how good it is, against what, at what cost, and what would make it clearer.

The terminal, the report, `metrics.json` and `sparring.read(...).verdict` all show this one object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Self

from sparring.components.config import listing
from sparring.components.evaluation.budget import excess
from sparring.components.evaluation.result_table import BETTER, UNCLEAR, WORSE, p_text, unsigned
from sparring.components.evaluation.significance import THE_METHOD
from sparring.workflows.quantities import size
from sparring.workflows.report.finished import Json

BM25 = "BM25"
MISSING = 4
"""Number of missing systems that an early verdict names."""
MOST_TIMES = 100
"""If a difference would take more than so many times as many queries to become clear, no number is given."""
UNTRAINED = (
    "Nothing was trained: training needs a few hundred judged queries in a split `train`. `recipe: folds` measures "
    "what training on some of the other queries would give."
)
UNASKED = "Nothing was trained, because the config says `train: false`. The split `train` has {:,} judgements."
HELP = '"Where training does not pay" in docs/pages/guides/results.md of Sparring says what may help.'


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The main comparison of a run, on the queries that both systems were measured on."""

    system: str
    baseline: str
    system_value: float
    baseline_value: float
    difference: float
    low: float | None
    """Lower end of the difference's 95 % interval. None for a single query."""
    high: float | None
    p: float
    p_holm: float
    """p after Holm's correction. The outcome follows it."""
    test: str
    outcome: str
    """`better`, `worse` or `no clear difference`."""
    queries: int
    sample_factor: float | None = None
    """Factor of queries at which a difference of this size would be clear. None if it is clear, or if no number
    would do."""
    baseline_is_cheaper: bool = False
    """True if a query costs the baseline less."""
    only_system_trained: bool = False
    """True if the system was trained and the baseline was not."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits on the chosen system, and the systems that exceed them."""

    limits: Mapping[str, float]
    excluded: Mapping[str, Sequence[Json]]
    """Limits that each excluded system exceeds: `limit`, the system's `value` and the `most` that is allowed. `value`
    is None if nothing was measured."""
    without: str | None
    """System that would have been chosen without limits, if it is excluded."""
    gain: float | None
    """Difference of that system from the chosen one on the selection queries."""
    kept: bool
    """True if a system keeps the limits."""
    nearest: str | None
    """The system that exceeds the limits least, if none keeps them. None if one does, or if none was measured."""
    comparison: Comparison | None = None
    """Comparison of `without` with the chosen system, on the measured queries."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a run: `sentences` in words, and the numbers behind them."""

    system: str
    """System that the numbers are of: the one to deploy, or else the system of the main comparison."""
    deploy: str | None
    """System to deploy. None if the recipe compares systems and chooses none."""
    chosen: str | None = None
    """System that the selection queries chose. `search` and `export` use it by default. It differs from `deploy` only
    if it is clearly worse on the measured queries."""
    trained: bool = False
    """True if the system was trained."""
    collection: str
    split: str
    measure: str
    value: float
    low: float | None
    """Lower end of the 95 % interval, within the range of the measure. None for a single query."""
    high: float | None
    queries: int
    collections: int | None = None
    """Number of collections that the value is averaged over. None if it is of one collection."""
    documents: int | None = None
    of_documents: int | None = None
    """Size of the whole collection, if only `documents` of it were searched."""
    comparison: Comparison | None = None
    imported: Sequence[Comparison] = field(default_factory=list)
    """Comparisons of `system` with contenders and with rankings from files, such as those of the search engine in
    use."""
    milliseconds: float | None = None
    """Time of a query, measured in this run with many queries at once. None if it was not measured."""
    baseline_milliseconds: float | None = None
    """The same for the baseline of the comparison."""
    needs: Mapping[str, float] | None = None
    """Measured with one query after another: `p50_ms`, `p95_ms` and `p99_ms` over so many `queries`, `memory_gb` of the
    process, `disk_gb` of all files, `open_seconds`, and `others_share`: the share of the processors that other
    programs used. None if it was not measured."""
    budget: Budget | None = None
    """Limits of the config on the chosen system. None if there are none."""
    money: float | None = None
    """Price of a query, if the config states the price of an address that it asks."""
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the system's `models` and `indexes`."""
    selected_on: str | None = None
    """Split whose queries chose the systems. None if none did."""
    selection_queries: int | None = None
    selection_values: Mapping[str, float] = field(default_factory=dict)
    """Value of each candidate on the selection queries, the best first."""
    why_unselected: str = ""
    moment: str = ""
    """Moment of the run that the verdict is of: `after warm ranker`. Empty if the run is finished."""
    missing: Sequence[str] = field(default_factory=list)
    """Systems that the run measures after that moment."""
    dearer: float | None = None
    """Difference on the selection queries from which a missing system that costs more is chosen in place of `chosen`.
    None if no such system is missing, or if the difference is unknown."""
    cheaper: float | None = None
    """The same for a missing system that costs less. Often negative: it may be a little worse."""
    anything_trained: bool = False
    updates: Sequence[int] = ()
    """Distinct lengths of the run's trainings."""
    judgements: int = 0
    """Number of judgements for training."""
    bm25: float | None = None
    """Value of BM25 alone. None if it was not measured."""

    @classmethod
    def read(cls, written: Json) -> Self:
        """Read what `written` holds, as `metrics.json` has it."""
        values = {key.name: written[key.name] for key in fields(cls)}
        compared, imported = values.pop("comparison"), [Comparison(**entry) for entry in values.pop("imported")]
        budget = values.pop("budget")
        if budget is not None:
            excluded = budget["comparison"]
            budget = Budget(**{**budget, "comparison": None if excluded is None else Comparison(**excluded)})
        comparison = None if compared is None else Comparison(**compared)
        return cls(**values, imported=imported, comparison=comparison, budget=budget)

    @property
    def json(self) -> Json:
        """The verdict as `metrics.json` has it: its numbers, and all sentences."""
        return {**asdict(self), "sentences": self.sentences, "early": self.early, "details": self.details}

    @property
    def sentences(self) -> list[str]:
        """The verdict in words: the system, its value and the comparisons, then its cost, and what would be clearer."""
        without = None if self.budget is None else self.budget.without
        imported = [entry for entry in self.imported if not (self._excluded and entry.baseline == without)]
        rivals = [self._compared, self._excluded, *map(self._against_imported, imported)]
        spoken = [self._headline, *rivals, self._cost, self._next]
        return [sentence for sentence in spoken if sentence]

    @property
    def early(self) -> list[str]:
        """Sentences on an early verdict: what is missing, and what would change the choice. Empty for a finished
        run."""
        if not self.moment:
            return []
        named = listing(map(in_prose, self.missing[:MISSING]))
        more = f" and {len(self.missing) - MISSING} more" if len(self.missing) > MISSING else ""
        sentences = [f"This verdict is early ({self.moment}). Not measured yet: {named}{more}."]
        name, queries = in_prose(self.chosen or self.system), f"on the {self.selected_on} queries"
        if self.dearer is not None:
            gain = f"about {unsigned(self.dearer)} more {self.measure} {queries}"
            sentences.append(f"A system that costs more than {name} must have {gain} to replace it.")
        if self.cheaper is not None:
            word, bound = ("less", "at most") if self.cheaper <= 0 else ("more", "at least")
            number = f"{bound} about {unsigned(abs(self.cheaper))} {word}"
            sentences.append(f"A system that costs less replaces it with {number}.")
        return sentences

    def __str__(self) -> str:
        return " ".join(self.sentences)

    @property
    def details(self) -> list[str]:
        """Notes on the choice of systems, on the trainings, and on further reading."""
        compared, name = self.comparison, self.system
        lines = [self._chosen]
        named = {name, *((compared.system, compared.baseline) if compared else ())}
        if self.deploy and BM25 not in named and self.bm25 is not None:
            lines.append(f"{BM25} alone has {unsigned(self.bm25)}.")
        if self.budget is not None and (beyond := [name for name in self.budget.excluded if name not in named]):
            reached = "; ".join(_with(in_prose(name), self._excess(self.budget, name)) for name in beyond)
            lines.append(f"Beyond the budget: {reached}.")
        if self.deploy is None:
            return [line for line in lines if line]
        if not self.anything_trained and not self.moment:
            lines.append(UNASKED.format(self.judgements) if self.judgements else UNTRAINED)
        alternatives = [] if compared is None else [compared.system, compared.baseline]
        alternative = next((rival for rival in reversed(alternatives) if rival != self.chosen), None)
        if compared is not None and compared.outcome != BETTER and alternative is not None:
            lines.append(f'To search with {in_prose(alternative)} or export it, add `--system "{alternative}"`.')
        if self.anything_trained and not self._pays:
            lines += [f"The trainings had {_span(self.updates)} updates."] if self.updates else []
            lines.append(HELP)
        return [line for line in lines if line]

    @property
    def _pays(self) -> bool:
        """True if the system to deploy is clearly better than its baseline."""
        return (
            self.comparison is not None
            and self.comparison.outcome == BETTER
            and (self.comparison.system == self.system)
        )

    @property
    def _headline(self) -> str:
        """Name the system, with its value, interval and queries."""
        name = in_prose(self.system)
        if self.budget is not None and not self.budget.kept:
            reached = _with(name, self._excess(self.budget, self.system))
            nearest = f"The nearest is {reached}: " if self.budget.nearest is not None else f"{reached} has "
            start = f"No system is within the budget. {nearest}"
        elif self.deploy is not None:
            start = f"Deploy {name}. "
        elif self.selected_on is not None and self.comparison is not None and self.comparison.only_system_trained:
            start = f"The best trained system on the {self.selected_on} queries is {name}. "
        else:
            start = f"{name} has "
        between = ""
        if self.low is not None and self.high is not None:
            between = f" [{unsigned(self.low)}, {unsigned(self.high)}]"
        return f"{start}{self.measure} {unsigned(self.value)}{between} {self._queries}."

    @property
    def _queries(self) -> str:
        """Say what was measured: `on 202 test queries`."""
        noun = "query" if self.queries == 1 else "queries"
        if self.collections is not None:
            places = "collection" if self.collections == 1 else "collections"
            return f"on average over {self.collections} {places} with {self.queries:,} {noun}"
        part = ""
        if self.documents is not None and self.of_documents is not None:
            part = f", searching {self.documents:,} of {self.of_documents:,} documents (easier than all)"
        return f"on {self.queries:,} {self.split} {noun}{part}"

    @property
    def _compared(self) -> str:
        """Compare the system with its alternative."""
        entry = self.comparison
        if entry is None or entry.system in self._beyond:
            return ""
        if entry.system == self.system:
            return self._against(entry)
        system, p = in_prose(entry.system), p_text(entry.p_holm)
        value = unsigned(entry.system_value)
        if entry.outcome == WORSE:
            chosen = f", chosen on {self.selected_on}," if entry.system == self.chosen else ""
            return f"{system}{chosen} is clearly worse ({value}, {p})."
        if entry.outcome == BETTER:
            return f"{system} is clearly better ({value}, {p}), but costs more."
        if entry.only_system_trained:
            rival = f", and {in_prose(entry.baseline)}, the best without training, {unsigned(entry.baseline_value)}"
            against = "" if entry.baseline == self.system else rival
            return f"Training did not clearly help: {system} has {value}{against} ({p})."
        return f"{system} is not clearly better ({value}, {p}){' and costs more' if entry.baseline_is_cheaper else ''}."

    def _against(self, entry: Comparison) -> str:
        """Compare the system with the baseline."""
        role = ""
        if entry.outcome == UNCLEAR:
            merits = ["is cheaper"] if entry.baseline_is_cheaper else []
            merits += ["needs no training"] if entry.only_system_trained else []
            role = f", which {' and '.join(merits)}" if merits else ""
        elif entry.only_system_trained and self.selected_on is not None:
            role = ", the best system without training"
        word = {UNCLEAR: "not clearly better", BETTER: "clearly better", WORSE: "clearly worse"}[entry.outcome]
        alone = " alone" if _is_part(entry.baseline, entry.system) else ""
        numbers = f"{unsigned(entry.baseline_value)}, {p_text(entry.p_holm)}"
        return f"That is {word} than {_with(f'{in_prose(entry.baseline)}{alone}', numbers)}{role}."

    @property
    def _beyond(self) -> set[str]:
        """Systems that the budget excludes."""
        return set() if self.budget is None else {*self.budget.excluded}

    @property
    def _excluded(self) -> str:
        """Say which better system the budget excludes, by which limit, and what that system would gain."""
        budget = self.budget
        if budget is None or budget.without is None or not budget.kept:
            return ""
        start = f"The budget excludes {_with(in_prose(budget.without), self._excess(budget, budget.without))}"
        entry = budget.comparison
        if entry is None:
            return (
                start + "." if budget.gain is None else f"{start}. It has {budget.gain:.3f} more on {self.selected_on}."
            )
        values, p = f"{unsigned(entry.system_value)}, {p_text(entry.p_holm)}", in_prose(entry.baseline)
        word = {UNCLEAR: "not clearly better", BETTER: "clearly better", WORSE: "clearly worse"}[entry.outcome]
        between = "" if entry.low is None or entry.high is None else f" [{entry.low:+.3f}, {entry.high:+.3f}]"
        return f"{start}. That is {word} than {p} ({values}): the difference is {entry.difference:+.3f}{between}."

    @staticmethod
    def _excess(budget: Budget, name: str) -> str:
        """Say how a system exceeds the limits."""
        return ", ".join(map(excess, budget.excluded[name]))

    def _against_imported(self, entry: Comparison) -> str:
        """Compare the system with a contender or a ranking from a file."""
        numbers = f"{unsigned(entry.baseline_value)}, {p_text(entry.p_holm)}"
        if entry.outcome == BETTER:
            return f"{in_prose(self.system)} is clearly better than {_with(in_prose(entry.baseline), numbers)}."
        if entry.outcome == WORSE and entry.baseline in self._beyond and self.budget is not None:
            reached = self._excess(self.budget, entry.baseline)
            return f"{in_prose(entry.baseline)} is clearly better ({numbers}), but beyond the budget ({reached})."
        if entry.outcome == WORSE:
            return f"Keep {in_prose(entry.baseline)}: it is clearly better ({numbers})."
        return f"The difference from {_with(in_prose(entry.baseline), numbers)} is not clear."

    @property
    def _cost(self) -> str:
        """Say how long a query takes, and how large the system is."""
        nouns = {"models": "models", "indexes": "indexes and vectors"}
        sizes = [f"{size(self.bytes[kind])} of {noun}" for kind, noun in nouns.items() if self.bytes.get(kind)]
        needs = " and ".join(sizes)
        paid = "" if self.money is None else f" The addresses charge {1000 * self.money:,.2f} for 1,000 queries."
        if self.needs is not None:
            return f"{_answering(self.needs)}{f' It needs {needs}.' if needs else ''}{paid}"
        if self.milliseconds is None:
            return f"It needs {needs}.{paid}" if needs else paid.strip()
        took = f"With many queries at once, a query took {latency(self.milliseconds)} in this run{self._other_time}."
        return f"{took}{f' It needs {needs}.' if needs else ''}{paid}"

    @property
    def _other_time(self) -> str:
        """Say how long a query takes with the cheaper system that may be as good."""
        entry = self.comparison
        if entry is None or self.baseline_milliseconds is None or self.system != entry.system:
            return ""
        if entry.outcome != UNCLEAR or not entry.baseline_is_cheaper:
            return ""
        return f", and {latency(self.baseline_milliseconds)} with {in_prose(entry.baseline)}"

    @property
    def _next(self) -> str:
        """Say what would make an unclear comparison clear."""
        entry = self.comparison
        if entry is None or entry.sample_factor is None:
            return ""
        times = entry.sample_factor
        if times > MOST_TIMES:
            return f"A difference this small would take more than {MOST_TIMES} times as many queries to become clear."
        if entry.test == THE_METHOD:
            return (
                f"A difference of this size would be clear with about {times:.2g} times as many queries and trainings."
            )
        queries = f"about {_round(times * entry.queries):,} queries in all"
        return f"A difference of this size would be clear with {queries}."

    @property
    def _chosen(self) -> str:
        """Say which queries chose the systems."""
        if self.budget is not None and not self.budget.kept:
            return ""
        if self.why_unselected and self.deploy is None:
            return f"No separate queries chose these systems: {self.why_unselected}."
        if self.selected_on is None:
            return ""
        count = f"{self.selection_queries:,} " if self.selection_queries is not None else ""
        queries = f"the {count}{self.selected_on} queries"
        if self.chosen is None:
            return f"The compared systems were chosen on {queries}."
        name, values = in_prose(self.chosen), self.selection_values
        if self.chosen not in values:
            return f"{name} was chosen on {queries}."
        best = next(name for name in values if name not in self._beyond)
        dearer = f" {in_prose(best)} has {unsigned(values[best])} there, too little more for what it costs."
        rival = None if self.comparison is None else self.comparison.baseline
        beaten = rival in values and rival not in (self.chosen, best)
        baseline = f", and {in_prose(rival)} {unsigned(values[rival])}" if rival is not None and beaten else ""
        return (
            f"{name} was chosen on {queries}, where it has {self.measure} {unsigned(values[self.chosen])}{baseline}."
            f"{'' if best == self.chosen else dearer}"
        )


def in_prose(name: str) -> str:
    """Write a system's name so that it fits into a sentence.

    >>> in_prose("BM25 + start model, interpolated")
    'BM25 + start model (interpolated)'
    """
    head, comma, tail = name.partition(", ")
    return f"{head} ({tail})" if comma else name


def _with(name: str, numbers: str) -> str:
    """Add numbers in brackets to a name.

    >>> _with("BM25", ".661, p = .37"), _with("fusion (interpolated)", ".661, p = .37")
    ('BM25 (.661, p = .37)', 'fusion (interpolated; .661, p = .37)')
    """
    return f"{name[:-1]}; {numbers})" if name.endswith(")") else f"{name} ({numbers})"


def latency(milliseconds: float) -> str:
    """`0.42 ms`, `2.3 ms`, `13 ms`, `1.2 s`."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.{2 if milliseconds < 1 else 1 if milliseconds < 10 else 0}f} ms"


def _answering(needs: Mapping[str, float]) -> str:
    """Say how long a query takes that is asked by itself, and how much memory the process has."""
    half, most, nearly_all = (latency(needs[key]) for key in ("p50_ms", "p95_ms", "p99_ms"))
    return (
        f"Of {needs['queries']:,} queries, asked one after another, half took at most {half}, 95 % at most {most} and "
        f"99 % at most {nearly_all}, in a process of {size(int(1e9 * needs['memory_gb']))}."
    )


def _is_part(name: str, system: str) -> bool:
    """Check whether a system's name says that another one is a part of it."""
    return name != system and re.search(rf"(^|\+ |over ){re.escape(name)}( |,|$)", system) is not None


def _round(count: float) -> int:
    """Round to two digits: 1,400."""
    return int(float(f"{count:.2g}"))


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}{f' to {numbers[-1]:,}' if len(numbers) > 1 else ''}"
