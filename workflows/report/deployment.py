"""Which system to deploy, how good it is, and what it takes: what a run of `adapt` ends with."""

from collections.abc import Sequence

from sparring.components.evaluation.measures import within
from sparring.components.evaluation.result_table import (
    chosen_on,
    leading_entry,
    p_number,
    p_text,
    signed,
    unsigned,
    verdict,
)
from sparring.components.evaluation.significance import THE_METHOD
from sparring.workflows.quantities import size
from sparring.workflows.report.finished import Json
from sparring.workflows.report.sections.choice import choice
from sparring.workflows.report.sections.costs import SEARCHED, costs
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row, SystemCost

UNTRAINED = (
    "Nothing was trained. Training needs some hundred judged queries in a split `train`. `recipe: folds` measures what "
    "training on a part of the other queries would give."
)
UNASKED = "Nothing was trained, because the config says `train: false`. The split `train` has {:,} judgements."
HELP = "Where training does not pay, in docs/pages/guides/results.md of Sparring, says what may help."
BM25 = "BM25"


def deployment(
    metrics: Json, systems: Sequence[Row], spent: Sequence[SystemCost], store: Store, results: Step | None
) -> Json | None:
    """The system that was chosen to be deployed, with `sentences` that say all of this; None where none was.

    `by` is the split that was chosen by, and `there` has each system's measure on it, the best first. `value` is the
    measure on the measured split, with the ends of its 95 % interval. `against` is the leading comparison, `bm25` what
    BM25 alone has. `judgements` are those of the training queries, `milliseconds` is a query's time, `bytes` are those
    of its models and of what is searched, `updates` how long the trainings were.
    """
    lead = metrics["leading"] or {}
    name = lead.get("deploy")
    means = [one for one in metrics["means"] if one["system"] == name]
    if not means:
        return None
    mean = next(one for one in means if lead["measure"] in (None, one["measure"]))
    cost = next(one for one in spent if one.system == name)
    timed = next(iter(costs([cost], store, metrics["rows"])), None)
    compared = leading_entry(metrics, mean["measure"])
    told = ("system", "baseline", "difference", "p", "p_holm", "test")
    against = None if compared is None else {key: compared[key] for key in told}
    chosen, data = choice(results, store), next(one.data for one in systems if one.name == name)
    there = {} if chosen is None else {one["system"]: one["value"] for one in chosen["candidates"]}
    summary = (store.record(data) or {}).get("summary", {})
    same = ("collection", "split", "measure", "queries")
    plain = [
        one["value"] for one in metrics["means"] if one["system"] == BM25 and all(one[key] == mean[key] for key in same)
    ]
    trainings = [node for node in graph([results]) if node.function.__name__ == "train"] if results is not None else []
    made: Json = {
        **{key: mean[key] for key in ("system", "split", "measure", "value", "low", "high", "queries")},
        "chosen_on": chosen_on(lead),
        "by": lead["selected_on"],
        "there": there,
        "trained": any(one.trained for one in systems if one.name == name),
        "against": against,
        "bm25": plain[0] if plain else None,
        "judgements": summary.get("judgements", {}).get("train", 0),
        "updates": sorted({node.inputs["config"].updates for node in trainings}),
        "documents": summary.get("documents"),
        "of_documents": summary.get("of_documents"),
        "milliseconds": None if timed is None else 1000 * timed["query"],
        "bytes": {
            "models": sum(store.sizes(list(cost.models), "model/*")),
            "indexes": sum(store.sizes(cost.searched, *SEARCHED)),
        },
    }
    return {**made, "sentences": sentences(made, anything_trained=any(one.trained for one in systems))}


