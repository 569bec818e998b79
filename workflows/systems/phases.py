"""Names of the phases that recipes share. A recipe adds its own, such as `round 1`, with `in_phase`."""

COLLECTION = "collection"
"""Reading and indexing the collection, and the models as they are."""
UNTRAINED = "untrained"
"""Systems that need no training here."""
PRETRAINING = "pre-training"
"""What a retriever learns before it learns from queries."""
WARM_UP = "warm-up"
"""The first trainings, on which later phases build."""
TRAINING = "training"
"""The training of a recipe that has one."""
EVALUATION = "evaluation"
"""Systems made of finished models, what is selected among all systems, and the results."""


def round_name(number: int) -> str:
    """The phase of one of several rounds, from 1."""
    return f"round {number}"
