"""What each system had on the queries that systems were chosen by."""

from sparring.components.evaluation.selection import FILE
from sparring.components.files import read_json
from sparring.workflows.report.finished import Json
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store


def choice(results: Step | None, store: Store) -> Json | None:
    """What `select` wrote, the best candidate first, each with what it was `chosen` as; None where nothing was measured
    on other queries. `deploy` is None where no system was chosen for that."""
    selection = None if results is None else results.inputs.get("selection")
    if not isinstance(selection, Step) or not store.is_done(selection):
        return None
    store.fetch([selection], FILE)
    made: Json = {"deploy": None, **read_json(store.path(selection) / FILE)}
    made["candidates"].sort(key=lambda one: -one["value"])
    for one in made["candidates"]:
        one["chosen"] = _chosen(one, made)
    return made if made["candidates"] else None


def _chosen(one: Json, made: Json) -> str:
    """What a candidate was chosen as: where nothing was trained, what is to be deployed is compared with the cheapest
    candidate, or else the cheapest with the best of the others."""
    trained = any(each["trained"] for each in made["candidates"])
    if one["system"] == made["deploy"]:
        return "to deploy"
    if one["system"] == made["system"]:
        return "best trained" if trained else "best of the others"
    if one["system"] == made["baseline"]:
        return "best untrained" if trained else "cheapest"
    return ""
