"""Configs: frozen pydantic models, in which unknown keys are errors, and what is said of a mistake in one."""

import os
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails

LINE = 1_200
"""Most characters of a line of a message."""
MEANT = 3
"""Most places of a key that may be meant."""
SHOWN = 6
"""Most keys that are named where keys were expected."""
VALUE_ERROR = "Value error, "
"""The beginning that pydantic gives the message of a ValueError."""
VERY_NEAR = 0.8
"""How like a misspelt key one of its own place is that comes before the same one in another place: seed and seeds."""


class UserError(Exception):
    """A mistake of the user. The message is one line that names the file, line or key; the exit status is 2.

    A message may quote the contents or the name of a file. Control characters are escaped, and a long line is cut in
    its middle. Programs and tests read `key` and `code`, which stay when the wording changes.
    """

    def __init__(self, *lines: str, key: str | None = None, code: str = "invalid") -> None:
        super().__init__("\n".join(map(printable, lines)))
        self.key = leading_key(lines[0]) if key is None else key
        """Dotted key, file or argument that the message is about. If not passed, it is read from the message."""
        self.code = code
        """Kind of the mistake, for example `unknown-key`."""

    def within(self, place: str) -> "UserError":
        """Return the same mistake with its place before the message, for example the file or the step."""
        return UserError(f"{place}: {self}", key=self.key, code=self.code)


def leading_key(line: str) -> str:
    """Read the key from the start of a message. It stands before a colon, and a file may come before it.

    >>> leading_key("my/run.yaml: batch: got 0; accepted: 1 or more"), leading_key("my/run.txt:3: not a number")
    ('batch', 'my/run.txt:3')
    """
    words = list(takewhile(lambda word: " " not in word, line.split(": ")[:-1]))
    if len(words) > 1 and "/" in words[0] and re.fullmatch(r"[\w.-]+", words[1]):
        return words[1]
    return words[0] if words else ""


class Invalid(ValueError):
    """A mistake in a value of a config, with its code. `parse` reports it with its key."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Damaged(UserError):
    """A file is cut or lost, of those that something was saved as. What to do is added by who knows where it lies."""

    def __init__(self, line: str, path: Path | None = None) -> None:
        super().__init__(line, code="damaged-file")
        self.path = path
        """The file, or the folder that it should be in."""


def printable(line: str) -> str:
    """A line that may hold anything, such as a file's name, for a terminal: no control character, nor half of a
    character, and cut in its middle where it is too long to read.

    >>> printable("a\\tb\\udcff")
    'a\\\\tb\\\\udcff'
    """
    if not line.isprintable():
        line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)
    return line if len(line) <= LINE else f"{line[: LINE // 2]} ... {line[-LINE // 3 :]}"


CONTROLS = {
    **dict.fromkeys([*range(32), *range(127, 160), 0x2028, 0x2029], " "),
    **dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]),
}
"""What a terminal would obey in a text, for `str.translate`: control characters become spaces, and marks that turn the
direction of what follows are left out."""


class Config(BaseModel):
    """Base of every config: unknown keys are errors, and the docstring below a field is its help text."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_numbers(cls, tree: Any) -> Any:
        """Refuse true and false where a number is meant: Python takes them for 1 and 0."""
        for name, value in tree.items() if isinstance(tree, dict) else ():
            if isinstance(value, bool) and name in cls.model_fields:
                kinds = _kinds(cls.model_fields[name].annotation)
                if kinds & {int, float} and bool not in kinds and value not in kinds:
                    kind = "float_type" if float in kinds else "int_type"
                    wrong = InitErrorDetails(type=kind, loc=(name,), input=value)
                    raise ValidationError.from_exception_data(cls.__name__, [wrong])
        return tree

    def files(self) -> dict[str, Path]:
        """The files outside the store that a step with this config reads, by name, whether or not they exist."""
        return {}

    def missing(self) -> list[str]:
        """What a step with this config reads and cannot find: files, or packages."""
        # unlike Path.exists, this takes a name that is longer than names can be
        return [str(path) for path in self.files().values() if not os.path.exists(path)]

    def installed(self) -> dict[str, str]:
        """The versions of the installed packages whose files a step with this config reads, by name."""
        return {}


