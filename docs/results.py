"""The pages of results, docs/pages/results, made from the papers' claims and the records of runs:

python docs/results.py
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import claims as rule  # noqa: E402
from claims import DOES_NOT, HOLDS, NOT_SHOWN, UNTOLD, Claim, Json, Page, Reading  # noqa: E402
from papers import PAPERS  # noqa: E402

from sparring.components.config import UserError, listing  # noqa: E402
from sparring.components.evaluation import result_table  # noqa: E402
from sparring.components.evaluation.result_table import p_number, signed, unsigned  # noqa: E402
from sparring.components.evaluation.significance import THE_METHOD  # noqa: E402
from sparring.workflows.report.page import duration  # noqa: E402

CLAIMS, PAGES = ROOT / "docs" / "claims", ROOT / "docs" / "pages" / "results"

ABOUT = """\
# Results

What the papers claim, and what runs here say of it. `python docs/results.py` makes these pages from `docs/claims` and
`docs/records`; tests keep them current. The papers' numbers are those of `configs/papers`. The record of a run is kept
by one command:

```
sparring record configs/demo.yaml docs/records/demo.json
```

Runs here are small: two cores, models of one to six layers, thousands of documents. They can show what holds at that
size, and nothing of the papers' own. The start model is all-MiniLM-L6-v2, or its first layers, and its row is no
zero-shot result: its card lists SQuAD, CodeSearchNet, Natural Questions, TriviaQA, MS MARCO and S2ORC among its
training data.

## The rule

A claim says that one row of a table is better than another. A difference is clear where its p is below .05 after Holm's
correction for all differences of its table.

| verdict | when |
|---|---|
| holds | the difference is clear and as claimed, by the test that counts queries and trainings as chance |
| holds in this training | the same by the test that takes the trainings as they are: nothing is said of the method |
| does not hold | the difference is clear, and the other way round |
| not shown | no clear difference |
| cannot be told here | no run tells of it, or none tested the two rows against each other |

A claim of several pairs has the worst of their verdicts. "Before correction" means that the record has p alone, without
its correction.

Tables that are *transcribed* were typed by hand in RESULTS.md, from runs whose artifacts are gone. They and the words
about them stand here as they stood there. Where these say nothing else, they are of 2 cores of an Intel Xeon with AMX
and no GPU, and p comes from a paired randomization test over the queries, which takes the trainings as they are, and is
not corrected.

Records made before 2026-11-29 order equal scores differently, and their interpolated systems spread BM25's scores from
0 to 1. Today BM25's scores are divided by the highest ([Read the results](../guides/results.md)). Rankings of single
retrievers without copies among their documents are the same.

Steps of most runs shared their machine with other programs: no speed is claimed by their times. Speed is measured in
`tests/benchmarks/RESULTS.md`.
"""
TRANSCRIBED = (
    "*Transcribed: typed by hand in {file} of commit {commit}, from a run whose artifacts are gone. What follows "
    "stands as it stood there.*"
)
WORDS_ALONE = "*No record: what follows was written by hand in RESULTS.md, and stands as it stood there.*"


def texts() -> dict[str, str]:
    """Every page by its file's name. UserError names a wrong claim, or a record that is not on one page."""
    paths = sorted(CLAIMS.glob("*.yaml"), key=lambda path: ([*PAPERS, path.stem].index(path.stem), path.stem))
    pages = {path.stem: rule.read_page(path) for path in paths}
    listed = [name for page in pages.values() for name in page.records]
    for path in sorted(rule.RECORDS.iterdir()):
        if (count := listed.count(path.stem)) != 1:
            raise UserError(f"docs/records/{path.name} is in `records` of {count} pages in docs/claims; accepted: one")
    readings = {name: [_read(name, at, claim) for at, claim in enumerate(page.claims)] for name, page in pages.items()}
    homes = {record: f"{name}.md" for name, page in pages.items() for record in page.records}
    return {"index.md": _index(pages, readings)} | {
        f"{name}.md": _page(name, page, readings[name], homes) for name, page in pages.items()
    }


def _read(name: str, at: int, claim: Claim) -> list[Reading]:
    """What the records say of a claim."""
    try:
        for one in claim.theirs:
            rule.size(one)
        return [rule.read(one) for one in claim.ours]
    except UserError as error:
        raise UserError(f"docs/claims/{name}.yaml: claims.{at}: {error}") from None