def sentences(made: Json, *, anything_trained: bool) -> list[str]:
    """Say what to deploy and why. The sentences stand below each other, so each names what it is about."""
    name, measure, asked = made["system"], made["measure"], made["queries"]
    ends = None if made["low"] is None else within(measure, made["low"], made["high"])
    between = "" if ends is None else f" (95 % interval {unsigned(ends[0])} to {unsigned(ends[1])})"
    on = f"the {asked:,} {'query' if asked == 1 else 'queries'} of {made['split']}"
    if made.get("of_documents"):
        on += f", over {made['documents']:,} of {made['of_documents']:,} documents, which is easier than over all"
    against, outcome = made["against"], _outcome(made)
    deploy = f"Deploy {name}."
    if outcome == "worse":
        deploy = f"Deploy {against['baseline']}: {name} is worse."
    elif outcome is not None and outcome != "better":
        deploy = f"Deploy {name} or {against['baseline']}: there is {outcome} between them."
    told = [f"{deploy} {name} has {measure} {unsigned(made['value'])}{between} on {on}."]
    told.append(_chosen(made))
    if against is not None:
        told.append(_compared(made, against, anything_trained=anything_trained))
    if outcome in ("worse", "no clear difference"):
        told.append(f'To export {against["baseline"]}, or search with it, add `--system "{against["baseline"]}"`.')
    if BM25 not in (name, *((against or {}).get(key) for key in ("system", "baseline"))) and made["bm25"] is not None:
        told.append(f"{BM25} alone has {unsigned(made['bm25'])}.")
    if not anything_trained:
        told.append(UNASKED.format(made["judgements"]) if made["judgements"] else UNTRAINED)
    if made["milliseconds"] is not None:
        told.append(f"A query took {made['milliseconds']:.1f} ms here, many at once.")
    sizes = {kind: f"{size(count)} of" for kind, count in made["bytes"].items() if count}
    kinds = {"indexes": "indexes and vectors", "models": "models"}
    if sizes:
        needed = " and ".join(f"{sizes[kind]} {of}" for kind, of in kinds.items() if kind in sizes)
        told.append(f"{name} needs {needed}.")
    if anything_trained and outcome != "better":
        told.append(HELP)
    return told


def _chosen(made: Json) -> str:
    """Which queries chose the system, and what it has there."""
    name, there = made["system"], made["there"]
    if name not in there:
        return f"{name} was chosen on {made['chosen_on']}."
    best = next(iter(there))
    dearer = "" if best == name else f" {best} has {unsigned(there[best])} there, too little more for what it costs."
    return f"{name} was chosen on {made['chosen_on']}, where it has {unsigned(there[name])}.{dearer}"


def _length(updates: Sequence[int]) -> str:
    """How long trainings are, between commas; a reader may know that this is little."""
    if not updates:
        return ""
    return f", of {updates[0]:,}{f' to {updates[-1]:,}' if len(updates) > 1 else ''} updates,"


def _outcome(made: Json) -> str | None:
    """What its comparison says of the chosen system; None where there is none of it."""
    against = made["against"]
    if against is None or against["system"] != made["system"]:
        return None
    return verdict(against["difference"], against["p_holm"])


def _compared(made: Json, against: Json, *, anything_trained: bool) -> str:
    """The leading comparison, in words."""
    system, baseline = against["system"], against["baseline"]
    counted = "the method" if against["test"] == THE_METHOD else "this training"
    known = ["the best untrained system"] if anything_trained else []
    known += [f"with {unsigned(made['there'][baseline])} on {made['by']}"] if baseline in made["there"] else []
    other = f"{baseline} ({', '.join(known)})" if known else baseline
    chance = f"{p_text(against['p'])}, corrected {p_number(against['p_holm'])}, {counted}"
    told = f"{signed(against['difference'])} ({chance})"
    word = verdict(against["difference"], against["p_holm"])
    if system != made["system"] and word != "better":  # the best trained one, or of untrained ones the best other
        what = f"These trainings{_length(made['updates'])} are" if anything_trained else "What costs more is"
        return f"{what} not shown to pay. {system} against {other}: {told}."
    dearer = "" if system == made["system"] else ", which costs more,"
    if word in ("better", "worse"):
        return f"{system}{dearer} is {word} than {other}: {told}."
    return f"{system} against {other}: {told}, {word}."
