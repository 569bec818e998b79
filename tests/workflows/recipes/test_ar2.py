"""The configs of AR2: what a control has in common with the game."""

from __future__ import annotations

import pytest
import torch

from components.scores import Scores
from components.training.terms import LossTerm
from tests.support.tiny import ROOT
from workflows.recipes import ar2
from workflows.stages import experiments

CROSS_ENTROPY = "components.losses.listwise.cross_entropy"


def configs() -> dict[str, ar2.Config]:
    """Every config of this recipe by its path."""
    folder = ROOT / "configs"
    read = {str(path.relative_to(folder)): experiments.read_config(path, []) for path in sorted(folder.rglob("*.yaml"))}
    return {name: config for name, config in read.items() if isinstance(config, ar2.Config)}


CONFIGS = configs()
WITH_CONTROLS = [name for name, config in CONFIGS.items() if "ance" in config.controls.include]


def value(term: LossTerm, student: torch.Tensor, teacher: torch.Tensor | None) -> torch.Tensor:
    """(1,) a loss of one group, the positive first."""
    target = torch.zeros_like(student)
    target[:, 0] = 1
    where = torch.ones_like(student, dtype=torch.bool)
    return term.resolve()(Scores(student, target, where, teacher=teacher), **term.options)


def reads_teacher(term: LossTerm) -> bool:
    """Whether a loss needs the ranker's scores."""
    try:
        value(term, torch.randn(1, 4), None)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", WITH_CONTROLS)
def test_ance_differs_from_the_game_in_the_rankers_scores_alone(name: str) -> None:
    """The game's losses that read the ranker's scores give way to cross entropy with the labels; the others stay."""
    game, ance = CONFIGS[name].retriever.game.train.losses, CONFIGS[name].controls.ance
    stay = [term for term in game if not reads_teacher(term)]
    taught = [term for term in game if reads_teacher(term)]
    assert taught
    assert [term for term in ance if term in stay] == stay
    (labels,) = [term for term in ance if term not in stay]
    assert (labels.function, labels.over) == (CROSS_ENTROPY, "group")
    assert all(term.options["temperature"] == labels.options["temperature"] for term in taught)
    if stay:  # beside nothing else a weight changes little, as Adam's updates do not grow with it
        assert labels.weight == sum(term.weight for term in taught)


@pytest.mark.parametrize("name", [name for name in WITH_CONTROLS if "in-batch" in CONFIGS[name].controls.include])
def test_in_batch_goes_on_with_the_warm_ups_loss(name: str) -> None:
    assert CONFIGS[name].controls.in_batch == CONFIGS[name].retriever.warm.train.losses


def test_the_configs_are_found() -> None:
    assert {"demo.yaml", *(f"ar2/{name}.yaml" for name in ("docstrings", "squad", "ablation"))} <= set(WITH_CONTROLS)
