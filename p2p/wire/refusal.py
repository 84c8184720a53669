"""Encodes and decodes refusals: the reason why a peer does not answer a chain or object request (ADR 0002)."""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from chain.errors import Invalid
from p2p.wire.limits import MAX_REASON


class Reason(enum.IntEnum):
    """The reason of a refusal. A closed set: another number makes the message Invalid."""

    UNKNOWN = 1
    """There is nothing of that name here, or nothing that this peer may see."""
    NOT_SERVED = 2
    """The policy forbids serving it."""
    BUSY = 3
    """Too many requests of this peer wait already; it may ask later, or ask another peer."""
    MALFORMED = 4
    """The bytes are no request of this protocol. The stream ends after this refusal."""
    BROKEN = 5
    """The answering node's disk or database failed; another peer may do better."""


class Refusal(msgspec.Struct, frozen=True):
    """An answer that gives a reason in place of what was requested. ``text`` is for people and logs."""

    request: int
    reason: Reason
    text: str = ""


KIND: Final = 0x7F
_HEAD: Final = struct.Struct(">BIB")


def encode_refusal(refusal: Refusal) -> bytes:
    """Encodes ``u8 0x7f, u32 request, u8 reason, text``; the text is UTF-8, cut at the limit."""
    text = refusal.text.encode()[:MAX_REASON].decode(errors="ignore").encode()
    return _HEAD.pack(KIND, refusal.request, refusal.reason) + text


def decode_refusal(body: bytes) -> Refusal:
    """Decodes a refusal. Raises Invalid."""
    if len(body) < _HEAD.size or len(body) > _HEAD.size + MAX_REASON or body[0] != KIND:
        raise Invalid(f"a refusal of {len(body)} bytes", rule="refusal", hint=f"6 to {6 + MAX_REASON} bytes")
    _, request, number = _HEAD.unpack_from(body)
    try:
        return Refusal(request, Reason(number), body[_HEAD.size :].decode())
    except ValueError as error:
        raise Invalid(f"a refusal for reason {number} that cannot be read", rule="refusal") from error
