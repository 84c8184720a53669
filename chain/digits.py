"""Reads whole numbers from texts of others under a limit."""

from __future__ import annotations

from typing import Final

MAX_DIGITS: Final = 19
"""Of numbers up to 2^63 - 1."""


def read_whole(text: str) -> int | None:
    """Returns the number that a text of ASCII digits means; ``None`` for another text, and for more than 2^63 - 1."""
    digits = text.lstrip("0") or text[-1:]
    # More than 4,300 digits raise ValueError from ``int``, which no caller expects of what ``isdecimal`` accepts.
    if not text.isascii() or not text.isdecimal() or len(digits) > MAX_DIGITS:
        return None
    number = int(digits)
    return number if number < 1 << 63 else None
