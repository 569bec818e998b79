"""Configs: what is accepted, and one clear line for what is not."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Discriminator, Field, ValidationError

from sparring.components.config import Config, UserError, fields_at, parse, unknown
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.training.config import TrainConfig
from sparring.components.training.terms import LossTerm

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


def wrong(tree: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse(Whole, tree, where="some.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tree_becomes_a_frozen_config() -> None:
    config = parse(Whole, {"name": "x", "index": {"kind": "deep", "depth": 2}}, where="some.yaml")
    assert config.index == Deep(depth=2.0)
    with pytest.raises(ValidationError):
        config.name = "y"  # type: ignore[misc]
    assert Flat.model_fields["width"].description == "How wide."


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"nam": 1}, "some.yaml: nam: unknown key; accepted: name, index, more, maybe, losses"),
        (
            {"name": "x", "index": {"width": 1, "kind": "flat", "hight": 2}},
            "index.flat.hight: unknown key; accepted: kind, width",
        ),
        ({"name": "x", "index": {"kind": "deep", "depth": 1, "width": 2}}, "unknown key; accepted: kind, depth, inner"),
        ({"name": "x", "index": {"kind": "deep", "depth": 1, "inner": {"x": 2}}}, "unknown key; accepted: kind, width"),
        (
            {"name": "x", "more": [{"kind": "flat"}, {"kind": "flat", "x": 1}]},
            "more.1.flat.x: unknown key; accepted: kind, width",
        ),
        ({"name": "x", "maybe": {"depth": 1, "x": 1}}, "maybe.x: unknown key; accepted: kind, depth, inner"),
        ({"name": "x", "[": 1}, "some.yaml: [: unknown key; accepted: name, index"),
        ({"name": "x", "function-after[a]": 1}, "some.yaml: function-after[a]: unknown key; accepted: name, index"),
        ({"name": "x", "widht": 1}, "; did you mean index.width, index.inner.width or maybe.inner.width?"),
        ({"name": "x", "depth": 1}, "; did you mean index.depth or maybe.depth?"),
        ({"name": "x", "index": {"kind": "round"}}, "index.kind: got 'round'; accepted: 'flat', 'deep'"),
        ({"name": "x", "index": {"width": 1}}, "index.kind: it is needed, and is not there"),
        ({"name": "x", "index": {"kind": "flat", "width": True}}, "flat.width: got true; accepted: a whole number"),
        ({"name": "x", "maybe": {"depth": float("inf")}}, "maybe.depth: got inf; accepted: a finite number"),
        ({"name": "x", "index": {"kind": "deep"}}, "index.deep.depth: it is needed, and is not there"),
        (
            {"name": "x", "maybe": {"depth": "far"}},
            "maybe.depth: got 'far'; accepted: a number",
        ),
        ({"name": ["x"]}, "some.yaml: name: got ['x']; accepted: text"),
        ({}, "some.yaml: name: it is needed, and is not there"),
    ],
)
def test_a_mistake_is_one_line_with_the_key_and_what_is_accepted(tree: dict[str, Any], message: str) -> None:
    assert message in wrong(tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"parts": {"train": 5}}, "parts.train: got 5; accepted: text, or a list"),
        ({"parts": {"train": [5]}}, "parts.train.0: got 5; accepted: text"),
        ({"parts": {"train": []}}, "parts.train: got none; accepted: at least 1 of them, or text"),
        ({"parts": {"str": [5]}}, "parts.str.0: got 5; accepted: text"),
        ({"index": 5}, "index: got 5; accepted: text, or keys and values"),
        ({"index": {"width": "wide"}}, "index.width: got 'wide'; accepted: a whole number"),
        ({"limit": "none"}, "limit: got 'none'; accepted: a whole number, or false"),
        ({"limit": -1}, "limit: got -1; accepted: 1 or more, or false"),
        ({"rows": 5}, "rows: got 5; accepted: keys and values: kind, width, or false"),
        ({"rows": {"depth": 5}}, "rows.depth: unknown key; accepted: kind, width; did you mean width?"),
    ],
)
def test_a_key_that_takes_several_kinds_says_so(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Several, tree, where="some.yaml")
    assert str(caught.value) == f"some.yaml: {message}"


def test_a_near_key_of_the_same_place_is_meant_before_one_of_another() -> None:
    elsewhere = {"seed": ["generator.seed"], "layers": ["model.layers"]}
    assert unknown("seed", ["seeds", "answers"], elsewhere).endswith("; did you mean seeds?")
    assert unknown("layers", ["seeds", "answers"], elsewhere).endswith("; did you mean model.layers?")


def test_a_kind_that_is_not_there_says_which_are() -> None:
    found = wrong({"name": "x", "index": {"kind": "round"}})
    assert "'flat'" in found
    assert "'deep'" in found


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
    for tree, message in (
        ({"updates": 0}, "updates: "),
        ({"batch": 0}, "batch: "),
        ({"accumulate": 0}, "accumulate: "),
        ({"warmup": 1.5}, "warmup: "),
        ({"warmup": -0.1}, "warmup: "),
        ({"clip": 0.0}, "clip: "),
        ({"log_every": 0}, "log_every: "),
        ({"losses": []}, "losses: "),
        ({"schedule_updates": 0}, "schedule_updates: "),
        ({"learning_rate": -1}, "learning_rate: "),
        ({"validate_on_dev": {"every": 0}}, "validate_on_dev.every: "),
    ):
        with pytest.raises(UserError, match=message):
            parse(TrainConfig, {"updates": 5, "losses": [{"function": CROSS_ENTROPY}], **tree}, where="x")
    for tree in ({"query_tokens": 0}, {"document_tokens": 2}, {"dropout": 1.0}, {"dropout": -0.1}):
        with pytest.raises(UserError, match=f"{next(iter(tree))}: "):
            parse(DualEncoderConfig, {"model": "m", **tree}, where="x")
