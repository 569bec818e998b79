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

from components.config import UserError, listing  # noqa: E402
from components.evaluation import result_table  # noqa: E402
from components.evaluation.result_table import p_number, signed, unsigned  # noqa: E402
from components.evaluation.significance import THE_METHOD  # noqa: E402
from workflows.report.page import duration  # noqa: E402

CLAIMS, RECORDS, PAGES = (ROOT / "docs" / name for name in ("claims", "records", "pages/results"))

INDEX = """\
# Results

What the papers claim and what runs here say of it. Made by `python docs/results.py` from `docs/claims` and
`docs/records`; tests keep it current. The papers' numbers are those of `configs/papers`. A run's record is kept by

```
sparring record configs/demo.yaml docs/records/demo.json
```

Runs here are small: two cores, models of one to six layers, collections of thousands of documents. They can show what
holds at that size, and nothing of the papers' own size.

## The rule

A claim says that one row of a table is better than another. A difference is clear where its p is below .05 after Holm's
correction for all differences of its table.

| verdict | when |
|---|---|
| holds | the difference is clear and as claimed, by the test that counts queries and trainings as chance |
| holds in this training | the same by the test that takes the trainings as they are: nothing is said of the method |
| does not hold | the difference is clear, and the other way round |
| not shown | no clear difference |
| cannot be told here | no run that would tell, or the two rows were not tested against each other |

A claim of several pairs has the worst of their verdicts. "Before correction": the record has p alone, without its
correction. Records that are *transcribed* were typed by hand in RESULTS.md from runs whose artifacts are gone; their
tables and words stand on the pages as they stood there. Times are sums over steps of runs that mostly shared their
machine with others: no speed is claimed.
"""

TRANSCRIBED = (
    "*Transcribed: typed by hand in {file} of commit {commit}, from a run whose artifacts are gone. What follows stands "
    "as it stood there.*"
)
WRITTEN = "*Without a record: what follows was written by hand in RESULTS.md and stands as it stood there.*"


def texts() -> dict[str, str]:
    """Every page by its file's name. UserError names a wrong claim, or a record that is on no page."""
    pages = {path.stem: (path, rule.read_page(path)) for path in sorted(CLAIMS.glob("*.yaml"))}
    listed = [name for _, page in pages.values() for name in page.records]
    for name in sorted({path.stem for path in RECORDS.iterdir()}):
        if listed.count(name) != 1:
            raise UserError(
                f"docs/records/{name} is on {listed.count(name)} pages; accepted: one, by a page's `records`"
            )
    readings = {
        name: [_read(path, at, claim) for at, claim in enumerate(page.claims)] for name, (path, page) in pages.items()
    }
    made = {f"{name}.md": _page(name, page, readings[name]) for name, (_, page) in pages.items()}
    return {"index.md": _index({name: page for name, (_, page) in pages.items()}, readings), **made}


def _read(path: Path, at: int, claim: Claim) -> list[Reading]:
    """What the records say of a claim."""
    try:
        for one in claim.theirs:
            rule.size(one)
        return [rule.read(one) for one in claim.ours]
    except UserError as error:
        raise UserError(f"{path}: claims.{at}: {error}") from None


def _index(pages: dict[str, Page], readings: dict[str, list[list[Reading]]]) -> str:
    """The rule, and all claims with their verdicts."""
    lines = [
        INDEX,
        "## All claims",
        "",
        f"| | {HOLDS} | {DOES_NOT} | {NOT_SHOWN} | {UNTOLD} |",
        "|---|---|---|---|---|",
    ]
    for name, page in pages.items():
        words = [rule.summary(of)[0] for of in readings[name]]
        counts = [str(words.count(word) or "") for word in (HOLDS, DOES_NOT, NOT_SHOWN, UNTOLD)]
        lines.append(f"| [{page.title}]({name}.md) | {' | '.join(counts)} |")
    for name, page in pages.items():
        if page.claims:
            lines += ["", f"### {page.title}", "", *_claims(page, readings[name], f"{name}.md")]
    return "\n".join(lines) + "\n"


def _claims(page: Page, readings: list[list[Reading]], place: str = "") -> list[str]:
    """A table of claims and verdicts."""
    lines = ["| | claim | where | verdict |", "|---|---|---|---|"]
    for at, (claim, of) in enumerate(zip(page.claims, readings, strict=True), 1):
        lines.append(f"| [{at}]({place}#claim-{at}) | {claim.says} | {_where(claim)} | {rule.summary(of)[1]} |")
    return lines


def _where(claim: Claim) -> str:
    """Where the paper has a claim."""
    sources = dict.fromkeys(rule.size(one)[2].rpartition("), ")[2] for one in claim.theirs)
    return ", ".join([*([claim.where] if claim.where else []), *sources])


