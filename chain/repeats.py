"""Finds values that occur more than once. Names come from strangers, and in large numbers: the cost is linear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

_Value = TypeVar("_Value", bound=Hashable)


def repeated(values: Iterable[_Value]) -> list[_Value]:
    """Returns each value that occurs more than once, once, in the order of their first places."""
    return [value for value, times in Counter(values).items() if times > 1]
