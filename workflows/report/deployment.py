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
    """Describe the system that was chosen to be deployed, with `sentences` for a reader. None if none was chosen.

    `by` is the split that chose it, and `there` holds each system's measure on that split, the best first. `value` is
    the measure on the measured split, with the ends of its 95 % interval. `against` is the leading comparison, `bm25`
    the value of BM25 alone. `judgements` are those of the training queries. `milliseconds` is a query's time. `bytes`
    are the sizes of its models and of its indexes. `updates` are the lengths of the trainings.
    """
    lead = metrics["leading"] or {}
    name = lead.get("deploy")
    means = [mean for mean in metrics["means"] if mean["system"] == name]
    if not means:
        return None
    mean = next(mean for mean in means if lead["measure"] in (None, mean["measure"]))
    cost = next(cost for cost in spent if cost.system == name)
    timed = next(iter(costs([cost], store, metrics["rows"])), None)
    compared = leading_entry(metrics, mean["measure"])
    keys = ("system", "baseline", "difference", "p", "p_holm", "test")
    against = None if compared is None else {key: compared[key] for key in keys}
    chosen, data = choice(results, store), next(system.data for system in systems if system.name == name)
    candidates = [] if chosen is None else chosen["candidates"]
    by_system = {candidate["system"]: candidate["value"] for candidate in candidates}
    summary = (store.record(data) or {}).get("summary", {})
    same = ("collection", "split", "measure", "queries")
    plain = [
        entry["value"]
        for entry in metrics["means"]
        if entry["system"] == BM25 and all(entry[key] == mean[key] for key in same)
    ]
    nodes = graph([results]) if results is not None else []
    trainings = [node for node in nodes if node.description.models == "training"]
    decision: Json = {
        **{key: mean[key] for key in ("system", "split", "measure", "value", "low", "high", "queries")},
        "chosen_on": chosen_on(lead),
        "by": lead["selected_on"],
        "there": by_system,
        "trained": any(system.trained for system in systems if system.name == name),
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
    anything_trained = any(system.trained for system in systems)
    return {**decision, "sentences": sentences(decision, anything_trained=anything_trained)}


def sentences(decision: Json, *, anything_trained: bool) -> list[str]:
    """Say what to deploy and why. The sentences stand below each other, so each names what it is about."""
    name, measure, queries = decision["system"], decision["measure"], decision["queries"]
    ends = None if decision["low"] is None else within(measure, decision["low"], decision["high"])
    between = "" if ends is None else f" (95 % interval {unsigned(ends[0])} to {unsigned(ends[1])})"
    on = f"the {queries:,} {'query' if queries == 1 else 'queries'} of {decision['split']}"
    if decision.get("of_documents"):
        on += (
            f", over {decision['documents']:,} of {decision['of_documents']:,} documents, which is easier than over all"
        )
    against, outcome = decision["against"], _outcome(decision)
    deploy = f"Deploy {name}."
    if outcome == "worse":
        deploy = f"Deploy {against['baseline']}: {name} is worse."
    elif outcome is not None and outcome != "better":
        deploy = f"Deploy {name} or {against['baseline']}: there is {outcome} between them."
    text = [f"{deploy} {name} has {measure} {unsigned(decision['value'])}{between} on {on}."]
    text.append(_chosen(decision))
    if against is not None:
        text.append(_compared(decision, against, anything_trained=anything_trained))
    if outcome in ("worse", "no clear difference"):
        text.append(f'To export {against["baseline"]}, or search with it, add `--system "{against["baseline"]}"`.')
    if (
        BM25 not in (name, *((against or {}).get(key) for key in ("system", "baseline")))
        and decision["bm25"] is not None
    ):
        text.append(f"{BM25} alone has {unsigned(decision['bm25'])}.")
    if not anything_trained:
        text.append(UNASKED.format(decision["judgements"]) if decision["judgements"] else UNTRAINED)
    if decision["milliseconds"] is not None:
        text.append(f"A query took {decision['milliseconds']:.1f} ms here, many at once.")
    sizes = {kind: f"{size(count)} of" for kind, count in decision["bytes"].items() if count}
    kinds = {"indexes": "indexes and vectors", "models": "models"}
    if sizes:
        parts = " and ".join(f"{sizes[kind]} {noun}" for kind, noun in kinds.items() if kind in sizes)
        text.append(f"{name} needs {parts}.")
    if anything_trained and outcome != "better":
        text.append(HELP)
    return text


def _chosen(decision: Json) -> str:
    """Say which queries chose the system, and its value on them."""
    name, values = decision["system"], decision["there"]
    if name not in values:
        return f"{name} was chosen on {decision['chosen_on']}."
    best = next(iter(values))
    dearer = "" if best == name else f" {best} has {unsigned(values[best])} there, too little more for what it costs."
    return f"{name} was chosen on {decision['chosen_on']}, where it has {unsigned(values[name])}.{dearer}"


def _length(updates: Sequence[int]) -> str:
    """How long trainings are, between commas; a reader may know that this is little."""
    if not updates:
        return ""
    return f", of {updates[0]:,}{f' to {updates[-1]:,}' if len(updates) > 1 else ''} updates,"


def _outcome(decision: Json) -> str | None:
    """Return the verdict of the comparison of the chosen system, or None if it is in no comparison."""
    against = decision["against"]
    if against is None or against["system"] != decision["system"]:
        return None
    return verdict(against["difference"], against["p_holm"])


def _compared(decision: Json, against: Json, *, anything_trained: bool) -> str:
    """Describe the leading comparison."""
    system, baseline = against["system"], against["baseline"]
    counted = "the method" if against["test"] == THE_METHOD else "this training"
    details = ["the best untrained system"] if anything_trained else []
    details += (
        [f"with {unsigned(decision['there'][baseline])} on {decision['by']}"] if baseline in decision["there"] else []
    )
    against_whom = f"{baseline} ({', '.join(details)})" if details else baseline
    chance = f"{p_text(against['p'])}, corrected {p_number(against['p_holm'])}, {counted}"
    difference = f"{signed(against['difference'])} ({chance})"
    word = verdict(against["difference"], against["p_holm"])
    if system != decision["system"] and word != "better":  # the best trained one, or of untrained ones the best other
        subject = f"These trainings{_length(decision['updates'])} are" if anything_trained else "What costs more is"
        return f"{subject} not shown to pay. {system} against {against_whom}: {difference}."
    dearer = "" if system == decision["system"] else ", which costs more,"
    if word in ("better", "worse"):
        return f"{system}{dearer} is {word} than {against_whom}: {difference}."
    return f"{system} against {against_whom}: {difference}, {word}."
