"""Keys of other training libraries are refused with their translation."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from sparring.components.config import Config, UserError, parse
from sparring.components.foreign_keys import FOREIGN
from sparring.components.training.config import TrainConfig
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.experiments import loading
from tests.support.errors import refused

LOSSES = [{"function": "kl"}]


def fields(cls: type[BaseModel]) -> Iterator[str]:
    """Yield the keys of a config class and of the classes derived from it."""
    yield from cls.model_fields
    for derived in cls.__subclasses__():
        yield from fields(derived)


@pytest.mark.parametrize("key", FOREIGN)
def test_a_translation_names_keys_that_exist(key: str) -> None:
    for name in loading.recipe_names():
        importlib.import_module(f"sparring.workflows.recipes.{name}")
    keys = {*fields(Config), *Cluster.model_fields, "temperature"}
    quoted = re.findall(r"`([^`]+)`", FOREIGN[key])
    named = [word for text in quoted for word in re.findall(r"(\w+)(?=:\s)|^(\w+)$", text)]
    assert quoted
    assert {first or second for first, second in named} <= keys


@pytest.mark.parametrize(
    "key",
    ["num_train_epochs", "train_group_size", "per_device_train_batch_size", "scale", "warmup_ratio", "temperature"],
)
def test_a_foreign_key_is_refused_with_its_translation(key: str) -> None:
    with refused(key, "unknown-key") as caught:
        parse(TrainConfig, {"updates": 1, "losses": LOSSES, key: 1}, where="some.yaml")
    assert str(caught.value) == f"some.yaml: {key}: unknown key. {FOREIGN[key]}"


def test_a_key_that_the_file_has_elsewhere_is_no_foreign_one() -> None:
    class Long(Config):
        epochs: int = 1

    class Whole(Config):
        warm: Long = Long()

    with pytest.raises(UserError, match=r"epochs: unknown key; accepted: warm; did you mean warm.epochs\?"):
        parse(Whole, {"epochs": 1}, where="some.yaml")
