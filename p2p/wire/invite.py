"""Encodes and decodes the messages by which a node redeems an invitation's token at the node that invites (ADR 0057).

One question and one answer a stream::

    redeem  01  32 token
    answer  81  u8 outcome

The joining node is the one whose key the connection proves. Pure.
"""

from __future__ import annotations

import enum
from typing import Final

from chain.errors import Invalid

INVITE_PROTOCOL: Final = "/odf/1/invite"
TOKEN_BYTES: Final = 32
MAX_INVITE_MESSAGE: Final = 33
"""Bytes of the longer of the two messages."""
_REDEEM, _ANSWER = b"\x01", b"\x81"


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


def encode_redeem(token: bytes) -> bytes:
    """Encodes a question; ``token`` has ``TOKEN_BYTES``."""
    return _REDEEM + token


def decode_redeem(body: bytes) -> bytes:
    """Returns the token. Raises Invalid."""
    if len(body) != 1 + TOKEN_BYTES or body[:1] != _REDEEM:
        raise Invalid(f"no redemption of an invitation, in {len(body)} bytes", rule="invite-message")
    return body[1:]


def encode_redemption(outcome: Redemption) -> bytes:
    return _ANSWER + bytes([outcome])


def decode_redemption(body: bytes) -> Redemption:
    """Decodes an answer. Raises Invalid."""
    if len(body) != 2 or body[:1] != _ANSWER or body[1] not in Redemption.__members__.values():
        raise Invalid(f"no answer to a redemption, in {len(body)} bytes", rule="invite-message")
    return Redemption(body[1])
