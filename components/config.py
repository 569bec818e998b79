"""Frozen pydantic models for configs, in which unknown keys are errors, and the messages of their mistakes."""

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

from sparring.components.foreign_keys import FOREIGN

LINE = 1_200
"""Maximum number of characters in a line of a message."""
MEANT = 3
"""Maximum number of suggested places of a key."""
SHOWN = 6
"""Maximum number of keys listed where a mapping was expected."""
VALUE_ERROR = "Value error, "
"""Prefix that pydantic puts before the message of a ValueError."""
VERY_NEAR = 0.8
"""Similarity from which a key of the same place is suggested before an equal key elsewhere: seed for seeds."""


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

    def __init__(self, message: str, code: str, key: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.key = key
        """Dotted key, if the message does not begin with it."""


class Damaged(UserError):
    """A saved file is truncated or missing. The caller, who knows where the file came from, adds what to do."""

    def __init__(self, line: str, path: Path | None = None) -> None:
        super().__init__(line, code="damaged-file")
        self.path = path
        """The file, or its folder."""


def printable(line: str) -> str:
    r"""Escape control characters and unpaired surrogates in a line, and cut a very long line in its middle.

    >>> printable("a\tb\udcff")
    'a\\tb\\udcff'
    """
    if not line.isprintable():
        line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)
    return line if len(line) <= LINE else f"{line[: LINE // 2]} ... {line[-LINE // 3 :]}"


CONTROLS = {
    **dict.fromkeys([*range(32), *range(127, 160), 0x2028, 0x2029], " "),
    **dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]),
}
"""Table for `str.translate` that makes text safe for a terminal. Control characters become spaces, and marks of the
writing direction are deleted."""


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
        """Return the files outside the store that a step with this config reads, by name. They need not exist."""
        return {}

    def missing(self) -> list[str]:
        """List the files and packages that a step with this config reads and that are absent."""
        # unlike Path.exists, this accepts a name longer than the file system allows
        return [str(path) for path in self.files().values() if not os.path.exists(path)]

    def installed(self) -> dict[str, str]:
        """Return the versions of the installed packages whose files a step with this config reads, by name."""
        return {}


def _kinds(annotation: Any) -> set[Any]:
    """Return the types and literal values that a field accepts."""
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return {kind for argument in get_args(annotation) for kind in _kinds(argument)}
    return {annotation}


C = TypeVar("C", bound=BaseModel)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the accepted name that is most similar, ignoring case. Return "" if none is similar.

    >>> did_you_mean("bm25", ["start model", "BM25"])
    '; did you mean BM25?'
    """
    by_case = {accepted.lower(): accepted for accepted in names}
    near = get_close_matches(name.lower(), by_case, 1, 0.7)
    return "".join(f"; did you mean {by_case[match]}?" for match in near)


def listing(names: Any) -> str:
    """Join names by commas for an error message. If a name contains a comma, quote all of them.

    >>> listing(["BM25", "start model"]), listing(["BM25", "BM25 + start model, interpolated"])
    ('BM25, start model', "'BM25', 'BM25 + start model, interpolated'")
    """
    texts = [str(name) for name in names]
    return ", ".join(map(repr, texts) if any("," in name for name in texts) else texts) or "(none)"


def distinct(values: list[Any]) -> list[Any]:
    """Return the list, as a validator of a config's field. ValueError names a value that occurs twice."""
    for value in values:
        if values.count(value) > 1:
            raise Invalid(f"{value!r} stands twice", "duplicate")
    return values


