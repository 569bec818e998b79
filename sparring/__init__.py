"""Train and compare retrievers and rerankers, and search with what was chosen.

Run an experiment, search with what it chose, and do the same from the folder that `sparring export` writes:

    >>> import sparring
    >>> run = sparring.run("my-collection.yaml")
    >>> print(run.verdict)
    >>> system = run.load()
    >>> for hit in system.search("shortest path between two nodes", k=5):
    ...     print(hit.doc_id, hit.score)
    >>> system = sparring.load("out/system")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparring.api import Run, load, read, run
    from sparring.components.config import UserError
    from sparring.components.systems.system import Hit, LoadedSystem
    from sparring.workflows.store.dag import StepFailed

__all__ = ["Hit", "LoadedSystem", "Run", "StepFailed", "UserError", "load", "read", "run"]

_PLACES = {
    "Hit": "components.systems.system",
    "LoadedSystem": "components.systems.system",
    "UserError": "components.config",
    "StepFailed": "workflows.store.dag",
}


def __getattr__(name: str) -> Any:
    """Import what is used, when it is first used: `import sparring` alone takes no time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
