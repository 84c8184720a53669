"""Parses and checks the conditions of ``odfctl wait``: ``exists``, ``deleted``, or a comparison of a field. Pure.

Examples: ``state=fresh``, ``blocks>=15``, ``relyOn.blocks>=14``, ``fault=null``. Names are those of ``-o json``, joined
by dots.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import inspect

from odfd.errors import Usage

_COMPARISON: Final = re.compile(r"([A-Za-z][A-Za-z0-9.]*)\s*(>=|<=|!=|=|>|<)\s*(.+)\Z")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, slots=True)
class Exists:
    """The condition that a resource exists, or does not."""

    wanted: bool

    def check(self, *views: type[msgspec.Struct]) -> None:
        """Accepts any views."""

    def holds(self, value: Mapping[str, Any] | None) -> bool:
        return (value is not None) is self.wanted


@dataclass(frozen=True, slots=True)
class Compares:
    """The condition that a field of a resource compares with an operand."""

    field: str
    sign: str
    operand: str

    def holds(self, value: Mapping[str, Any] | None) -> bool:
        """Compares the value; an absent field is null. False while the resource is absent.

        Raises Usage for an impossible comparison.
        """
        if value is None:
            return False
        found: Any = value
        for step in self.field.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        return _OPERATORS[self.sign](*self._pair(found))

    def check(self, *views: type[msgspec.Struct]) -> None:
        """Raises Usage if no value of these types can have such a field, or such a word in it."""
        found: Sequence[inspect.Type] = tuple(map(inspect.type_info, views))
        for step in self.field.split("."):
            parts = list(_parts(found))
            if any(isinstance(each, inspect.AnyType | inspect.DictType) for each in parts):
                return  # the fields inside are not declared
            structs = [each for each in parts if isinstance(each, inspect.StructType)]
            fields = {field.encode_name: field.type for struct in structs for field in struct.fields}
            if step not in fields:
                raise Usage(f"there is no field {step!r} to wait for", hint=f"fields are {', '.join(fields) or 'none'}")
            found = (fields[step],)
        self._check_operand(list(_parts(found)))

    def _check_operand(self, types: Sequence[inspect.Type]) -> None:
        known = [each for each in types if not isinstance(each, inspect.NoneType)]
        if self.operand == "null" and len(known) < len(types):
            return
        words = [str(word) for each in known if isinstance(each, inspect.LiteralType) for word in each.values]
        if known and all(isinstance(each, inspect.BoolType) for each in known):
            words = ["false", "true"]
        if words and self.sign in ("=", "!=") and self.operand not in words:
            raise Usage(f"{self.field} is never {self.operand!r}", hint=f"it is one of {', '.join(sorted(words))}")
        if known and all(isinstance(each, inspect.IntType | inspect.FloatType) for each in known):
            self._number()

    def _pair(self, found: Any) -> tuple[Any, Any]:
        if isinstance(found, bool) or found is None:
            spelled = {True: "true", False: "false", None: "null"}[found]
            if self.sign not in ("=", "!="):
                return 1, 0 if self.sign in ("<", "<=") else 2
            return spelled, self.operand
        if isinstance(found, int | float):
            return found, self._number()
        if isinstance(found, str):
            return found, self.operand
        raise Usage(f"{self.field} has parts of its own", hint=f"name one: {self.field}.…")

    def _number(self) -> float:
        """Returns the operand as a number. Raises Usage."""
        try:
            return float(self.operand)
        except ValueError as error:
            raise Usage(f"{self.field} is a number, {self.operand!r} is not", hint="like blocks>=15") from error


def is_finished(task: Mapping[str, Any] | None) -> bool:
    """Whether a task has ended, with success or not; an absent task counts as ended."""
    return task is None or task.get("state") not in ("waiting", "running")


def _parts(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    """Yields the types that a value may have."""
    for each in types:
        if isinstance(each, inspect.UnionType):
            yield from each.types
        else:
            yield each


def parse(text: str) -> Exists | Compares:
    """Parses a condition. Raises Usage."""
    if text in ("exists", "deleted"):
        return Exists(text == "exists")
    match = _COMPARISON.match(text)
    if match is None:
        raise Usage(
            f"not a condition: {text!r}", hint="exists, deleted, or a comparison like state=fresh or blocks>=15"
        )
    return Compares(match[1], match[2], match[3].strip())
