"""What a config says of a training. Apart from the loop, which imports torch: reading a config is quick."""

from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.training.terms import LossTerm

LOG = "metrics.jsonl"
"""The log of losses and validations in the artifact of a training."""


class Validation(Config):
    """Measure the model during training on rows of a split that is not trained on, and keep the best weights."""

    every: int = Field(ge=1)
    """Updates between two validations."""
    from_start: bool = False
    """Validate before the first update too: a model that training does not improve is kept as it was."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many validations without a better value; null for never."""
    measure: str = "RR"
    """What the model is judged by, one of the measures that the objective has. Rankings have `RR` (the reciprocal rank
    of the best target among a query's own candidates) and `accuracy` (whether it is first). All have `loss`, the
    held-out loss, whose lowest value is the best; CODER's is the divergence of its scores from the targets, which with
    few judgements may tell better than a rank (Zerveas et al., 2023, section 5.2). Query rerankers have `rank`, the
    mean rank that the chosen expansion retrieves at, whose lowest value is the best too."""
    split: str = "dev"
    """The split whose rows are used, another than what is learnt from."""
    queries: int = Field(500, ge=1)
    """Queries, or other rows, that are drawn."""
    negatives: int = Field(15, ge=1)
    """Negatives in each group. They come from the ranking that the training draws from, or, without one, from the whole
    collection."""


class TrainConfig(Config):
    """How a model is trained. Batch sizes count rows (groups, documents) over all workers."""

    updates: int = Field(ge=1)
    """Updates of the weights."""
    batch: int = Field(32, ge=1)
    """Groups in one update."""
    accumulate: int = Field(1, ge=1)
    """Parts of a batch whose gradients are added up; in-batch negatives are shared within a part only."""
    learning_rate: float = Field(2.0e-5, gt=0)
    """The highest learning rate of the schedule."""
    optimizer: Literal["adamw", "adafactor"] = "adamw"
    """Adafactor (Shazeer and Stern, 2018) keeps a matrix's second moments as one row and one column and scales an
    update by the matrix's own size, so its learning rates are larger than AdamW's: Moiseev et al. (2023) use 1e-3."""
    schedule: Literal["linear", "constant", "noam"] = "linear"
    """`linear` falls to 0, which the update after the last one would have. `noam` falls with the square root of the
    number s of updates: `m min(s^-0.5, s w^-1.5)` after w updates of warm-up. The tables of Chuang et al. (2023) give
    its multiplier m; `learning_rate` is the highest, m / sqrt(w): 2e-5 for their 2e-3 and 10,000."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the schedule's updates in which the learning rate rises from 0."""
    schedule_updates: int | None = Field(None, ge=1)
    """Updates of the schedule, where it spans several trainings that carry `all`; null for this training's own."""
    carry: Literal["weights", "all"] = "weights"
    """What is taken from the model that training starts from: `weights`, or `all`: the optimizer and the place on the
    schedule too. These are those of its last update, also where `validate_on_dev` has kept the weights of another."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of matrices; biases and norms have none."""
    clip: float | None = Field(2.0, gt=0)
    """Largest norm of the gradient, to which a larger one is scaled; null for no limit."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """`bf16` is autocast: matrix products in bf16, weights and optimizer in fp32. Where a device has no products in
    bf16, they are in fp32, which is faster there."""
    weights: Literal["bf16", "fp32"] = Field("fp32", exclude_if=lambda weights: weights == "fp32")
    """`bf16`: the matrices of layers and token embeddings are in bf16 in memory, and so are the states between layers;
    the optimizer updates fp32 weights of its own, which they are the rounded form of, and which the trained model is
    saved with. What is frozen under an adapter is in bf16 alone. Gradients are summed in bf16 over the passes of a
    part of the batch, which many passes make coarse: some dozens are well, and `accumulate` sums its parts in fp32."""
    losses: list[LossTerm] = Field(min_length=1)
    validate_on_dev: Validation | None = None
    log_every: int = Field(10, ge=1)
    """Updates over which a line of `metrics.jsonl` is the mean."""

    @property
    def chained(self) -> bool:
        """Whether trainings follow one another on one schedule, so that the next one needs this one's optimizer."""
        return self.carry == "all" or self.schedule_updates is not None

    @model_validator(mode="after")
    def _schedule_spans_this_training(self) -> Self:
        falls = self.schedule == "linear"  # to 0, where it stays
        if falls and self.schedule_updates is not None and self.schedule_updates < self.updates:
            raise ValueError(
                f"schedule_updates: {self.schedule_updates} is less than this training's {self.updates} updates, the "
                f"last of which would learn nothing; accepted: {self.updates} or more, or null"
            )
        return self

    @model_validator(mode="after")
    def _is_looked_at(self) -> Self:
        if (look := self.validate_on_dev) is not None and look.every > self.updates:
            raise ValueError(
                f"validate_on_dev.every: {look.every} is more than the {self.updates} updates, so no trained weights "
                f"would be looked at; accepted: at most {self.updates}"
            )
        return self

    @model_validator(mode="after")
    def _weights_fit_products(self) -> Self:
        if self.weights == "bf16" and self.precision == "fp32":
            raise ValueError("weights: bf16: products of them are in bf16 too; accepted with precision: fp32: fp32")
        return self


class TemperatureConfig(Config):
    """The temperature that CODER divides scores by before the softmax (Zerveas et al., 2023, Algorithm 1)."""

    start: float = Field(1.0, gt=0)
    """Its first value; a training that starts from a trained model takes that model's last. The paper's code has 1, for
    inner products of about 100; inner products of vectors of length 1 want some hundredths."""
    learned: bool = True
    """Whether it is trained."""
    pace: float = Field(1.0, gt=0)
    """Factor of the learning rate of its logarithm. Adam moves every number by about the learning rate, and at 1e-6 the
    temperature would hardly move."""


class HardestConfig(Config):
    """Of many candidates a ranker learns from the hardest alone: those that it scores highest itself, without dropout,
    right before an update. Positives are always kept. SimLM's public code does so; its paper does not say.

    Scoring a candidate takes a third of what learning from it takes, in time, and no memory.
    """

    keep: int = Field(ge=2)
    """Candidates of a group that are kept, the positives among them: 16 of 64 in the public code on MS MARCO, 16 of 32
    on Natural Questions."""
