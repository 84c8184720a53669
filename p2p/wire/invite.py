"""Lays out the messages by which a node redeems an invitation's token at the node that invites (ADR 57).

One question and one answer a stream::

    redeem  01  32 token
    answer  81  u8 outcome

The joining node is the one whose key the connection proves. Pure.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from p2p.wire.layout import MessageLayout, OctetString, u8

INVITE_PROTOCOL: Final = "/odf/1/invite"
TOKEN_BYTES: Final = 32
MAX_INVITE_MESSAGE: Final = 33
"""Bytes of the longer of the two messages."""


class Redemption(enum.IntEnum):
    """The outcome of a redemption. A closed set: another number makes the message Invalid."""

    ADMITTED = 0
    """The node is admitted, now or by an earlier redemption: the same node may ask again."""
    UNKNOWN = 1
    """The asked node made no such token, or has deleted it."""
    EXPIRED = 2
    USED = 3
    """The token was already used by as many nodes as it is for."""
    REVOKED = 4
    BUSY = 5
    """Too many questions came, or the disk failed; the node may ask later."""


class _Redeem(msgspec.Struct, frozen=True):
    token: Annotated[bytes, OctetString(TOKEN_BYTES)]


class _Answer(msgspec.Struct, frozen=True):
    outcome: Annotated[Redemption, u8(load=Redemption)]


_REDEEM: Final = MessageLayout("invite-message", 0x01, _Redeem)
_ANSWER: Final = MessageLayout("invite-message", 0x81, _Answer)


def encode_redeem(token: bytes) -> bytes:
    """Encodes a question; ``token`` has ``TOKEN_BYTES``."""
    return _REDEEM.encode(_Redeem(token))


def decode_redeem(body: bytes) -> bytes:
    """Returns the token. Raises Invalid."""
    return _REDEEM.decode(body).token


def encode_redemption(outcome: Redemption) -> bytes:
    return _ANSWER.encode(_Answer(outcome))


def decode_redemption(body: bytes) -> Redemption:
    """Decodes an answer. Raises Invalid."""
    return _ANSWER.decode(body).outcome
