"""Names of the phases that recipes share. A recipe adds its own, such as `round 1`, with `in_phase`."""

COLLECTION = "collection"
"""Reading and indexing the collection, and loading start models."""
UNTRAINED = "untrained"
"""Systems that need no training here."""
PRETRAINING = "pre-training"
"""Training on documents, before a retriever learns from queries."""
WARM_UP = "warm-up"
"""The first trainings, on which later phases build."""
TRAINING = "training"
"""The training of a recipe that has one."""
EVALUATION = "evaluation"
"""Systems of finished models, the selection among all systems, and the results."""


def round_name(number: int) -> str:
    """Name the phase of one of several rounds, counted from 1."""
    return f"round {number}"
