"""Pre-training objectives and their variants, as options: what tests of all of them go through."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from sparring.components.objectives.parts.config import BottleneckConfig, DifferenceConfig
from sparring.components.training.config import TrainConfig
from sparring.components.training.loop import train
from sparring.components.training.objective import ObjectiveInputs, make_objective
from tests.support import toy
from tests.support.trainings import Interrupted, visits

LIKELIHOOD = "components.losses.likelihood.negative_log_likelihood"


@dataclass(frozen=True)
class Variant:
    """An objective, the views of its losses, its options, and the models that it takes beside the one it trains."""

    objective: str
    views: tuple[str, ...]
    bottleneck: dict[str, Any] = field(default_factory=dict)
    generator: bool = False

    @property
    def losses(self) -> list[dict[str, Any]]:
        """As a config has them."""
        return [{"function": toy.CROSS_ENTROPY if view == "batch" else LIKELIHOOD, "over": view} for view in self.views]

    def own(self, language_model: Path) -> dict[str, Any]:
        """The objective's own arguments."""
        options: dict[str, Any] = {"bottleneck": BottleneckConfig(**self.bottleneck)} if self.bottleneck else {}
        return options | ({"generator": language_model} if self.generator else {})


CONDENSER = {"task": "masked", "decoder_rate": 0.3, "decoder_reads": "states", "decoder_weights": "random"}
BOTH = ("encoder", "decoder")
VARIANTS = {
    "SimLM": Variant("simlm", BOTH, generator=True),
    "joint": Variant("simlm", (*BOTH, "generator"), generator=True),
    "Enc-Dec MLM": Variant("simlm", BOTH, {"task": "masked"}),
    "Condenser": Variant("simlm", BOTH, CONDENSER),
    "MLM": Variant("simlm", ("encoder",), {"task": "masked"}),
    "Enc-Dec RTD": Variant("simlm", BOTH, {"task": "detection"}, generator=True),
    "AutoEncoder": Variant("simlm", ("decoder",), {"task": "masked", "encoder_rate": 0.0, "decoder_rate": 1.0}),
    "coCondenser": Variant("cocondenser", (*BOTH, "batch"), CONDENSER),
    "ICT": Variant("ict", ("batch",)),
    "mlm": Variant("mlm", ("tokens",)),
}


DIFFCSE = {
    "SimCSE": Variant("simcse", ("batch",)),
    "DiffCSE": Variant("diffcse", ("batch", "discriminator"), generator=True),
}


@dataclass(frozen=True)
class Artifacts:
    """What objectives are made from."""

    data: Path
    tokens: Path
    retriever: Path
    language_model: Path
    groups: Path | None = None
    """Rows, where an objective reads groups."""

    def start(self, variant: Variant) -> Path:
        """The artifact that training begins from."""
        return self.language_model if variant.objective == "mlm" else self.retriever

    def objective(
        self,
        variant: Variant,
        *,
        max_tokens: int = 200,
        recompute: bool = False,
        start: Path | None = None,
        losses: list[dict[str, Any]] | None = None,
        **own: Any,
    ) -> Any:
        """An objective over the toy documents, with the losses of the variant or others."""
        terms = toy.train_config(losses=losses or variant.losses).losses
        inputs = ObjectiveInputs(
            model=(start or self.start(variant)) / "model",
            rows=self.groups or self.data,
            data=self.data,
            tokens=self.tokens,
            losses=terms,
            max_tokens=max_tokens,
            recompute=recompute,
        )
        return make_objective(variant.objective, inputs, seed=1, **{**variant.own(self.language_model), **own})

    def diffcse(
        self,
        *,
        start: Path | None = None,
        max_tokens: int = 10_000,
        losses: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Any:
        """DiffCSE with options of its difference prediction."""
        difference = DifferenceConfig(**options)
        variant = replace(DIFFCSE["DiffCSE"], generator=difference.generates)
        return self.objective(variant, start=start, max_tokens=max_tokens, losses=losses, difference=difference)


def edited(objective: Any, rows: Iterable[int]) -> Any:
    """A batch of texts as DiffCSE edits them."""
    batch = objective.eval().collate(visits(rows))
    return batch._replace(edits=objective.difference.editing.edit(objective, batch.edits))


def run(objective: Any, out: Path, variant: Variant, *, stop: int | None = None, **options: Any) -> None:
    """Train it, perhaps up to an interruption, with a checkpoint after each update."""

    def on_update(update: int, note: str) -> None:
        if update == stop:
            raise Interrupted

    config: TrainConfig = toy.train_config(**{"losses": variant.losses, "log_every": 1, "batch": 8, **options})
    out.mkdir(exist_ok=True)
    train(
        objective,
        config,
        out=out,
        seed=1,
        start=None,
        device=torch.device("cpu"),
        dev=None,
        save_seconds=-1.0,
        on_update=on_update,
    )
