"""Reads and writes multibase texts and varints, as far as hashes and keys in chains need them: fast and strict.

Bases in which hardly anybody writes them are read by the library ``multiformats``, which is slow.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from chain.errors import Invalid

_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE: Final = {char: value for value, char in enumerate(_BASE58)}
_RARE: Final = {
    "b": "base32",
    "B": "base32upper",
    "m": "base64",
    "U": "base64urlpad",
}
"""The other bases that are final in the specification of multibase: ODF asks every node to read them."""
MAX_TEXT: Final = 256
"""Longest text decoded, in characters: base58 decoding is quadratic, and no identity or hash here is longer."""


def varint(value: int) -> bytes:
    """Encodes an unsigned LEB128 number, as multiformats does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_base16(raw: bytes) -> str:
    return "f" + raw.hex()


def encode_base58(raw: bytes) -> str:
    number = int.from_bytes(raw, "big")
    digits = []
    while number:
        number, digit = divmod(number, 58)
        digits.append(_BASE58[digit])
    zeros = len(raw) - len(raw.lstrip(b"\0"))
    return "z" + "1" * zeros + "".join(reversed(digits))


def encode_base64url(raw: bytes) -> str:
    return "u" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    """Decodes a multibase text in one of the eight bases that are final. Raises Invalid, also for another spelling."""
    if len(text) > MAX_TEXT:
        raise Invalid(f"multibase text of {len(text)} characters", rule="multibase-length", hint=f"at most {MAX_TEXT}")
    base, body = text[:1], text[1:]
    try:
        if base in ("f", "F"):
            return binascii.unhexlify(body)
        if base == "z":
            return _decode_base58(body)
        if base == "u":
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            # Python also accepts + and /, padding, and bits beyond the last byte, so the result is encoded again to
            # compare.
            if encode_base64url(raw) != text:
                raise ValueError("not as base64url is written")
            return raw
        if base in _RARE:
            return _decode_rare(text)
    except (ValueError, KeyError) as error:
        raise Invalid(f"not multibase: {text[:40]!r}", rule="multibase") from error
    raise Invalid(
        f"unknown multibase prefix in {text[:40]!r}",
        rule="multibase",
        hint=f"use one of {' '.join(sorted('fFzu' + ''.join(_RARE)))}",
    )


def _decode_rare(text: str) -> bytes:
    from multiformats import multibase  # takes a tenth of a second, and is not part of the engine

    raw = multibase.decode(text)
    if multibase.encode(raw, _RARE[text[0]]) != text:  # it reads capitals for base32, and any padding
        raise ValueError("not as its base is written")
    return raw


def _decode_base58(body: str) -> bytes:
    number = 0
    for char in body:
        number = number * 58 + _BASE58_VALUE[char]
    zeros = len(body) - len(body.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
