"""The pages of results, docs/pages/results, made from the papers' claims and the records of runs:

python docs/results.py
"""

from __future__ import annotations

import html
import re
import shlex
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import claims as rule  # noqa: E402
from claims import DOES_NOT, HOLDS, NOT_SHOWN, SIGN_ONLY, UNTOLD, Claim, Json, Page, Reading  # noqa: E402
from papers import PAPERS  # noqa: E402

from sparring.components.config import UserError, listing  # noqa: E402
from sparring.components.evaluation import result_table  # noqa: E402
from sparring.components.evaluation.result_table import p_number, signed, unsigned  # noqa: E402
from sparring.components.evaluation.significance import THE_METHOD  # noqa: E402
from sparring.workflows.report.page import duration  # noqa: E402

CLAIMS, PAGES = ROOT / "docs" / "claims", ROOT / "docs" / "pages" / "results"

INTRODUCTION = """\
# Results

This page counts how many of the papers' claims hold in our runs on small public collections. Each method's page has the
claims, the numbers, the statistics and the runs behind them.
"""
RULE = """\
## How to read these pages

The runs are small: models of one to six layers, thousands of documents, a few hundred updates. They show what holds at
that size. They do not repeat the papers' own experiments. Most runs shared their machine with other programs, so their
times say nothing about speed. `tests/benchmarks/RESULTS.md` measures speed.

The start model is all-MiniLM-L6-v2, or its first layers. It is no zero-shot baseline: its card lists SQuAD,
CodeSearchNet, Natural Questions, TriviaQA, MS MARCO and S2ORC among its training data.

## The rule

A claim says that one row of a table is better than another. A difference is clear if its p is below .05 after Holm's
correction for all differences of its table. The verdict has a sign and a size.

| verdict | meaning |
|---|---|
| holds | The difference is clear and has the claimed sign. The test counts queries and trainings as chance. |
| holds in these trainings | The same, but the test counts queries alone. Other trainings may differ. |
| holds in this pre-training | The same, but the rows differ in something that was made only once. |
| holds in sign only | The sign holds. The paper's difference is outside our interval and ten times as large or small. |
| does not hold | The difference is clear and has the opposite sign. |
| not shown | There is no clear difference. |
| cannot be told here | No run measured both rows, or the claim is true by construction. |

A claim with several pairs of rows gets the worst of their verdicts, and says how many pairs were measured. Each
experiment counts once, with one measure. Sizes are compared only if the paper has the same measure.

*Transcribed* tables were typed by hand from runs whose artifacts are gone. They decide nothing, and stay only until
somebody measures them again. Their p comes from a paired randomization test over the queries and is not corrected.

## Add a run

These commands record a run and write the pages again:

```
sparring record configs/demo.yaml docs/records/demo.json
python docs/results.py
```

Add the record's name to `records` of a file in `docs/claims`. Tests keep the pages current.

## Corrections

Before 2026-11-29 these pages counted 77 claims, and many verdicts said more than was measured.

- Transcribed tables decided claims. All claims of EAR and most of SamToNe and CODER rested on such tables alone.
- A pair of rows counted several times: with several measures, from two runs of one experiment, on dev and on test.
- "Holds" stood beside a difference that was 40 times smaller than the paper's. Now sign and size are apart.
- SimLM's starts were compared with five fine-tunings of one pre-training each. The verdict now names that pre-training.
- AR2's first claim mixed the paper's objective with another one. They are two claims now.
- Claims that cannot be wrong were counted as evidence. For example, the best of 50 expansions is never worse than the
  chosen expansion.

Older records order equal scores differently, and their interpolated systems spread BM25's scores from 0 to 1. Today
BM25's scores are divided by the highest ([Read the results](../guides/results.md)). Rankings of single retrievers are
the same unless documents have copies.
"""
TRANSCRIBED = (
    "*Transcribed by hand from {file} of commit {commit}. Its artifacts are gone, so this table decides no claim.*"
)
WORDS_ALONE = "*Written by hand. There is no record of this run.*"


def texts() -> dict[str, str]:
    """Every page by its file's name. UserError names a wrong claim, or a record that is not on one page."""
    paths = sorted(CLAIMS.glob("*.yaml"), key=lambda path: ([*PAPERS, path.stem].index(path.stem), path.stem))
    pages = {path.stem: rule.read_page(path) for path in paths}
    listed = [name for page in pages.values() for name in page.records]
    for path in sorted(rule.RECORDS.iterdir()):
        if (count := listed.count(path.stem)) != 1:
            raise UserError(f"docs/records/{path.name} is in `records` of {count} pages in docs/claims; accepted: one")
    readings = {
        name: [_read(name, position, claim) for position, claim in enumerate(page.claims)]
        for name, page in pages.items()
    }
    homes = {record: f"{name}.md" for name, page in pages.items() for record in page.records}
    return {"index.md": _index(pages, readings)} | {
        f"{name}.md": _page(name, page, readings[name], homes) for name, page in pages.items()
    }


