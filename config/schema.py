"""Lists all settings of the model as flat keys, for loading and rendering."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from config.model import About, Group, Settings, about


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: its place, what is wrong, and what to write instead."""

    place: str
    """Place of the mistake: ``odfd.toml:14``, ``environment ODFD_P2P_LISTEN``, ``--socket``."""
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"  ({self.hint})" if self.hint else "")


class ConfigError(Exception):
    """Raised for settings that cannot be used, with every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting, such as ``policy.validators.min-sandbox``."""

    path: tuple[str, ...]
    """Field names from the root of the model: ``("policy", "validators", "min_sandbox")``."""
    type: Any
    """Type of the value: ``str``, ``int``, ``float``, ``bool``, ``tuple[str, ...]`` or ``tuple[Group, ...]``."""
    optional: bool
    default: Any
    about: About

    @property
    def name(self) -> str:
        return ".".join(step.replace("_", "-") for step in self.path)

    @property
    def table(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """Name of the environment variable: ``ODFD_POLICY_VALIDATORS_MIN_SANDBOX``."""
        return "ODFD_" + "_".join(self.path).upper()


@cache
def every() -> tuple[Key, ...]:
    return tuple(_walk(Settings, ()))


def _walk(table: type, path: tuple[str, ...]) -> Iterator[Key]:
    hints = typing.get_type_hints(table)
    for field in dataclasses.fields(table):
        known = about(field)
        if known is None:
            yield from _walk(hints[field.name], (*path, field.name))
        else:
            kind, optional = _plain(hints[field.name])
            yield Key((*path, field.name), kind, optional, field.default, known)


def _plain(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        (kind,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        return kind, True
    return hint, False


def build(values: Mapping[tuple[str, ...], Any]) -> Settings:
    """Makes settings with these values, and defaults elsewhere."""

    def table(kind: Any, path: tuple[str, ...]) -> Any:
        hints = typing.get_type_hints(kind)
        given: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            here = (*path, field.name)
            if about(field) is None:
                given[field.name] = table(hints[field.name], here)
            elif here in values:
                given[field.name] = values[here]
        return kind(**given)

    built: Settings = table(Settings, ())
    return built


def get(settings: Settings, path: tuple[str, ...]) -> Any:
    value: Any = settings
    for step in path:
        value = getattr(value, step)
    return value


def opened_doors(settings: Settings) -> dict[str, str]:
    """Returns the names of the doors that settings open, each with the setting that does."""
    own = {key.about.door: key.name for key in every() if key.about.door and get(settings, key.path)}
    return own | dict.fromkeys(settings.node.doors, "node.doors")


def changed(before: Settings, after: Settings) -> tuple[str, ...]:
    """Returns the names of the settings that differ."""
    return tuple(key.name for key in every() if get(before, key.path) != get(after, key.path))


def accept(key: Key, value: Any, place: str) -> tuple[Any, Problem | None]:
    """Converts ``value``, as TOML gives it, to the setting's type within its bounds; or reports the mistake."""
    try:
        converted = msgspec.convert(value, key.type)
    except msgspec.ValidationError:
        shown = "what is there" if key.about.secret else _shown(value)
        lone = key.type == tuple[str, ...] and isinstance(value, str) and not key.about.secret
        meant = f": write [{shown}]" if lone else ""
        return None, Problem(place, f"{key.name} is {_words(key)}, not {shown}{meant}", key.about.why)
    known = key.about
    if known.choices and converted not in known.choices:
        return None, Problem(place, f"{key.name} is one of {', '.join(known.choices)}, not {_shown(value)}")
    if isinstance(converted, int | float) and not isinstance(converted, bool):
        low, high = known.low, known.high
        if (low is not None and converted < low) or (high is not None and converted > high) or converted != converted:
            bounds = f"at least {low:g}" if high is None else f"from {low or 0:g} to {high:g}"
            return None, Problem(place, f"{key.name} is {bounds} {known.unit}".rstrip() + f", not {value}")
    return converted, None


def _words(key: Key) -> str:
    if key.type == tuple[str, ...]:
        return "a list of texts"
    if key.type == tuple[Group, ...]:
        return 'a list of {name = "…", keys = ["did:key:…"]}'
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[key.type]


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:59] + "…"


def from_text(key: Key, text: str) -> Any:
    """Parses the text of a variable or flag as TOML would; returns the text itself when it does not fit.

    A list is written as in a file of settings, ``["a", "b"]``, or with commas: ``a,b``.
    """
    if key.type == tuple[str, ...]:
        if text[:1] + text[-1:] == "[]":  # not [::]:8080
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads(f"list = {text}")["list"]
        return [part.strip() for part in text.split(",") if part.strip()]
    if key.type is bool:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    if key.type in (int, float):
        try:
            return key.type(text)
        except ValueError:
            return text
    return text