def _kinds(annotation: Any) -> set[Any]:
    """The types of a field that takes one of several, and literal values."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return {kind for argument in get_args(annotation) for kind in _kinds(argument)}
    return {annotation}


C = TypeVar("C", bound=BaseModel)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Words for an error: which of the accepted names may be meant, whatever its case; empty where none is like it.

    >>> did_you_mean("bm25", ["start model", "BM25"])
    '; did you mean BM25?'
    """
    by_case = {one.lower(): one for one in names}
    found = get_close_matches(name.lower(), by_case, 1, 0.7)
    return "".join(f"; did you mean {by_case[one]}?" for one in found)


def listing(names: Any) -> str:
    """Names joined by commas, for an error message; in quotes where one has a comma itself.

    >>> listing(["BM25", "start model"]), listing(["BM25", "BM25 + start model, interpolated"])
    ('BM25, start model', "'BM25', 'BM25 + start model, interpolated'")
    """
    told = [str(name) for name in names]
    return ", ".join(map(repr, told) if any("," in name for name in told) else told) or "(none)"


def distinct(values: list[Any]) -> list[Any]:
    """The same list, as a validator of a config's field; ValueError names a value that stands twice."""
    for value in values:
        if values.count(value) > 1:
            raise Invalid(f"{value!r} stands twice", "duplicate")
    return values


def parse(cls: type[C], tree: dict[str, Any], *, where: str) -> C:
    """Validate a tree as a config. UserError names `where`, the key of the first mistake and what is accepted."""
    try:
        return cls.model_validate(tree)
    except RecursionError:
        raise UserError(f"{where}: nested too deeply", code="nested-too-deeply") from None
    except UnicodeEncodeError as error:  # an escaped half of a character
        raise UserError(f"{where}: text that is not UTF-8: {error.object[:80]!r}", code="not-utf8") from None
    except ValidationError as error:
        mistakes = error.errors()
        # Unknown keys first: with a misspelt key, the right one is missing too.
        first = next((one for one in mistakes if one["type"] == "extra_forbidden"), _clearest(cls, mistakes))
        there = without_kinds(cls, first["loc"])
        place = _as_written(tree, there)
        if first["type"] == "extra_forbidden":
            place = (*_as_written(tree, without_kinds(cls, first["loc"][:-1])), first["loc"][-1])  # of any name
            accepted = fields_at(cls, first["loc"][:-1])
            below = [_keys_below(one, place[:-1]) for one in _classes(cls, first["loc"][:-1])[:1]]
            said = unknown(place[-1], accepted, *below, _keys_below(cls))
            key = ".".join(map(str, place))
            raise UserError(f"{where}: {key}: {said}", key=key, code="unknown-key") from None
        if first["type"] == "model_type":
            keys = fields_at(cls, first["loc"])
            first = {**first, "ctx": {"keys": f": {listing(keys[:SHOWN])}{', ...' * (len(keys) > SHOWN)}"}}
        also = [one for one in mistakes if one["loc"] != first["loc"] and without_kinds(cls, one["loc"]) == there]
        said = mistake(first, place, also=list(filter(None, map(_accepted, also))))
        inside = leading_key(first["msg"].removeprefix(VALUE_ERROR)) if first["type"] == "value_error" else ""
        if inside.partition(".")[0] in fields_at(cls, first["loc"]):
            place = (*place, inside)
        raise UserError(f"{where}: {said}", key=key_of(first, place) or where, code=code_of(first)) from None


