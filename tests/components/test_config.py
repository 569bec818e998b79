"""Configs: what they accept, and the key and code of a mistake."""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

import pytest
from pydantic import Discriminator, Field, ValidationError

from sparring.components.config import Config, UserError, fields_at, parse, unknown
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.training.config import TrainConfig
from sparring.components.training.terms import LossTerm
from tests.support.errors import refused

CROSS_ENTROPY = "components.losses.listwise.cross_entropy"


class Flat(Config):
    """One kind of index."""

    kind: Literal["flat"] = "flat"
    width: int = 8
    """How wide."""


class Deep(Config):
    """Another."""

    kind: Literal["deep"] = "deep"
    depth: float
    inner: Flat = Flat()


class Whole(Config):
    """An experiment."""

    name: str
    index: Annotated[Flat | Deep, Discriminator("kind")] = Flat()
    more: list[Annotated[Flat | Deep, Discriminator("kind")]] = []
    maybe: Deep | None = None
    losses: list[LossTerm] = []


class Several(Config):
    """Keys that take several kinds."""

    parts: dict[str, str | Annotated[list[str], Field(min_length=1)]] = {}
    index: str | Flat = "flat"
    limit: Annotated[int, Field(ge=1)] | Literal[False] = False
    rows: Flat | Literal[False] = False


def test_a_tree_becomes_a_frozen_config() -> None:
    config = parse(Whole, {"name": "x", "index": {"kind": "deep", "depth": 2}}, where="some.yaml")
    assert config.index == Deep(depth=2.0)
    with pytest.raises(ValidationError):
        config.name = "y"  # type: ignore[misc]
    assert Flat.model_fields["width"].description == "How wide."


@pytest.mark.parametrize(
    ("tree", "key", "code"),
    [
        ({"nam": 1}, "nam", "unknown-key"),
        ({"name": "x", "index": {"width": 1, "kind": "flat", "hight": 2}}, "index.flat.hight", "unknown-key"),
        ({"name": "x", "index": {"kind": "deep", "depth": 1, "width": 2}}, "index.deep.width", "unknown-key"),
        ({"name": "x", "index": {"kind": "deep", "depth": 1, "inner": {"x": 2}}}, "index.deep.inner.x", "unknown-key"),
        ({"name": "x", "more": [{"kind": "flat"}, {"kind": "flat", "x": 1}]}, "more.1.flat.x", "unknown-key"),
        ({"name": "x", "maybe": {"depth": 1, "x": 1}}, "maybe.x", "unknown-key"),
        ({"name": "x", "[": 1}, "[", "unknown-key"),
        ({"name": "x", "function-after[a]": 1}, "function-after[a]", "unknown-key"),
        ({"name": "x", "index": {"kind": "round"}}, "index.kind", "unknown-value"),
        ({"name": "x", "index": {"width": 1}}, "index.kind", "missing-key"),
        ({"name": "x", "index": {"kind": "flat", "width": True}}, "index.flat.width", "wrong-type"),
        ({"name": "x", "maybe": {"depth": float("inf")}}, "maybe.depth", "not-finite"),
        ({"name": "x", "index": {"kind": "deep"}}, "index.deep.depth", "missing-key"),
        ({"name": "x", "maybe": {"depth": "far"}}, "maybe.depth", "wrong-type"),
        ({"name": ["x"]}, "name", "wrong-type"),
        ({}, "name", "missing-key"),
    ],
)
def test_a_mistake_is_one_line_with_a_key_and_a_code(tree: dict[str, Any], key: str, code: str) -> None:
    with refused(key, code) as caught:
        parse(Whole, tree, where="some.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "key", "code"),
    [
        ({"parts": {"train": 5}}, "parts.train", "wrong-type"),
        ({"parts": {"train": [5]}}, "parts.train.0", "wrong-type"),
        ({"parts": {"train": []}}, "parts.train", "too-short"),
        ({"parts": {"str": [5]}}, "parts.str.0", "wrong-type"),
        ({"index": 5}, "index", "wrong-type"),
        ({"index": {"width": "wide"}}, "index.width", "wrong-type"),
        ({"limit": "none"}, "limit", "wrong-type"),
        ({"limit": -1}, "limit", "too-small"),
        ({"rows": 5}, "rows", "wrong-type"),
        ({"rows": {"depth": 5}}, "rows.depth", "unknown-key"),
    ],
)
def test_a_key_that_takes_several_kinds(tree: dict[str, Any], key: str, code: str) -> None:
    with refused(key, code):
        parse(Several, tree, where="some.yaml")


