"""The value of each system on the queries that chose the systems."""

from sparring.components.evaluation.selection import FILE
from sparring.components.files import read_json
from sparring.workflows.report.finished import Json
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store


def choice(results: Step | None, store: Store) -> Json | None:
    """Read what `select` wrote: the best candidate first, each with its role as `chosen`.

    Return None if nothing was measured on other queries. `deploy` is None if no system was chosen for deployment.
    """
    selection = None if results is None else results.inputs.get("selection")
    if not isinstance(selection, Step) or not store.is_done(selection):
        return None
    store.fetch([selection], FILE)
    selected: Json = {"deploy": None, **read_json(store.path(selection) / FILE)}
    selected["candidates"].sort(key=lambda candidate: -candidate["value"])
    for candidate in selected["candidates"]:
        candidate["chosen"] = _chosen(candidate, selected)
    return selected if selected["candidates"] else None


def _chosen(candidate: Json, selected: Json) -> str:
    """Return the role of a candidate.

    If nothing was trained, the system to deploy is compared with the cheapest candidate, or if it is the cheapest, with
    the best of the rest.
    """
    if candidate["system"] in selected.get("budget", {}).get("excluded", {}):
        return "beyond the budget"
    trained = any(entry["trained"] for entry in selected["candidates"])
    if candidate["system"] == selected["deploy"]:
        return "to deploy"
    if candidate["system"] == selected["system"]:
        return "best trained" if trained else "best of the others"
    if candidate["system"] == selected["baseline"]:
        return "best untrained" if trained else "cheapest"
    return ""