def _read(name: str, line: int, claim: Claim) -> list[Reading]:
    """What the records say of a claim."""
    try:
        for their in claim.theirs:
            rule.size(their)
        return [rule.read(our, claim) for our in claim.ours]
    except UserError as error:
        raise UserError(f"docs/claims/{name}.yaml: claims.{line}: {error}") from None


def _index(pages: dict[str, Page], readings: dict[str, list[list[Reading]]]) -> str:
    """Count the verdicts of each page, and state the rule."""
    verdicts = (HOLDS, SIGN_ONLY, DOES_NOT, NOT_SHOWN, UNTOLD)
    lines = [INTRODUCTION, *_head("method", "claims", *verdicts)]
    for name, page in pages.items():
        words = [rule.summary(*pair)[0] for pair in zip(page.claims, readings[name], strict=True)]
        counts = (str(words.count(word) or "") for word in verdicts)
        lines.append(_cells(f"[{page.title}]({name}.md)", str(len(words)), *counts))
    return "\n".join([*lines, "", RULE])


def _page(name: str, page: Page, readings: list[list[Reading]], homes: dict[str, str]) -> str:
    """Write a method's verdicts in a table, then the folded evidence and runs. `homes` maps records to pages."""
    lines = [f"# {page.title}", "", page.about, "", "## Verdicts", "", *_overview(page, readings), ""]
    lines += ["[The rule](index.md#the-rule) says how a verdict comes about.", "", "## Evidence", ""]
    for position, (claim, pairs) in enumerate(zip(page.claims, readings, strict=True), 1):
        evidence = [
            f"**{_capital(rule.summary(claim, pairs)[1])}.**",
            "",
            *_theirs(claim),
            *_ours(claim, pairs, homes),
            f"{_capital(claim.untold or claim.by_construction)}." if not claim.ours else "",
            "",
            claim.note,
        ]
        lines += _folded(f"claim-{position}", f"{position}. {claim.says.removesuffix('.')}", evidence)
    lines += ["## Runs", ""] if page.records else []
    for record in page.records:
        lines += _run(record)
    lines += [f"`python docs/results.py` makes this page from `docs/claims/{name}.yaml` and `docs/records`."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _folded(anchor: str, title: str, lines: list[str]) -> list[str]:
    """Fold lines under a title that links can name."""
    summary = f"<summary>{html.escape(title, quote=False).replace('`', '')}</summary>"
    return [f'<details markdown="1" id="{anchor}">', summary, "", *lines, "", "</details>", ""]


def _overview(page: Page, readings: list[list[Reading]]) -> list[str]:
    """Tabulate claims with the paper's difference, ours and the verdict. Ours is that of the pair that decides."""
    lines = _head("", "claim", "the paper", "difference here", "verdict")
    for position, (claim, pairs) in enumerate(zip(page.claims, readings, strict=True), 1):
        where = dict.fromkeys([claim.where, *(_short(rule.size(pair)[2]) for pair in claim.theirs)])
        decides = rule.worst(pairs)
        actual = (
            "" if decides is None or decides.entry is None else f"{_difference(decides.entry)} {decides.pair.measure}"
        )
        paper = ": ".join(filter(None, (", ".join(filter(None, where)), _papers(claim, decides))))
        lines.append(
            _cells(f"[{position}](#claim-{position})", claim.says, paper, actual, rule.summary(claim, pairs)[1])
        )
    return lines


def _papers(claim: Claim, decides: Reading | None) -> str:
    """The paper's difference, by the measure of the pair that decides if the paper has it."""
    same = [their for their in claim.theirs if decides is not None and their.measure == decides.pair.measure]
    for item in (same or claim.theirs)[:1]:
        better, worse, _ = rule.size(item)
        return f"{signed(better - worse)} {item.measure}"
    return ""


def _theirs(claim: Claim) -> list[str]:
    """The paper's numbers."""
    lines = _head("the paper", "measure", "better", "worse", "difference") if claim.theirs else []
    for their in claim.theirs:
        better, worse, source = rule.size(their)
        rows = f"{their.better}: {unsigned(better)}", f"{their.worse}: {unsigned(worse)}"
        report = (f"{_short(source)} (`{their.table}`)", _measure(their), *rows, signed(better - worse))
        lines.append(_cells(*report))
    return [*lines, ""]


def _ours(claim: Claim, readings: list[Reading], homes: dict[str, str]) -> list[str]:
    """What each record says."""
    lines = _head("here", "difference", "p", "of", "run") if readings else []
    for reading in readings:
        actual, entry = reading.pair, reading.entry
        place = f"{homes.get(actual.record)}#{_anchor(actual.record)}"
        run = f"[{actual.record}]({place})" if rule.record(actual.record) else f"`{actual.record}`"
        better, worse = (
            name if value is None else f"{name} ({unsigned(value)})"
            for name, value in ((actual.better, reading.better), (actual.worse, reading.worse))
        )
        subject = f"{_measure(actual)}: {better} against {worse}"
        if entry is None:
            lines.append(_cells(f"{reading.verdict}: {reading.reason}", "", "", subject, run))
        else:
            report = f"{reading.verdict}{reading.scope}" + (f"; {reading.size}" if reading.size else "")
            lines.append(_cells(report, _difference(entry), _chance(entry), subject, run))
    return [*lines, ""]


def _difference(entry: Json) -> str:
    ends = "" if entry["low"] is None else f" ({signed(entry['low'])} to {signed(entry['high'])})"
    return signed(entry["difference"]) + ends


def _chance(entry: Json) -> str:
    """p, the same corrected for the other differences of the table, and what it counts as chance."""
    p, corrected = p_number(entry["p"]), p_number(entry["p_holm"])
    trainings = "this training" if len(entry["seeds"]) == 1 else "these trainings"
    counted = "the method" if entry["test"] == THE_METHOD else trainings
    return f"{p}, corrected {corrected}, {counted}"


def _run(name: str) -> list[str]:
    """A run: how it was made, its table as `show` prints it, and what people say of it; empty for none yet."""
    record, path = rule.record(name), rule.RECORDS / f"{name}.md"
    title, _, words = path.read_text().partition("\n") if path.exists() else ("", "", "")
    if record is None and not words:
        return []
    if record is None:
        lines = [WORDS_ALONE, ""]
    elif "transcribed" in record:
        lines = [TRANSCRIBED.format(**record["transcribed"]), ""]
    else:
        lines = [*_made(record["run"]), "```", result_table.table(record), "```", ""]
    return _folded(_anchor(name), title.removeprefix("# ") or name, [*lines, words.strip()])


def _made(run: Json) -> list[str]:
    """The command of a run, and what is known of how it was made."""
    command = f"sparring run {run['config']}" + "".join(f" --set {shlex.quote(item)}" for item in run["set"])
    codes = [item["commit"][:10] + (", changed," if item["changed"] else "") for item in run["code"]]
    slowest = sorted(run["steps"].items(), key=lambda item: -item[1]["seconds"])[:3]
    spent = [f"{name} {duration(subject['seconds'])}" for name, subject in slowest]
    steps = sum(value["steps"] for value in run["steps"].values())
    report = [
        f"{'Seeds' if len(run['seeds']) > 1 else 'Seed'} {listing(run['seeds'])}; {' to '.join(run['days'])}; commit "
        f"{listing(codes)}.",
        f"Collections: {'; '.join(map(_collection, run['collections']))}.",
        f"Ran on {'; '.join(dict.fromkeys(map(_machine, run['machines'])))}.",
        f"{steps} steps took {duration(run['seconds'])}; of it {', '.join(spent)}.",
    ]
    return ["```", command, "```", "", *textwrap.wrap(" ".join(report), 118, break_on_hyphens=False), ""]


def _machine(single: Json) -> str:
    """What steps ran on."""
    existing = f"{single['cores']} cores of {single['processor']}, " if "processor" in single else ""
    workers, threads = single["train"]["workers"], single["train"]["threads"]
    item = "1 thread" if threads == 1 else f"{threads or 'all'} threads"
    return f"{existing}device {single['device']}, {workers} {'worker' if workers == 1 else 'workers'} of {item}"


def _collection(single: Json) -> str:
    """How large a collection is."""
    queries = [f"{count:,} of {split}" for split, count in (single["queries"] or {}).items()]
    return f"{single['name']}, {single['documents']:,} documents" + (
        f", queries: {', '.join(queries)}" if queries else ""
    )


def _measure(single: rule.Theirs | rule.Ours) -> str:
    return single.measure + (f" of {single.collection}" if single.collection else "")


def _short(source: str) -> str:
    """A table without its authors."""
    return source.rpartition("), ")[2]


def _head(*names: str) -> list[str]:
    return [_cells(*names), "|---" * len(names) + "|"]


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _anchor(name: str) -> str:
    return f"run-{name}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def main() -> None:
    """Write the pages, and remove those that are no more."""
    output = texts()
    PAGES.mkdir(parents=True, exist_ok=True)
    for path in PAGES.glob("*.md"):
        if path.name not in output:
            path.unlink()
    for name, text in output.items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