def _index(pages: dict[str, Page], readings: dict[str, list[list[Reading]]]) -> str:
    """The rule, and all claims with their verdicts."""
    verdicts = (HOLDS, DOES_NOT, NOT_SHOWN, UNTOLD)
    lines = [ABOUT, "## All claims", "", *_head("", *verdicts)]
    for name, page in pages.items():
        words = [rule.summary(of)[0] for of in readings[name]]
        lines.append(_cells(f"[{page.title}]({name}.md)", *(str(words.count(word) or "") for word in verdicts)))
    for name, page in pages.items():
        lines += ["", f"### {page.title}", "", *_overview(page, readings[name], f"{name}.md")]
    return "\n".join(lines) + "\n"


def _page(name: str, page: Page, readings: list[list[Reading]], homes: dict[str, str]) -> str:
    """A paper's claims, each with the paper's numbers and ours, and the runs. `homes` are the pages of all records."""
    made = f"Made by `python docs/results.py` from `docs/claims/{name}.yaml` and `docs/records`."
    lines = [f"# {page.title}", "", f"{made} [Results](index.md#the-rule) says how a verdict comes about.", ""]
    lines += [page.about, ""]
    lines += ["## Claims", "", *_overview(page, readings), ""]
    for at, (claim, of) in enumerate(zip(page.claims, readings, strict=True), 1):
        verdict = _capital(rule.summary(of)[1])
        lines += [
            f'<a id="claim-{at}"></a>',
            "",
            f"### {at}. {claim.says.removesuffix('.')}",
            "",
            f"**{verdict}.**",
            "",
        ]
        lines += [
            *_theirs(claim),
            *_ours(claim, of, homes),
            f"{_capital(claim.untold)}." if claim.untold else "",
            "",
            claim.note,
            "",
        ]
    lines += ["## Runs", ""] if page.records else []
    for one in page.records:
        lines += _run(one)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _overview(page: Page, readings: list[list[Reading]], place: str = "") -> list[str]:
    """Claims with their verdicts."""
    lines = _head("", "claim", "where", "verdict")
    for at, (claim, of) in enumerate(zip(page.claims, readings, strict=True), 1):
        where = dict.fromkeys([claim.where, *(_short(rule.size(one)[2]) for one in claim.theirs)])
        told = (f"[{at}]({place}#claim-{at})", claim.says, ", ".join(filter(None, where)), rule.summary(of)[1])
        lines.append(_cells(*told))
    return lines


def _theirs(claim: Claim) -> list[str]:
    """The paper's numbers."""
    lines = _head("the paper", "measure", "better", "worse", "difference") if claim.theirs else []
    for one in claim.theirs:
        better, worse, source = rule.size(one)
        rows = f"{one.better}: {unsigned(better)}", f"{one.worse}: {unsigned(worse)}"
        told = (f"{_short(source)} (`{one.table}`)", _measure(one), *rows, signed(better - worse))
        lines.append(_cells(*told))
    return [*lines, ""]


def _ours(claim: Claim, readings: list[Reading], homes: dict[str, str]) -> list[str]:
    """What each record says."""
    lines = _head("here", "difference", "p", "of", "run") if readings else []
    for one in readings:
        ours, entry = one.ours, one.entry
        place = f"{homes.get(ours.record)}#{_anchor(ours.record)}"
        run = f"[{ours.record}]({place})" if rule.record(ours.record) else f"`{ours.record}`"
        better, worse = (name if value is None else f"{name} ({unsigned(value)})"
                         for name, value in ((ours.better, one.better), (ours.worse, one.worse)))  # fmt: skip
        of = f"{_measure(ours)}: {better} against {worse}"
        if entry is None:
            lines.append(_cells(f"{one.verdict}: {one.why}", "", "", of, run))
        else:
            told = f"{one.verdict}{one.scope}{_inside(claim, one)}"
            lines.append(_cells(told, _difference(entry), _chance(entry), of, run))
    return [*lines, ""]


def _difference(entry: Json) -> str:
    ends = "" if entry["low"] is None else f" ({signed(entry['low'])} to {signed(entry['high'])})"
    return signed(entry["difference"]) + ends


