"""What of a finished run's artifacts no result needs any more."""

from collections.abc import Iterator

from workflows.dag import Step, graph
from workflows.recipes import Experiment
from workflows.store import Store

_VECTORS = ["documents-*.npy", "queries.npy"]
PARTS = {"encode": _VECTORS, "encode_queries": _VECTORS, "faiss_index": ["index.faiss"], "train": ["state"]}
"""Of a step's artifact, by its function, what may go once it is superseded."""


def superseded(experiment: Experiment, store: Store) -> Iterator[tuple[Step, list[str], int]]:
    """Steps, what of them may go, and its bytes: vectors and indexes of all but the last refresh, and the optimizer
    states that a later training took up."""
    found = experiment.outcome.found
    last = {node.fingerprint for node in (found.vectors, found.index) if node is not None}
    nodes = graph(experiment.wanted)
    taken_up = {node.inputs["start"].fingerprint for node in nodes if node.function.__name__ == "train"}
    for node in nodes:
        name = node.function.__name__
        over = node.fingerprint in taken_up if name == "train" else node.fingerprint not in last
        if name in PARTS and over and store.done(node):
            (size,) = store.sizes([node], *PARTS[name])
            if size:
                yield node, PARTS[name], size
