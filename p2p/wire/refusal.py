"""Encodes and decodes refusals: why a peer does not answer a request, in the chain and object protocols (ADR 0002)."""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from chain.errors import Invalid
from p2p.wire.limits import MAX_REASON


class Reason(enum.IntEnum):
    """Closed: a number that is not here makes the message Invalid."""

    UNKNOWN = 1
    """Nothing of that name here, or nothing that we show you."""
    NOT_SERVED = 2
    """Policy says no."""
    BUSY = 3
    """Too many requests of yours wait already; later, or another peer."""
    MALFORMED = 4
    """Not a request of this protocol. The stream ends after it."""
    BROKEN = 5
    """Our own disk or database failed; another peer may do better."""


class Refusal(msgspec.Struct, frozen=True):
    """Answer in place of the thing asked for. ``text`` is for people and for logs."""

    request: int
    reason: Reason
    text: str = ""


KIND: Final = 0x7F
_HEAD: Final = struct.Struct(">BIB")


def encode_refusal(refusal: Refusal) -> bytes:
    """``u8 0x7f, u32 request, u8 reason, text``: UTF-8, cut at the limit."""
    text = refusal.text.encode()[:MAX_REASON].decode(errors="ignore").encode()
    return _HEAD.pack(KIND, refusal.request, refusal.reason) + text


def decode_refusal(body: bytes) -> Refusal:
    """Raises Invalid."""
    if len(body) < _HEAD.size or len(body) > _HEAD.size + MAX_REASON or body[0] != KIND:
        raise Invalid(f"a refusal of {len(body)} bytes", rule="refusal", hint=f"6 to {6 + MAX_REASON} bytes")
    _, request, number = _HEAD.unpack_from(body)
    try:
        return Refusal(request, Reason(number), body[_HEAD.size :].decode())
    except ValueError as error:
        raise Invalid(f"a refusal for reason {number} that cannot be read", rule="refusal") from error
