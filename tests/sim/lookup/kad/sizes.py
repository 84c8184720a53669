"""Measures how much memory an object takes, with all that it holds."""

from __future__ import annotations

import sys
from typing import Any


def deep_size(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of an object with all that it holds; once for what is held twice."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, dict):
        size += sum(deep_size(key, seen) + deep_size(value, seen) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        size += sum(deep_size(each, seen) for each in thing)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*slots, *getattr(type(thing), "__struct_fields__", ()), *getattr(thing, "__dict__", {})]
    for name in names:
        if isinstance(name, str) and hasattr(thing, name):
            size += deep_size(getattr(thing, name), seen)
    return size
