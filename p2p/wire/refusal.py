"""Lays out refusals: the reason why a peer does not answer a chain or object request (ADR 2)."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from p2p.wire.layout import U32, MessageLayout, RestBytes, u8
from p2p.wire.limits import MAX_REASON


class RefusalReason(enum.IntEnum):
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


def _cut(text: str) -> bytes:
    """Cuts a text at the limit, and not inside of a character."""
    return text.encode()[:MAX_REASON].decode(errors="ignore").encode()


class PeerRefusal(msgspec.Struct, frozen=True):
    """An answer that gives a reason in place of what was requested. ``text`` is for people and logs."""

    request: U32
    reason: Annotated[RefusalReason, u8(load=RefusalReason)]
    text: Annotated[str, RestBytes(MAX_REASON, load=lambda raw: bytes(raw).decode(), dump=_cut)] = ""


REFUSAL: Final = MessageLayout("refusal", 0x7F, PeerRefusal)
encode_refusal, decode_refusal = REFUSAL.encode, REFUSAL.decode