def _inside(claim: Claim, one: Reading) -> str:
    """Whether the interval of a difference that is not shown has the paper's, by the same measure."""
    sizes = [rule.size(of)[:2] for of in claim.theirs if of.measure == one.ours.measure]
    if one.verdict != NOT_SHOWN or one.entry is None or one.entry["low"] is None or not sizes:
        return ""
    inside = [one.entry["low"] <= better - worse <= one.entry["high"] for better, worse in sizes]
    lies = "in" if all(inside) else "partly in" if any(inside) else "outside"
    return f"; the paper's difference lies {lies} this interval"


def _chance(entry: Json) -> str:
    """p, the same corrected for the other differences of the table, and what it counts as chance."""
    p, corrected = (_p(entry.get(key), below=entry.get("below", False)) for key in ("p", "p_holm"))
    trainings = "this training" if len(entry["seeds"]) == 1 else "these trainings"
    counted = "the method" if entry["test"] == THE_METHOD else trainings
    return ", ".join(filter(None, [p, corrected and f"corrected {corrected}", counted]))


def _p(value: float | None, *, below: bool) -> str:
    """A p; of one that was transcribed it may be known that it is below."""
    text = "" if value is None else p_number(value)
    return f"<{text}" if below and text and not text.startswith("<") else text


def _run(name: str) -> list[str]:
    """A run: how it was made, its table as `show` prints it, and what people say of it; empty for none yet."""
    record, path = rule.record(name), rule.RECORDS / f"{name}.md"
    title, _, words = path.read_text().partition("\n") if path.exists() else ("", "", "")
    if record is None and not words:
        return []
    lines = [f'<a id="{_anchor(name)}"></a>', "", f"### {title.removeprefix('# ') or name}", ""]
    if record is None:
        lines += [WORDS_ALONE, ""]
    elif "transcribed" in record:
        lines += [TRANSCRIBED.format(**record["transcribed"]), ""]
    else:
        lines += [*_made(record["run"]), "```", result_table.table(record), "```", ""]
    return [*lines, words.strip(), ""]


def _made(run: Json) -> list[str]:
    """The command of a run, and what is known of how it was made."""
    command = f"sparring run {run['config']}" + "".join(f" --set {shlex.quote(one)}" for one in run["set"])
    codes = [one["commit"][:10] + (", changed," if one["changed"] else "") for one in run["code"]]
    slowest = sorted(run["steps"].items(), key=lambda item: -item[1]["seconds"])[:3]
    spent = [f"{name} {duration(of['seconds'])}" for name, of in slowest]
    steps = sum(of["steps"] for of in run["steps"].values())
    told = [
        f"{'Seeds' if len(run['seeds']) > 1 else 'Seed'} {listing(run['seeds'])}; {' to '.join(run['days'])}; commit "
        f"{listing(codes)}.",
        f"Collections: {'; '.join(map(_collection, run['collections']))}.",
        f"Ran on {'; '.join(dict.fromkeys(map(_machine, run['machines'])))}.",
        f"{steps} steps took {duration(run['seconds'])}; of it {', '.join(spent)}.",
    ]
    return ["```", command, "```", "", *textwrap.wrap(" ".join(told), 118, break_on_hyphens=False), ""]


def _machine(one: Json) -> str:
    """What steps ran on."""
    known = f"{one['cores']} cores of {one['processor']}, " if "processor" in one else ""
    workers, threads = one["train"]["workers"], one["train"]["threads"]
    each = "1 thread" if threads == 1 else f"{threads or 'all'} threads"
    return f"{known}device {one['device']}, {workers} {'worker' if workers == 1 else 'workers'} of {each}"


def _collection(one: Json) -> str:
    """How large a collection is."""
    queries = [f"{count:,} of {split}" for split, count in (one["queries"] or {}).items()]
    return f"{one['name']}, {one['documents']:,} documents" + (f", queries: {', '.join(queries)}" if queries else "")


def _measure(one: rule.Theirs | rule.Ours) -> str:
    return one.measure + (f" of {one.collection}" if one.collection else "")


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
    made = texts()
    PAGES.mkdir(parents=True, exist_ok=True)
    for path in PAGES.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