def parse(cls: type[C], tree: dict[str, Any], *, where: str) -> C:
    """Validate a tree as a config.

    Raise UserError for the first mistake. Its message has `where`, the key and the accepted values.
    """
    try:
        return cls.model_validate(tree)
    except RecursionError:
        raise UserError(f"{where}: nested too deeply", code="nested-too-deeply") from None
    except UnicodeEncodeError as error:  # an escaped half of a character
        raise UserError(f"{where}: text that is not UTF-8: {error.object[:80]!r}", code="not-utf8") from None
    except ValidationError as invalid:
        mistakes = invalid.errors()
        # Unknown keys first: with a misspelt key, the right one is missing too.
        first = next((error for error in mistakes if error["type"] == "extra_forbidden"), _clearest(cls, mistakes))
        path = without_kinds(cls, first["loc"])
        place = _as_written(tree, path)
        if first["type"] == "extra_forbidden":
            place = (*_as_written(tree, without_kinds(cls, first["loc"][:-1])), first["loc"][-1])  # of any name
            accepted = fields_at(cls, first["loc"][:-1])
            below = [_keys_below(part, place[:-1]) for part in _classes(cls, first["loc"][:-1])[:1]]
            message = unknown(place[-1], accepted, *below, _keys_below(cls))
            key = ".".join(map(str, place))
            raise UserError(f"{where}: {key}: {message}", key=key, code="unknown-key") from None
        if first["type"] == "model_type":
            keys = fields_at(cls, first["loc"])
            first = {**first, "ctx": {"keys": f": {listing(keys[:SHOWN])}{', ...' * (len(keys) > SHOWN)}"}}
        also = [item for item in mistakes if item["loc"] != first["loc"] and without_kinds(cls, item["loc"]) == path]
        message = mistake(first, place, also=list(filter(None, map(_accepted, also))))
        inside = leading_key(first["msg"].removeprefix(VALUE_ERROR)) if first["type"] == "value_error" else ""
        if inside.partition(".")[0] in fields_at(cls, first["loc"]):
            place = (*place, inside)
        raise UserError(f"{where}: {message}", key=key_of(first, place) or where, code=code_of(first)) from None


