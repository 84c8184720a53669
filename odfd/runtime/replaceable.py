"""Holds a value that is replaced as a whole while the node runs, such as its settings."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Replaceable(Generic[T]):
    """The value in force; whoever uses it calls this each time. Safe to use from any thread."""

    def __init__(self, value: T) -> None:
        self._value = value

    def __call__(self) -> T:
        return self._value

    def put(self, value: T) -> None:
        self._value = value
