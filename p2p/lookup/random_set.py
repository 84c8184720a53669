"""Keeps a set from which a random member, or the next ones in turn, can be taken in constant time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from chain.backoff import Chance

T = TypeVar("T", bound=Hashable)


class RandomSet(Generic[T]):
    def __init__(self) -> None:
        self._members: list[T] = []
        self._at: dict[T, int] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: T) -> None:
        """Adds a member, which must not be in the set yet."""
        self._at[member] = len(self._members)
        self._members.append(member)

    def remove(self, member: T) -> None:
        at = self._at.pop(member)
        last = self._members.pop()
        if at < len(self._members):
            self._members[at] = last
            self._at[last] = at

    def draw(self, rng: Chance) -> T:
        return self._members[int(rng.random() * len(self._members))]

    def next(self, most: int) -> list[T]:
        """Returns the next ``most`` members in turn."""
        start = self._turn if self._turn < len(self._members) else 0
        found = self._members[start : start + most]
        self._turn = start + len(found)
        return found
