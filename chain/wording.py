"""Writes nouns with their numbers and articles, for messages. English, as all messages are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_LISTED: Final = 10
"""Most names in one message: how many there are is often a stranger's choice."""
_LETTERS: Final = 80
"""Most characters of one of them."""


def plural(number: int, noun: str, many: str | None = None) -> str:
    """Writes a number with its noun: ``1 block``, ``1,500 blocks``; ``many`` is an irregular plural: ``2 entries``."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def a(noun: str) -> str:
    """Writes ``noun`` with its article: ``an Int64``, ``a UInt8``."""
    return f"an {noun}" if noun[:1].casefold() in "aeio" and noun else f"a {noun}"


def agree(number: int, one: str, many: str) -> str:
    """Returns ``one`` for a single thing, else ``many``: ``agree(len(names), "derives", "derive")``."""
    return one if number == 1 else many


def listed(names: Sequence[str]) -> str:
    """Writes the first of some names, and how many more there are: ``'a', 'b' and 1,204 more``."""
    return some([repr(name[:_LETTERS]) for name in names[:_LISTED]], len(names))


def some(parts: Sequence[str], count: int | None = None, between: str = ", ") -> str:
    """Joins the first of ``count`` parts of a message, by default all that are given, and says how many more there
    are."""
    more = (len(parts) if count is None else count) - _LISTED
    return between.join(parts[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def size(count: float) -> str:
    """Writes a number of bytes with about three digits: ``31.2 MB``."""
    amount, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if abs(amount) < 999.5 or unit == _UNITS[-1]:
            break
        amount /= 1000
    digits = 0 if unit == "B" or abs(amount) >= 99.95 else 1
    return f"{amount:.{digits}f} {unit}"
