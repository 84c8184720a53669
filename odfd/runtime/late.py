"""Stands for a part that is made after those that call it, where two features need each other."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class LatePart(Generic[T]):
    """Returns the part when it is called; before it was made that is an error of the program, and no silent default."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._part: tuple[T] | None = None

    def __call__(self) -> T:
        if self._part is None:
            raise RuntimeError(f"{self._name} is not made yet")
        return self._part[0]

    def fill(self, part: T) -> None:
        assert self._part is None, f"{self._name} is made once"
        self._part = (part,)
