"""Whole numbers of a JSON text written as whole numbers: ``1.0`` and ``1e3`` as ``1`` and ``1000``.

Values stay what they are, digit for digit, whatever type a column has; numbers within texts are left alone, and no line
moves. Pure over bytes, and linear in them, whatever they hold.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_TEXT: Final = rb'"[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+"?+'
_BEGIN: Final = rb"(?<![\w.+-])"
_WITH_ZEROS: Final = re.compile(rb"(" + _TEXT + rb")|" + _BEGIN + rb"(-?[0-9]++)\.0++(?![\w.+-])")
_IN_TEXT: Final = re.compile(_TEXT)
_HAS_POWER: Final = re.compile(rb"[0-9][eE][+-]?[0-9]")
_WITH_POWER: Final = re.compile(
    _TEXT + rb"|" + _BEGIN + rb"(-?[0-9]{1,400}+(?:\.[0-9]{1,400}+)?[eE][+-]?[0-9]{1,4}+)(?![\w.+-])"
)
_MAX_DIGITS: Final = 38
"""Of what a column of whole numbers or Decimals holds."""


def with_whole_numbers(text: bytes) -> bytes:
    """The text in which each number whose value is whole stands without point and exponent."""
    text = _WITH_ZEROS.sub(rb"\1\2", text)
    if _HAS_POWER.search(text) is None or _HAS_POWER.search(_IN_TEXT.sub(b"", text)) is None:
        return text
    return _WITH_POWER.sub(_plain, text)


def _plain(found: re.Match[bytes]) -> bytes:
    """A number without exponent, where it is whole and a column may hold it; else what stands there."""
    if found[1] is None:
        return found[0]
    value = Decimal(found[1].decode())
    if value.adjusted() >= _MAX_DIGITS or value != value.to_integral_value():
        return found[0]
    return b"%d" % int(value)