def test_a_validator_names_a_key_and_a_code() -> None:
    with refused("losses.0.function", "unknown-function"):
        parse(Whole, {"name": "x", "losses": [{"function": "kll"}]}, where="some.yaml")
    with refused("losses.0.duplicates", "invalid"):
        parse(Whole, {"name": "x", "losses": [{"function": "kl", "duplicates": "count"}]}, where="some.yaml")


def test_a_mistake_keeps_its_key_and_code_between_processes() -> None:
    error = copy.copy(UserError("my/run.yaml: batch: got 0", code="too-small"))  # by way of pickle's protocol
    assert (str(error), error.key, error.code) == ("my/run.yaml: batch: got 0", "batch", "too-small")


def test_a_near_key_of_the_same_place_is_meant_before_one_of_another() -> None:
    elsewhere = {"seed": ["generator.seed"], "layers": ["model.layers"]}
    assert unknown("seed", ["seeds", "answers"], elsewhere).endswith("; did you mean seeds?")
    assert unknown("layers", ["seeds", "answers"], elsewhere).endswith("; did you mean model.layers?")


def test_fields_are_found_through_lists_unions_and_options() -> None:
    assert fields_at(Whole, ("maybe",)) == ["kind", "depth", "inner"]
    assert fields_at(Whole, ("maybe", "inner")) == ["kind", "width"]
    assert fields_at(Whole, ("more", 3, "deep")) == ["kind", "depth", "inner"]
    assert fields_at(Whole, ("losses", 0))[:2] == ["function", "options"]


def test_models_and_trainings_have_their_defaults_and_refuse_what_means_nothing() -> None:
    assert parse(DualEncoderConfig, {"model": "m"}, where="x").similarity is None
    assert parse(CrossEncoderConfig, {"model": "m"}, where="x").pooling is None
    config = parse(TrainConfig, {"updates": 5, "losses": [{"function": CROSS_ENTROPY}]}, where="x")
    assert (config.warmup, config.precision, config.clip, config.carry) == (0.1, "bf16", 2.0, "weights")
    for tree, key, code in (
        ({"updates": 0}, "updates", "too-small"),
        ({"batch": 0}, "batch", "too-small"),
        ({"accumulate": 0}, "accumulate", "too-small"),
        ({"warmup": 1.5}, "warmup", "too-large"),
        ({"warmup": -0.1}, "warmup", "too-small"),
        ({"clip": 0.0}, "clip", "too-small"),
        ({"log_every": 0}, "log_every", "too-small"),
        ({"losses": []}, "losses", "too-short"),
        ({"schedule_updates": 0}, "schedule_updates", "too-small"),
        ({"learning_rate": -1}, "learning_rate", "too-small"),
        ({"validate_on_dev": {"every": 0}}, "validate_on_dev.every", "too-small"),
    ):
        with refused(key, code):
            parse(TrainConfig, {"updates": 5, "losses": [{"function": CROSS_ENTROPY}], **tree}, where="x")
    for key, value, code in (
        ("query_tokens", 0, "too-small"),
        ("document_tokens", 2, "too-small"),
        ("dropout", 1.0, "too-large"),
        ("dropout", -0.1, "too-small"),
    ):
        with refused(key, code):
            parse(DualEncoderConfig, {"model": "m", key: value}, where="x")
