"""The configs of AR2: what a control has in common with the game, and which ranker suits the retriever's losses."""

from __future__ import annotations

import pytest
import torch

from sparring.components.scores import Scores
from sparring.components.training.terms import LossTerm
from sparring.workflows.experiments import loading
from sparring.workflows.recipes import ar2
from tests.support.tiny import ROOT

CROSS_ENTROPY = "components.losses.listwise.cross_entropy"


def configs() -> dict[str, ar2.Config]:
    """Every config of this recipe by its path."""
    folder = ROOT / "configs"
    read = {str(path.relative_to(folder)): loading.read_config(path, []) for path in sorted(folder.rglob("*.yaml"))}
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


def reads_level(term: LossTerm) -> bool:
    """Whether the retriever's gradient changes when the ranker's scores all rise by the same."""
    student, teacher = torch.tensor([[1.0, 0.5, -1.0, 0.0]]), torch.tensor([[3.0, -1.0, 1.0, 0.0]])
    gradients = []
    for shift in (0.0, -4.0):
        leaf = student.clone().requires_grad_()
        value(term, leaf, teacher + shift).sum().backward()
        gradients.append(leaf.grad)
    return not torch.allclose(*gradients, atol=1e-5)


def has_level(term: LossTerm) -> bool:
    """Whether a ranker's loss changes when its scores all rise by the same."""
    student = torch.tensor([[3.0, -1.0, 1.0, 0.0]])
    return not torch.allclose(value(term, student, None), value(term, student - 4.0, None), atol=1e-5)


IRGAN = ("ar2/ablation-irgan.yaml", "papers/ar2/irgan.yaml")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_reward_that_reads_levels_has_a_ranker_with_one(name: str) -> None:
    """IRGAN's has; AR2's losses read differences of scores, whatever their level."""
    config = CONFIGS[name]
    if any(reads_teacher(term) and reads_level(term) for term in config.retriever.game.train.losses):
        assert name in IRGAN
        for phase in (config.ranker.warm, config.ranker.game):
            assert all(has_level(term) for term in phase.train.losses)
    else:
        assert name not in IRGAN


def test_the_configs_are_found() -> None:
    assert {f"ar2/{name}.yaml" for name in ("docstrings", "squad", "ablation")} <= set(WITH_CONTROLS)