def _as_written(tree: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """A place without the numbers of lists that the tree does not have: a mapping may stand for a list of it."""
    parts, node = [], tree
    for part in place:
        if isinstance(part, int) and isinstance(node, dict) and part not in node:
            continue
        parts.append(part)
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            node = None
    return tuple(parts)


def _clearest(cls: type[BaseModel], mistakes: list[Any]) -> Any:
    """The first mistake; of a value that may be of several kinds, the one that it has as the kind which it is."""
    place = without_kinds(cls, mistakes[0]["loc"])
    for one in mistakes:
        own = without_kinds(cls, one["loc"])
        if own[: len(place)] == place and not (own == place and one["type"].endswith(("_type", "literal_error"))):
            return one
    return mistakes[0]


def unknown(key: Any, accepted: list[str], *elsewhere: dict[str, list[str]]) -> str:
    """What is wrong with a key that a config does not have. `elsewhere` are keys of its other places, the nearest
    first, with their whole names.

    >>> unknown("pair_token", ["model", "pair_tokens"], {"pair_token": ["model.pair_token"]})
    'unknown key; accepted: model, pair_tokens; did you mean pair_tokens?'
    >>> unknown("epoch", ["model"], {"epochs": ["warm.epochs", "game.epochs"]})
    'unknown key; accepted: model; did you mean warm.epochs or game.epochs?'
    """
    named = ChainMap({one: [one] for one in accepted}, *elsewhere)
    near = get_close_matches(str(key), accepted, 1, VERY_NEAR) or get_close_matches(str(key), named, 1)
    *others, last = named[near[0]][:MEANT] if near else [""]
    meant = f"{', '.join(others)} or {last}" if others else last
    return f"unknown key; accepted: {listing(accepted)}" + (f"; did you mean {meant}?" if near else "")


def mistake(found: Mapping[str, Any], place: tuple[Any, ...], *, also: Sequence[str] = ()) -> str:
    """A mistake that pydantic has found at a place, in words: the key, what is wrong, and what was got. `also` is what
    is accepted there beside."""
    kind, about, key = found["type"], found.get("ctx", {}), key_of(found, place)
    if kind in ("missing", "union_tag_not_found"):
        message = "it is needed, and is not there"
    elif kind == "extra_forbidden":
        message = "unknown key"
    elif kind == "value_error":  # our own
        message = found["msg"].removeprefix(VALUE_ERROR)
    else:
        value = about.get("actual_length", about.get("tag", found["input"]))
        got = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
        got = "none" if kind == "too_short" and not value else got
        got = f"{len(value):,} characters" if kind == "string_too_long" else got
        accepted = _accepted(found)
        if accepted is None:
            message = f"{found['msg']}, got {got}"
        else:
            form = f", such as [{got}]" if kind == "list_type" and isinstance(value, (int, float, str)) else ""
            message = f"got {got}; accepted: {accepted}{form}{''.join(f', or {one}' for one in also)}"
    return f"{key}: {message}" if key else message


def key_of(found: Mapping[str, Any], place: tuple[Any, ...]) -> str:
    """Name the key of a mistake that pydantic has found at a place. A union's tag is a key in that place."""
    tag = [found["ctx"]["discriminator"].strip("'")] if found["type"].startswith("union_tag") else []
    return ".".join(map(str, (*place, *tag)))


def code_of(found: Mapping[str, Any]) -> str:
    """Choose the code of a mistake that pydantic has found. An error of a validator brings its own code."""
    code = next((name for beginning, (name, _) in MISTAKES.items() if found["type"].startswith(beginning)), "invalid")
    about = found.get("ctx", {})
    return about.get("code") or getattr(about.get("error"), "code", code)


def _accepted(found: Mapping[str, Any]) -> str | None:
    """What is accepted where pydantic has found a mistake; None where there are no words for it."""
    if found["msg"] == "Input should be False":
        return "false"
    words = next((what for beginning, (_, what) in MISTAKES.items() if found["type"].startswith(beginning)), None)
    return words.format(**{"keys": "", **found.get("ctx", {})}) if words is not None else None


MISTAKES: dict[str, tuple[str, str | None]] = {
    "missing": ("missing-key", None),
    "union_tag_not_found": ("missing-key", None),
    "extra_forbidden": ("unknown-key", None),
    "int_": ("wrong-type", "a whole number"),
    "float_": ("wrong-type", "a number"),
    "finite_number": ("not-finite", "a finite number"),
    "bool_": ("wrong-type", "true or false"),
    "string_type": ("wrong-type", "text"),
    "string_unicode": ("not-utf8", "text without halves of characters"),
    "string_pattern_mismatch": ("wrong-form", "text that matches {pattern}"),
    "list_type": ("wrong-type", "a list"),
    "tuple_type": ("wrong-type", "a list"),
    "model_type": ("wrong-type", "keys and values{keys}"),
    "dict_type": ("wrong-type", "keys and values"),
    "literal_error": ("unknown-value", "{expected}"),
    "union_tag_invalid": ("unknown-value", "{expected_tags}"),
    "greater_than_equal": ("too-small", "{ge:g} or more"),
    "greater_than": ("too-small", "more than {gt:g}"),
    "less_than_equal": ("too-large", "{le:g} or less"),
    "less_than": ("too-large", "less than {lt:g}"),
    "too_short": ("too-short", "at least {min_length} of them"),
    "too_long": ("too-long", "at most {max_length} of them"),
    "string_too_short": ("too-short", "at least {min_length} characters"),
    "string_too_long": ("too-long", "at most {max_length} characters"),
}
"""The code of a mistake, and what is accepted, by the beginning of pydantic's name of the mistake."""


KIND = re.compile(r"constrained-\w+|(literal|list|dict|function-\w+)\[.*\]")
"""A kind of value, or a validator, as pydantic names it in a location where a key takes several kinds."""
PLAIN = ("str", "int", "float", "bool")
"""Kinds without parts, which stand last there; elsewhere such a word is a key."""


def without_kinds(cls: Any, location: tuple[Any, ...]) -> tuple[Any, ...]:
    """A location as a config has it: without what pydantic names of the kinds that a key takes."""
    named = [part for at, part in enumerate(location) if part in {one.__name__ for one in _classes(cls, location[:at])}]
    whole = tuple(part for part in location if part not in named and not KIND.fullmatch(str(part)))
    return whole[:-1] if len(whole) > 1 and whole[-1] in PLAIN else whole


def fields_at(cls: Any, location: tuple[Any, ...]) -> list[str]:
    """Field names of the config class at a location: keys, list positions and union tags, as pydantic reports them."""
    classes = _classes(cls, location)
    return list(classes[0].model_fields) if classes else []


def _classes(cls: Any, location: tuple[Any, ...]) -> list[type[BaseModel]]:
    """The config classes that may stand at a location."""
    classes = [cls]
    for part in location:
        tagged = [one for one in classes if part == one.__name__ or _is_tag(part, one)]
        fields = [one.model_fields[part] for one in classes if part in one.model_fields]
        if len(classes) > 1 and tagged:
            classes = tagged
        elif fields:
            classes = _config_classes(fields[0].annotation)
    return classes


def _keys_below(cls: type[BaseModel], place: tuple[Any, ...] = ()) -> dict[str, list[str]]:
    """All keys of a config at a place and of its parts, each with its dotted names, the shortest first. Those of lists'
    parts are left out, as their names have a position."""
    found: dict[str, list[str]] = {}
    Place = tuple[str, type[BaseModel], tuple[type[BaseModel], ...]]
    places: list[Place] = [("".join(f"{part}." for part in place), cls, (cls,))]
    for before, one, above in places:  # which grows: the classes of a level come before those below
        for name, field in one.model_fields.items():
            names = found.setdefault(name, [])
            names += [f"{before}{name}"] if f"{before}{name}" not in names else []
            parts = [part for part in _config_classes(field.annotation, lists=False) if part not in above]
            places += [(f"{before}{name}.", part, (*above, part)) for part in parts]
    return found


def _is_tag(part: Any, cls: type[BaseModel]) -> bool:
    """Whether a part of a location is the tag that selects this class of a union."""
    return any(part in get_args(field.annotation) for field in cls.model_fields.values())


def _config_classes(annotation: Any, *, lists: bool = True) -> list[type[BaseModel]]:
    """The config classes in an annotation such as `list[X] | None`; without `lists` those of its lists are left out."""
    if get_origin(annotation) is list and not lists:
        return []
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for argument in get_args(annotation) for cls in _config_classes(argument, lists=lists)]
