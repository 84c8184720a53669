"""Writes the JSON that stands inside of a block: keys sorted at every level, no spaces, numbers as in the reference.

One pure function, of values as ``msgspec`` decodes them. The text is part of what is hashed, so it is a function of
the value alone: the shortest digits that give the number back, plain from 1e-5 up to 1e16 and with a signed exponent
beyond, like ``1.5e+300`` and ``1e-7``. Spec: FlatBuffers schema, ExtraAttributes; serde_json since 1.0.147.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.errors import Invalid

MAX_DEPTH: Final = 128
"""Levels of values inside of each other; the reference reads no more."""


def write(value: object) -> str:
    """Raises Invalid for what JSON has not, and beyond MAX_DEPTH."""
    return _text(value, 0)


def _text(value: object, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise Invalid(f"nested deeper than {MAX_DEPTH}", rule="json-depth")
    match value:
        case float():
            return _real(value)
        case dict():
            members = (f"{_scalar(str(key))}:{_text(value[key], depth + 1)}" for key in sorted(value))
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(_text(item, depth + 1) for item in value) + "]"
        case _:
            return _scalar(value)


def _scalar(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise Invalid(f"not a value of JSON: {error}", rule="json") from error


def _real(value: float) -> str:
    mantissa, mark, exponent = msgspec.json.encode(value).decode().partition("e")
    return mantissa + mark + ("+" if exponent[:1].isdecimal() else "") + exponent
