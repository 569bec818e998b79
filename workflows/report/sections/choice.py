"""What each system had on the queries that systems were chosen by."""

from sparring.components.evaluation.selection import FILE
from sparring.components.files import read_json
from sparring.workflows.report.finished import Json
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store


def choice(results: Step | None, store: Store) -> Json | None:
    """What `select` wrote, the best candidate first, `deploy` None where no system was chosen for that; None where
    nothing was measured on other queries."""
    selection = None if results is None else results.inputs.get("selection")
    if not isinstance(selection, Step) or not store.is_done(selection):
        return None
    store.fetch([selection], FILE)
    made: Json = {"deploy": None, **read_json(store.path(selection) / FILE)}
    made["candidates"].sort(key=lambda one: -one["value"])
    return made if made["candidates"] else None
