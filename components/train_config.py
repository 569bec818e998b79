"""How a model is trained. Apart from the loop, so that reading a config is quick."""

from typing import Literal

from pydantic import Field

from components.config import Config
from components.objectives.terms import Term


class Validation(Config):
    """Judge the model on groups of a split that is not trained on now and then; keep the best."""

    every: int = Field(ge=1)
    """Steps between two looks."""
    from_start: bool = False
    """Look before the first step too, and so keep the model as it was where training makes it no better."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many looks without a better value; null for never."""
    measure: Literal["RR", "accuracy", "loss"] = "RR"
    """Of each query's own candidates: the reciprocal rank of the best target, or whether it is first. `loss`, the least
    of which is the best, is the divergence of the scores from the targets, for objectives that have a temperature of
    their own (`coder`): with few judgements it may tell better than a rank (paper 003, section 5.2)."""
    split: str = "dev"
    """The split that is judged on."""
    queries: int = Field(500, ge=1)
    """Groups drawn."""
    negatives: int = Field(15, ge=1)
    """Negatives a group: out of the ranking that the training draws from; of the collection where it has none."""


class TrainConfig(Config):
    """How a model is trained. Batch sizes count groups over all workers."""

    steps: int = Field(ge=1)
    """Updates of the weights."""
    batch: int = Field(32, ge=1)
    """Groups in one update."""
    accumulate: int = Field(1, ge=1)
    """Parts that a batch is cut into; negatives are shared within a part only."""
    learning_rate: float = Field(2.0e-5, gt=0)
    """The highest that the schedule reaches."""
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    """Adafactor keeps a matrix's second moments as a row and a column, and scales a step by the matrix's own size
    (Shazeer and Stern 2018; paper 000's, with a learning rate of 1e-3), so its rates are larger than AdamW's."""
    schedule: Literal["linear", "constant", "noam"] = "linear"
    """Linear falls to the 0 that the step after the schedule's last would have. `noam` falls with the square root of
    the step: `m min(s^-0.5, s w^-1.5)` after w steps of warm-up. Its multiplier m, which paper 002's tables call the
    learning rate, is not what `learning_rate` is here: the highest is m / sqrt(w), 2e-5 for their 2e-3 and 10,000."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the schedule in which the learning rate rises from 0."""
    schedule_steps: int | None = Field(None, ge=1)
    """Length of the schedule where it spans several trainings that carry `all`; null for this training's steps."""
    carry: Literal["weights", "all"] = "weights"
    """What the start gives: its weights, or also its optimizer and how far it is on the schedule."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices; biases and norms are not decayed."""
    clip: float | None = Field(2.0, gt=0)
    """Largest norm of the gradient; null for no limit."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16 is autocast; weights and optimizer stay fp32."""
    losses: list[Term] = Field(min_length=1)
    validate_on_dev: Validation | None = None
    log_every: int = Field(10, ge=1)
    """Updates that one line of `metrics.jsonl` is the mean of."""


class TemperatureConfig(Config):
    """What scores are divided by before a softmax, where it is trained with the model (paper 003, Algorithm 1)."""

    start: float = Field(1.0, gt=0)
    """Before the first step; a training that begins where another ended takes that one's last. The paper's code has 1,
    for inner products of about 100; inner products of vectors of length 1 want some hundredths."""
    learned: bool = True
    """False keeps it as it is."""
    pace: float = Field(1.0, gt=0)
    """How many times as fast as the weights its logarithm moves. Adam moves every number by about the learning rate,
    which at 1e-6 a step is next to nothing."""