def _page(name: str, page: Page, readings: list[list[Reading]]) -> str:
    """A paper's claims, each with the paper's numbers and ours, and the runs."""
    lines = [f"# {page.title}", "", f"Made by `python docs/results.py` from `docs/claims/{name}.yaml` and the records. "
             "How a verdict comes about is told in [Results](index.md#the-rule).", ""]  # fmt: skip
    lines += [page.about.strip(), ""] if page.about else []
    if page.claims:
        lines += ["## Claims", "", *_claims(page, readings), ""]
        for at, (claim, of) in enumerate(zip(page.claims, readings, strict=True), 1):
            lines += [
                f"### Claim {at}",
                "",
                f"{claim.says} **{_capital(rule.summary(of)[1])}.**",
                "",
                *_told(claim, of),
            ]
    shown = [one for one in page.records if (RECORDS / f"{one}.json").exists() or (RECORDS / f"{one}.md").exists()]
    lines += ["## Runs", ""] if shown else []
    for one in shown:
        lines += _run(one)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _told(claim: Claim, readings: list[Reading]) -> list[str]:
    """The paper's numbers, ours, and what else there is to say."""
    lines = []
    if claim.theirs:
        lines += ["| the paper | measure | better | worse | difference |", "|---|---|---|---|---|"]
        for one in claim.theirs:
            better, worse, source = rule.size(one)
            of = f" of {one.collection}" if one.collection else ""
            lines.append(
                f"| {source.rpartition('), ')[2]} (`{one.table}`) | {one.measure}{of} | {one.better}: {unsigned(better)} "
                f"| {one.worse}: {unsigned(worse)} | {signed(better - worse)} |"
            )
        lines.append("")
    if readings:
        lines += ["| here | measure | better | worse | difference | p | corrected | verdict |", "|---" * 8 + "|"]
        lines += [_row(claim, one) for one in readings]
        lines.append("")
    for text in filter(None, [claim.untold and f"{_capital(claim.untold)}.", claim.note]):
        lines += [text.strip(), ""]
    return lines


def _row(claim: Claim, one: Reading) -> str:
    """What one record says, as a row."""
    ours = one.ours
    run = f"[{ours.record}](#{_anchor(ours.record)})" if rule.record(ours.record) else f"`{ours.record}`"
    cells = [run, ours.measure + (f" of {ours.collection}" if ours.collection else "")]
    cells += [name if value is None else f"{name}: {unsigned(value)}"
              for name, value in ((ours.better, one.better), (ours.worse, one.worse))]  # fmt: skip
    entry = one.entry
    if entry is None:
        return f"| {' | '.join([*cells, '', '', '', f'{one.verdict}: {one.why}'])} |"
    inside = ""
    difference = signed(entry["difference"])
    if entry["low"] is not None:
        difference += f" ({signed(entry['low'])} to {signed(entry['high'])})"
        same = [rule.size(of) for of in claim.theirs if of.measure == ours.measure]
        if one.verdict == NOT_SHOWN and same:
            lies = ["in" if entry["low"] <= better - worse <= entry["high"] else "outside" for better, worse, _ in same]
            inside = f"; the paper's difference lies {' and '.join(dict.fromkeys(lies))} the interval"
    below = "<" if entry.get("below") else ""
    p = p_number(entry["p"])
    corrected = "" if entry.get("p_holm") is None else p_number(entry["p_holm"])
    texts = [text if not text or text.startswith("<") else below + text for text in (p, corrected)]
    test = (
        "the method"
        if entry["test"] == THE_METHOD
        else "this training"
        if len(entry["seeds"]) == 1
        else "these trainings"
    )
    told = f"{one.verdict}{one.scope}{inside}"
    return f"| {' | '.join([*cells, difference, f'{texts[0]} ({test})', texts[1], told])} |"


def _run(name: str) -> list[str]:
    """A run: how it was made, its table as `show` prints it, and what people say of it."""
    record, path = rule.record(name), RECORDS / f"{name}.md"
    title, _, words = path.read_text().partition("\n") if path.exists() else ("", "", "")
    title = title.removeprefix("# ") or (record or {}).get("run", {}).get("config", name)
    lines = [f'<a id="{_anchor(name)}"></a>', "", f"### {title}", ""]
    if record is None:
        lines += [WRITTEN, ""]
    elif "transcribed" in record:
        lines += [TRANSCRIBED.format(**record["transcribed"]), ""]
    else:
        lines += [*_made(record), "```", result_table.table(record), "```", ""]
    return [*lines, words.strip(), ""]


def _made(record: Json) -> list[str]:
    """The command of a run, and what is known of how it was made."""
    run = record["run"]
    command = f"sparring run {run['config']}" + "".join(f" --set {shlex.quote(one)}" for one in run["set"])
    seeds = f"seeds {listing(run['seeds'])}" if len(run["seeds"]) > 1 else f"seed {listing(run['seeds'])}"
    codes = [f"{one['commit'][:10]}{' with changes' if one['changed'] else ''}" for one in run["code"]]
    slowest = sorted(run["steps"].items(), key=lambda item: -item[1]["seconds"])[:3]
    spent = ", ".join(f"{name} {duration(of['seconds'])}" for name, of in slowest)
    sizes = [_collection(one) for one in run["collections"]]
    told = (
        f"{_capital(seeds)}; {' and '.join(run['days'])}; commit {listing(codes)}; {'; '.join(map(_machine, run['machines']))}. "
        f"Its {sum(of['steps'] for of in run['steps'].values())} steps took {duration(run['seconds'])} ({spent}). "
        f"Collections: {'; '.join(sizes)}."
    )
    return ["```", command, "```", "", *textwrap.wrap(told, 118, break_on_hyphens=False), ""]


def _machine(one: Json) -> str:
    """What steps ran on."""
    known = f"{one['cores']} cores of {one['processor']}, " if "processor" in one else ""
    train = one["train"]
    many = f"{train['workers']} {'worker' if train['workers'] == 1 else 'workers'} with {train['threads']} threads"
    return f"{known}{one['device']}, {many if train['threads'] != 1 else many.removesuffix('s')}"


def _collection(one: Json) -> str:
    """How large a collection is."""
    queries = [f"{count:,} {split}" for split, count in (one["queries"] or {}).items()]
    return f"{one['documents']:,} documents" + (f" with {', '.join(queries)} queries" if queries else "")


def _anchor(name: str) -> str:
    return f"run-{name}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def main() -> None:
    """Write the pages, and remove those that are no more."""
    PAGES.mkdir(parents=True, exist_ok=True)
    made = texts()
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
