"""Configs of training. They are separate from the loop, which imports torch, so that configs load fast."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.training.terms import LossTerm

LOG = "metrics.jsonl"
"""Name of the log of losses and validations in a training's artifact."""
LOSS = "loss"
"""The measure that every objective has. Its lowest value is the best."""


class Validation(Config):
    """Validation during training on rows that are not trained on. The best weights are kept."""

    every: int = Field(ge=1)
    """Number of updates between two validations."""
    from_start: bool = False
    """Validation before the first update too. If no later value is better, the start model's weights are kept."""
    patience: int | None = Field(None, ge=1)
    """Number of validations without a better value after which training stops. `null`: never stop early."""
    measure: str = "RR"
    """Measure that chooses the best weights. It must be a measure of the objective. Ranking objectives have `RR`
    (reciprocal rank of the best target among a query's own candidates) and `accuracy` (1 if the target is first). All
    have `loss`, the held-out loss, where the lowest is best. CODER's `loss` is the divergence of its scores from the
    targets. With few judgements this can be more reliable than a rank (Zerveas et al., 2023, section 5.2). Query
    rerankers have `rank`, the mean rank of the first answer with the chosen expansion, where the lowest is best."""
    split: str = "dev"
    """Split whose rows are used. It must not be trained on."""
    queries: int = Field(500, ge=1)
    """Number of sampled rows. Rows are queries, or the documents, texts or pairs of objectives without queries."""
    negatives: int = Field(15, ge=1)
    """Number of negatives in each group. They come from the ranking that training samples from. Without such a ranking
    they come from the whole collection."""


class TrainConfig(Config):
    """Training of a model. Batch sizes count rows (groups, documents) over all workers."""

    updates: int = Field(ge=1)
    """Number of updates of the weights."""
    batch: int = Field(32, ge=1)
    """Number of rows per update: groups, or documents in pre-training."""
    accumulate: int = Field(1, ge=1)
    """Number of parts that a batch is split into, whose gradients are summed. In-batch negatives are shared only within
    a part."""
    learning_rate: float = Field(2.0e-5, gt=0)
    """Highest learning rate of the schedule."""
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    """Optimizer. Adafactor (Shazeer and Stern, 2018) stores a matrix's second moments as a row and a column, and scales
    updates by the size of the matrix. Its learning rates are larger than AdamW's: Moiseev et al. (2023) use 1e-3."""
    schedule: Literal["linear", "constant", "noam"] = "linear"
    """Learning rate after the warm-up. `linear` falls to 0 by the end of training. `noam` falls with the square root of
    the number s of updates: `m min(s^-0.5, s w^-1.5)`, with a warm-up of w updates. Chuang et al. (2023) report the
    multiplier m. `learning_rate` is the peak m / sqrt(w), for example 2e-5 for m = 2e-3 and w = 10,000."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the schedule's updates in which the learning rate rises from 0."""
    schedule_updates: int | None = Field(None, ge=1)
    """Length of the schedule in updates, if it spans several trainings with `carry: all`. `null`: this training's
    `updates`."""
    carry: Literal["weights", "all"] = "weights"
    """State that is taken from the training of the start model. `weights`: its weights. `all`: also its optimizer and
    its position on the schedule. Both are those of its last update, even if `validate_on_dev` kept earlier weights."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of matrices. Biases and norms are not decayed."""
    clip: float | None = Field(2.0, gt=0)
    """Maximum norm of the gradient. A larger gradient is scaled down to it. `null`: no limit."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of matrix products. `bf16` is autocast: products in bf16, weights and optimizer in fp32. On a device
    without bf16 instructions, products are in fp32, which is faster there."""
    weights: Literal["bf16", "fp32"] = Field("fp32", exclude_if=lambda weights: weights == "fp32")
    """Precision of the weights in memory. `bf16`: matrices of layers, token embeddings and the states between layers
    are in bf16. The optimizer updates fp32 weights, which are rounded to bf16 for each pass and saved in fp32. Frozen
    weights under an adapter are kept in bf16 only. Gradients are summed in bf16 over the passes of a part of the batch.
    Some dozens of passes are fine. With many more the sum is inaccurate: raise `accumulate`, whose parts are summed in
    fp32."""
    losses: list[LossTerm] = Field(min_length=1)
    validate_on_dev: Validation | None = None
    log_every: int = Field(10, ge=1)
    """Number of updates per line of `metrics.jsonl`. A line has the means over these updates."""

    @property
    def reads_teacher(self) -> bool:
        """True if a loss fails unless a teacher has scored the groups."""
        return any(term.reads_teacher for term in self.losses)

    @property
    def chained(self) -> bool:
        """True if trainings share a schedule, so that a following training needs this training's optimizer."""
        return self.carry == "all" or self.schedule_updates is not None

    @model_validator(mode="after")
    def _schedule_spans_this_training(self) -> Self:
        falls = self.schedule == "linear"  # to 0, where it stays
        if falls and self.schedule_updates is not None and self.schedule_updates < self.updates:
            raise ValueError(
                f"schedule_updates: {self.schedule_updates} is less than this training's {self.updates} updates, so "
                f"the last updates would have learning rate 0. Use {self.updates} or more, or null."
            )
        return self

    @model_validator(mode="after")
    def _is_looked_at(self) -> Self:
        if (look := self.validate_on_dev) is not None and look.every > self.updates:
            raise ValueError(
                f"validate_on_dev.every: {look.every} is more than the {self.updates} updates, so trained weights "
                f"would never be validated. Use at most {self.updates}."
            )
        return self

    @model_validator(mode="after")
    def _weights_fit_products(self) -> Self:
        if self.weights == "bf16" and self.precision == "fp32":
            raise ValueError(
                "weights: got bf16 with `precision: fp32`, but products of bf16 weights are in bf16. Use `weights: "
                "fp32` or `precision: bf16`."
            )
        return self


class TemperatureConfig(Config):
    """The temperature that divides CODER's scores before the softmax (Zerveas et al., 2023, Algorithm 1)."""

    start: float = Field(1.0, gt=0)
    """Initial temperature. A training that starts from a CODER model uses that model's last temperature instead. The
    paper's code has 1, for inner products of about 100. For vectors of length 1, use a few hundredths."""
    learned: bool = True
    """Training of the temperature. If false, it stays at its initial value."""
    pace: float = Field(1.0, gt=0)
    """Factor on the learning rate of the temperature's logarithm. Adam changes every parameter by about the learning
    rate, so with 1e-6 and a factor of 1 the temperature would hardly change."""


class HardestConfig(Config):
    """Training of a ranker on only the hardest candidates of each group.

    Right before each update, the ranker scores all candidates without dropout and keeps the highest. Positives are
    always kept. SimLM's public code does this, but the paper does not mention it. Scoring a candidate takes a third of
    the time of training on it, and needs no memory for gradients.
    """

    keep: int = Field(ge=2)
    """Number of candidates kept per group, including positives. The public code keeps 16 of 64 on MS MARCO, and 16 of
    32 on Natural Questions."""
