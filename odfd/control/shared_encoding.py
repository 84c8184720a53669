"""Lets many streams send one value that is converted and encoded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class SharedValue(Generic[T]):
    """A value, with everything that was computed from it. For the tasks of one event loop."""

    __slots__ = ("_made", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self._made: dict[Callable[[T], Any], Any] = {}

    def once(self, make: Callable[[T], R]) -> R:
        """Returns ``make(value)``, computed once for each ``make``, a function that lives as long as its module."""
        try:
            found: R = self._made[make]
        except KeyError:
            found = self._made[make] = make(self.value)
        return found
