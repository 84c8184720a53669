"""Writes canonical JSON of signed payloads: RFC 8785, restricted so that all parsers read a payload alike.

A payload must equal its own canonical form; integers lie in 0…2^53-1; no floats, no null; nesting at most eight deep
(docs/spec/trust.md#bytes).
"""

from __future__ import annotations

import json
from typing import Final, NoReturn

import msgspec
import rfc8785

from chain.errors import Invalid

MAX_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 8

Json = dict[str, "Json"] | list["Json"] | str | int | bool

_FAST: Final = msgspec.json.Encoder(order="deterministic")
"""Encodes as RFC 8785 does wherever all keys are ASCII: it orders keys by UTF-8, the RFC by UTF-16.

Ten times as fast as the reference, which encodes the rest.
"""


def encode(value: Json) -> bytes:
    """Returns the canonical bytes of a value. Raises Invalid when it is outside the restricted set."""
    return _FAST.encode(value) if _check(value, 1) else rfc8785.dumps(value)


def decode(payload: bytes) -> Json:
    """Parses bytes that must be their own canonical form. Raises Invalid."""
    try:
        value: Json = json.loads(payload, parse_float=_no_float, parse_constant=_no_float, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise Invalid("not canonical JSON", rule="jcs") from error
    if encode(value) != payload:
        raise Invalid("JSON differs from its canonical form (RFC 8785)", rule="jcs", hint="sorted keys, no spaces")
    return value


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"not an integer: {text[:20]}")


def _integer(text: str) -> int:
    if len(text) > 16:
        raise ValueError("integer too long")
    return int(text)


def _check(value: object, depth: int) -> bool:
    """Whether all keys are ASCII. Raises Invalid for values outside the restricted set."""
    if depth > MAX_DEPTH:
        raise Invalid(f"JSON nested deeper than {MAX_DEPTH}", rule="jcs-depth")
    plain = True
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Invalid("JSON keys are strings", rule="jcs")
            if not key.isascii():
                _check_text(key)
                plain = False
            plain &= _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            plain &= _check(item, depth + 1)
    elif isinstance(value, str):
        _check_text(value)
    elif isinstance(value, bool):
        return True
    elif not (isinstance(value, int) and 0 <= value <= MAX_INTEGER):
        raise Invalid(f"{value!r:.40} is not allowed in a statement", rule="jcs-value", hint="no floats, no null")
    return plain


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Invalid("a lone surrogate in a string", rule="jcs") from error