def _as_written(tree: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """Drop list numbers that the tree lacks from a place. The tree may have a mapping instead of a list of one."""
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
    """Return the first mistake. For a value that may be of several types, return the mistake inside the type it has."""
    place = without_kinds(cls, mistakes[0]["loc"])
    for error in mistakes:
        path = without_kinds(cls, error["loc"])
        if path[: len(place)] == place and not (path == place and error["type"].endswith(("_type", "literal_error"))):
            return error
    return mistakes[0]


def unknown(key: Any, accepted: list[str], *elsewhere: dict[str, list[str]]) -> str:
    """Describe a key that a config does not have. `elsewhere` maps keys of other places, nearest first, to full names.

    >>> unknown("pair_token", ["model", "pair_tokens"], {"pair_token": ["model.pair_token"]})
    'unknown key; accepted: model, pair_tokens; did you mean pair_tokens?'
    >>> unknown("epoch", ["model"], {"epochs": ["warm.epochs", "game.epochs"]})
    'unknown key; accepted: model; did you mean warm.epochs or game.epochs?'
    >>> unknown("lr", ["batch", "learning_rate"])
    'unknown key. Use `learning_rate`.'
    """
    named = ChainMap({name: [name] for name in accepted}, *elsewhere)
    if str(key) not in named and str(key) in FOREIGN:
        return f"unknown key. {FOREIGN[str(key)]}"
    near = get_close_matches(str(key), accepted, 1, VERY_NEAR) or get_close_matches(str(key), named, 1)
    *first, last = named[near[0]][:MEANT] if near else [""]
    meant = f"{', '.join(first)} or {last}" if first else last
    return f"unknown key; accepted: {listing(accepted)}" + (f"; did you mean {meant}?" if near else "")


def mistake(error: Mapping[str, Any], place: tuple[Any, ...], *, also: Sequence[str] = ()) -> str:
    """Describe a pydantic error at a place: the key, the mistake and the value. `also` are further accepted values."""
    kind, context, key = error["type"], error.get("ctx", {}), key_of(error, place)
    if kind in ("missing", "union_tag_not_found"):
        message = "it is needed, and is not there"
    elif kind == "extra_forbidden":
        message = "unknown key"
    elif kind == "value_error":  # our own
        message = error["msg"].removeprefix(VALUE_ERROR)
    else:
        value = context.get("actual_length", context.get("tag", error["input"]))
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
        shown = "none" if kind == "too_short" and not value else shown
        shown = f"{len(value):,} characters" if kind == "string_too_long" else shown
        accepted = _accepted(error)
        if accepted is None:
            message = f"{error['msg']}, got {shown}"
        else:
            form = f", such as [{shown}]" if kind == "list_type" and isinstance(value, (int, float, str)) else ""
            message = f"got {shown}; accepted: {accepted}{form}{''.join(f', or {words}' for words in also)}"
    return f"{key}: {message}" if key else message


def key_of(error: Mapping[str, Any], place: tuple[Any, ...]) -> str:
    """Name the key of a pydantic error at a place. A union's tag is a key in that place."""
    tag = [error["ctx"]["discriminator"].strip("'")] if error["type"].startswith("union_tag") else []
    return ".".join(map(str, (*place, *tag)))


def code_of(error: Mapping[str, Any]) -> str:
    """Choose the code of a pydantic error. An error of a validator brings its own code."""
    code = next((name for beginning, (name, _) in MISTAKES.items() if error["type"].startswith(beginning)), "invalid")
    context = error.get("ctx", {})
    return context.get("code") or getattr(context.get("error"), "code", code)


def _accepted(error: Mapping[str, Any]) -> str | None:
    """Describe the values that are accepted instead of a mistake. Return None if the table has no words for it."""
    if error["msg"] == "Input should be False":
        return "false"
    words = next((text for beginning, (_, text) in MISTAKES.items() if error["type"].startswith(beginning)), None)
    return words.format(**{"keys": "", **error.get("ctx", {})}) if words is not None else None


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
"""Code of a mistake and the accepted values, by the beginning of pydantic's name of the mistake."""


KIND = re.compile(r"constrained-\w+|(literal|list|dict|function-\w+)\[.*\]")
"""A type or a validator in a location of pydantic, where a key accepts several types."""
PLAIN = ("str", "int", "float", "bool")
"""Types without parts, which come last in a location. Elsewhere such a word is a key."""


def without_kinds(cls: Any, location: tuple[Any, ...]) -> tuple[Any, ...]:
    """Drop the types that pydantic adds to a location where a key accepts several types."""
    named = [part for i, part in enumerate(location) if part in {kind.__name__ for kind in _classes(cls, location[:i])}]
    whole = tuple(part for part in location if part not in named and not KIND.fullmatch(str(part)))
    return whole[:-1] if len(whole) > 1 and whole[-1] in PLAIN else whole


def fields_at(cls: Any, location: tuple[Any, ...]) -> list[str]:
    """List the fields of the config class at a location of pydantic: keys, list positions and union tags."""
    classes = _classes(cls, location)
    return list(classes[0].model_fields) if classes else []


def _classes(cls: Any, location: tuple[Any, ...]) -> list[type[BaseModel]]:
    """List the config classes that may be at a location."""
    classes = [cls]
    for part in location:
        tagged = [kind for kind in classes if part == kind.__name__ or _is_tag(part, kind)]
        fields = [kind.model_fields[part] for kind in classes if part in kind.model_fields]
        if len(classes) > 1 and tagged:
            classes = tagged
        elif fields:
            classes = _config_classes(fields[0].annotation)
    return classes


def _keys_below(cls: type[BaseModel], place: tuple[Any, ...] = ()) -> dict[str, list[str]]:
    """Map each key of a config and its parts to its dotted names, shortest first. Lists' parts are left out."""
    keys: dict[str, list[str]] = {}
    Place = tuple[str, type[BaseModel], tuple[type[BaseModel], ...]]
    places: list[Place] = [("".join(f"{part}." for part in place), cls, (cls,))]
    for before, kind, above in places:  # the list grows, level by level
        for name, field in kind.model_fields.items():
            names = keys.setdefault(name, [])
            names += [f"{before}{name}"] if f"{before}{name}" not in names else []
            parts = [part for part in _config_classes(field.annotation, lists=False) if part not in above]
            places += [(f"{before}{name}.", part, (*above, part)) for part in parts]
    return keys


def _is_tag(part: Any, cls: type[BaseModel]) -> bool:
    """Check whether a part of a location is the tag that selects this class of a union."""
    return any(part in get_args(field.annotation) for field in cls.model_fields.values())


def _config_classes(annotation: Any, *, lists: bool = True) -> list[type[BaseModel]]:
    """List the config classes in an annotation such as `list[X] | None`. Without `lists`, ignore those inside lists."""
    if get_origin(annotation) is list and not lists:
        return []
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [cls for argument in get_args(annotation) for cls in _config_classes(argument, lists=lists)]
