"""Configs: what is accepted, and one clear line for what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Discriminator, ValidationError

from components.config import (
    Config,
    FunctionRef,
    UserError,
    fields_at,
    keyword_options,
    override,
    parse,
    read_yaml,
    yaml_text,
)
from components.models.configs import CrossEncoderConfig, DualEncoderConfig
from components.training.config import TrainConfig
from components.training.terms import LossTerm

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
        ({"name": "x", "index": {"kind": "round"}}, "index: "),
        ({"name": "x", "index": {"kind": "deep"}}, "index.deep.depth: Field required"),
        (
            {"name": "x", "maybe": {"depth": "far"}},
            "maybe.depth: Input should be a valid number, unable to parse string as a number, got 'far'",
        ),
        ({"name": ["x"]}, "some.yaml: name: Input should be a valid string, got ['x']"),
        ({}, "some.yaml: name: Field required"),
    ],
)
def test_a_mistake_is_one_line_with_the_key_and_what_is_accepted(tree: dict[str, Any], message: str) -> None:
    assert message in wrong(tree)


def test_a_kind_that_is_not_there_says_which_are() -> None:
    found = wrong({"name": "x", "index": {"kind": "round"}})
    assert "'flat'" in found
    assert "'deep'" in found


def test_fields_are_found_through_lists_unions_and_options() -> None:
    assert fields_at(Whole, ("maybe",)) == ["kind", "depth", "inner"]
    assert fields_at(Whole, ("maybe", "inner")) == ["kind", "width"]
    assert fields_at(Whole, ("more", 3, "deep")) == ["kind", "depth", "inner"]
    assert fields_at(Whole, ("losses", 0))[:2] == ["function", "options"]


class TestCalls:
    def test_a_function_is_found_and_its_options_are_bound(self) -> None:
        from components.losses.listwise import cross_entropy

        call = FunctionRef(function=CROSS_ENTROPY, options={"temperature": 0.05})
        assert call.resolve() is cross_entropy
        assert keyword_options("components.losses.listwise.distillation") == {
            "temperature": 1.0, "teacher_temperature": 1.0,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("term", "message"),
        [
            (
                {"function": "components.losses.listwise.cross_entropi"},
                "has no function 'cross_entropi'; accepted: cross_entropy, distillation",
            ),
            ({"function": "components.losses.listwize.cross_entropy"}, "no module 'components.losses.listwize'"),
            ({"function": "cross_entropy"}, "'cross_entropy' names no module; accepted: MODULE.FUNCTION"),
            ({"function": "components.losses"}, "components has no function 'losses'"),
            ({"function": "nowhere.at.all"}, "no module 'nowhere.at'"),
            ({"function": "math.sqrt"}, "no module 'math'"),
            ({"function": "time.sleep"}, "no module 'time'"),
            ({"function": "components.config.FunctionRef.resolve"}, "no module 'components.config.FunctionRef'"),
            (
                {"function": CROSS_ENTROPY, "options": {"temprature": 1}},
                "has no option 'temprature'; accepted: temperature",
            ),
            ({"function": CROSS_ENTROPY, "options": {"scores": 1}}, "has no option 'scores'; accepted: temperature"),
            (
                {"function": CROSS_ENTROPY, "options": {"temperature": "warm"}},
                "temperature is 'warm'; accepted: a value like 1.0",
            ),
            ({"function": CROSS_ENTROPY, "options": {"temperature": True}}, "temperature is True; accepted"),
            ({"function": CROSS_ENTROPY, "options": {"temperature": None}}, "temperature is None; accepted"),
            (
                {"function": "components.sampling.uniform", "options": {"depth": 1}},
                "components.sampling.uniform takes scores, count, rng, positive; accepted: scores, and",
            ),
            (
                {"function": CROSS_ENTROPY, "wait": 1},
                "losses.0.wait: unknown key; accepted: function, options, weight, over",
            ),
            (
                {"function": CROSS_ENTROPY, "duplicates": "count"},
                "losses.0: duplicates: only the batch has any; accepted with `over: group`: mask",
            ),
        ],
    )
    def test_a_typo_is_found_when_the_file_is_read(self, term: dict[str, Any], message: str) -> None:
        found = wrong({"name": "x", "losses": [term]})
        assert found.startswith("some.yaml: losses.0")
        assert message in found

    def test_a_whole_number_will_do_for_a_float(self) -> None:
        assert FunctionRef(function=CROSS_ENTROPY, options={"temperature": 2}).options == {"temperature": 2}

    def test_a_default_that_is_no_plain_value_binds_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "some_functions.py").write_text(
            "def f(x, *, a=-1.5, b=print, c='x', d=None, e, **more): ...\nasync def g(x, *, a=1): ...\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        assert keyword_options("some_functions.f") == {"a": -1.5, "b": None, "c": "x", "d": None}
        FunctionRef(function="some_functions.f", options={"a": -2, "b": 7, "c": "y", "d": [1]})
        with pytest.raises(ValueError, match="accepted: a value like 'x'"):
            FunctionRef(function="some_functions.f", options={"c": 1})

    def test_checking_imports_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "heavy_functions.py").write_text("raise RuntimeError('imported')\ndef f(x, *, a=1): ...\n")
        monkeypatch.syspath_prepend(tmp_path)
        assert FunctionRef(function="heavy_functions.f", options={"a": 2}).options == {"a": 2}

    def test_a_terms_name_says_what_it_looks_over(self) -> None:
        assert LossTerm(function=CROSS_ENTROPY, over="batch").name == "cross_entropy (batch)"


class TestYaml:
    def written(self, tmp_path: Path, text: str | bytes) -> Path:
        path = tmp_path / "some.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def test_numbers_as_people_write_them(self, tmp_path: Path) -> None:
        """YAML 1.1 reads 1e-5 as text; as an option of a loss it would fail hours later."""
        path = self.written(tmp_path, "a: 1e-5\nb: 2E+3\nc: -1.5e2\nd: 1.0e-5\ne: 1e\nf: '1e-5'\ng: 12\nh: e5\n")
        assert read_yaml(path) == {
            "a": 1e-5, "b": 2000.0, "c": -150.0, "d": 1e-5, "e": "1e", "f": "1e-5", "g": 12, "h": "e5",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "value", ["12e4", "1e-5", 1e-5, 1e300, "on", "0x1F", "1_000", "12:30", "2026-01-01", "é", None]
    )
    def test_what_is_written_is_read_as_the_same(self, tmp_path: Path, value: Any) -> None:
        """A digest may look like a number."""
        tree = {"b": value, "a": [value]}
        assert read_yaml(self.written(tmp_path, yaml_text(tree))) == tree

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a: 1\nb: [1\n", r"some\.yaml:3: not YAML"),
            ("a: 1\n  b: 2\n", r"some\.yaml:2: not YAML"),
            ("- 1\n", r"some\.yaml: expected keys and values, got list"),
            ("", r"some\.yaml: expected keys and values, got NoneType"),
            (b"a: caf\xe9\n", r"some\.yaml: not UTF-8 text"),
            ("a: !!python/object/apply:os.system [ls]\n", r"some\.yaml:1: not YAML"),
            ("a: {b: 1, b: 2}\n", r"some\.yaml:1: not YAML: the key 'b' is given twice"),
            ("a: " + "[" * 5_000, r"some\.yaml: not YAML: nested too deeply"),
            ("a: " + "9" * 5_000, r"some\.yaml: not YAML: Exceeds the limit"),
        ],
    )
    def test_what_is_wrong_with_a_file_is_named(self, tmp_path: Path, text: str | bytes, message: str) -> None:
        with pytest.raises(UserError, match=message):
            read_yaml(self.written(tmp_path, text))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"nowhere\.yaml: there is no such file"):
            read_yaml(tmp_path / "nowhere.yaml")


class TestOverriding:
    TREE = {"a": {"b": 1, "none": None}, "list": [{"x": 1}, {"x": 2}], "text": "t"}

    @pytest.mark.parametrize(
        ("assignment", "path", "value"),
        [
            ("a.b=2", ("a", "b"), 2),
            ("a.b=1e-4", ("a", "b"), 1e-4),
            ("a.b=[1, {c: 2}]", ("a", "b"), [1, {"c": 2}]),
            ("a.b=", ("a", "b"), None),
            ("a.b=x=y", ("a", "b"), "x=y"),
            ("a.new.deep=true", ("a", "new", "deep"), True),
            ("a.none.x=1", ("a", "none", "x"), 1),
            ("list.1.x=5", ("list", 1, "x"), 5),
            ("list.0=7", ("list", 0), 7),
            ("text=other", ("text",), "other"),
        ],
    )
    def test_a_value_is_set_at_its_path(self, assignment: str, path: tuple[Any, ...], value: Any) -> None:
        before = {"a": dict(self.TREE["a"]), "list": [dict(one) for one in self.TREE["list"]], "text": "t"}
        found: Any = override(before, [assignment])
        for part in path:
            found = found[part]
        assert found == value
        assert before == self.TREE  # a copy was changed

    def test_later_assignments_come_after_earlier_ones(self) -> None:
        assert override({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}

    @pytest.mark.parametrize(
        ("assignment", "message"),
        [
            ("a.b", "expected key.path=value"),
            ("=1", "expected key.path=value"),
            ("list.2.x=1", "'2' is not a position in a list of 2"),
            ("list.x=1", "'x' is not a position in a list of 2"),
            ("list.-1=1", "'-1' is not a position in a list of 2"),
            ("list.\u00b2=1", "'\u00b2' is not a position in a list of 2"),
            ("list." + "9" * 5_000 + "=1", "is not a position in a list of 2"),
            ("a.b.c=1", "'b' holds a value, not keys"),
            ("text.c=1", "'text' holds a value, not keys"),
            ("a.b=[1", "YAML"),
            ("a.b={x: 1, x: 2}", "YAML"),
            ("a.b=" + "[" * 5_000, "YAML: nested too deeply"),
            ("a.b=" + "9" * 5_000, "YAML: Exceeds the limit"),
        ],
    )
    def test_a_path_that_leads_nowhere_is_named(self, assignment: str, message: str) -> None:
        with pytest.raises(UserError) as caught:
            override(self.TREE, [assignment])
        assert str(caught.value).startswith(f"--set {assignment}: "[:500])
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


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
